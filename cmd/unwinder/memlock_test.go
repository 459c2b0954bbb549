package main

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

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
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}

	low := unix.Rlimit{Cur: 1 << 16, Max: 1 << 16}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low); err != nil {
		t.Fatal(err)
	}
	if err := raiseMemlock(); !errors.Is(err, unix.EPERM) {
		t.Fatalf("before: %v: this test cannot fail", err)
	}
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

	if err := liftMemlock(); err != nil {
		t.Fatal(err)
	}
	early <- raiseMemlock
	if err := <-results; err != nil {
		t.Errorf("in another thread: %v", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{}); err != nil {
		t.Errorf("setting it back: %v", err)
	}
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &now); err != nil || now != low {
		t.Errorf("the limit is %v, not %v: %v", now, low, err)
	}
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Prlimit(1, unix.RLIMIT_MEMLOCK, &unlimited, nil); err != unix.EPERM {
		t.Errorf("that of another process: %v", err)
	}
	if err := unix.Prlimit(0, unix.RLIMIT_NPROC, &unlimited, nil); err == nil {
		var n unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NPROC, &n) != nil || n != unlimited {
			t.Errorf("another limit is answered for")
		}
	}
}
