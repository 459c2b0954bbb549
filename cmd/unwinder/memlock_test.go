package main

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestLiftMemlock requires that, without capabilities, raising the limit of locked memory succeeds in every thread, and that
// other calls work as before. The test runs as another user, in its own process, which keeps the filter.
func TestLiftMemlock(t *testing.T) {
	const child = "TEST_LIFT_MEMLOCK"
	if os.Getenv(child) == "" {
		// Only root can read the executable's folder.
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestLiftMemlock$")
		cmd.Env = append(os.Environ(), child+"=1")
		if os.Getuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}

	low := unix.Rlimit{Cur: 1 << 16, Max: 1 << 16}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low))
	require.ErrorIs(t, raiseMemlock(), unix.EPERM, "before: this test cannot fail")
	// A thread that exists before the filter.
	early := make(chan func() error)
	results := make(chan error)
	go func() {
		runtime.LockOSThread()
		for f := range early {
			results <- f()
		}
	}()
	early <- func() error { return nil }
	<-results

	require.NoError(t, liftMemlock())
	early <- raiseMemlock
	assert.NoError(t, <-results, "in another thread")
	assert.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{}), "setting it back")
	var now unix.Rlimit
	assert.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &now))
	assert.Equal(t, low, now)
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	assert.Equal(t, unix.EPERM, unix.Prlimit(1, unix.RLIMIT_MEMLOCK, &unlimited, nil), "that of another process")
	if err := unix.Prlimit(0, unix.RLIMIT_NPROC, &unlimited, nil); err == nil {
		var n unix.Rlimit
		assert.NoError(t, unix.Getrlimit(unix.RLIMIT_NPROC, &n))
		assert.Equal(t, unlimited, n, "another limit is answered for")
	}
}
