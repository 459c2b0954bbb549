package procmap

import (
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// withoutFirst is an environment variable. It makes this program end its first thread and continue.
const withoutFirst = "PROCMAP_TEST_WITHOUT_FIRST"

func init() {
	if os.Getenv(withoutFirst) == "" {
		return
	}
	runtime.LockOSThread() // an init runs on the first thread, so this keeps the goroutine there
	go func() {
		time.Sleep(time.Minute)
		os.Exit(0)
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

func startWithoutFirst(t *testing.T) Process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), withoutFirst+"=1")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") Z ")
	}, 10*time.Second, time.Millisecond)
	own := self(t)
	return Process{PID: uint32(cmd.Process.Pid), ExeInode: own.ExeInode, Space: 9}
}

// TestWithoutFirstThread checks that a process whose first thread has exited can be read as usual.
func TestWithoutFirstThread(t *testing.T) {
	p := startWithoutFirst(t)
	folder, thread := procfs.Folder("/proc", p.PID)
	require.NotEqual(t, p.PID, thread)
	require.Equal(t, fmt.Sprintf("/proc/%d", thread), folder)
	require.DirExists(t, fmt.Sprintf("/proc/%d/task/%d", p.PID, thread))
	eachWay(t, func(t *testing.T, r *Resolver) {
		// Unless this is a position-independent executable, this program is mapped there at the same address.
		addr := uint64(reflect.ValueOf(TestWithoutFirstThread).Pointer())
		text, err := os.ReadFile(folder + "/maps")
		require.NoError(t, err)
		if areas := parseMaps(text); addr < areas[0].start || addr >= areas[0].end {
			addr = areas[0].start
		}
		places := known(t, r, p, procfs.SinceBoot(), addr)
		require.Equal(t, Known, places[0].State)
		opened, err := places[0].File.Open()
		require.NoError(t, err)
		require.NoError(t, opened.Close())
		root, err := places[0].File.Root()
		require.NoError(t, err)
		require.NoError(t, root.Close())
	})
}
