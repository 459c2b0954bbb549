package unwinder

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// child is one run of the program unwinder.
type child struct {
	cmd   *exec.Cmd
	log   *logWriter
	ended chan struct{} // closed when it has exited
	err   error         // the result of Wait; valid once ended is closed
}

// newChild returns a child with a memory limit in bytes, which start starts.
func newChild(path string, memory uint64, log func(line string), args ...string) *child {
	c := &child{cmd: exec.Command(path, args...), log: &logWriter{line: log}, ended: make(chan struct{})}
	c.cmd.Env = []string{"GOMEMLIMIT=" + strconv.FormatUint(memory/4*3, 10), "GOTRACEBACK=single"}
	c.cmd.Dir = "/"
	c.cmd.Stderr = c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

// start starts the process. The kernel kills it when this process exits. slack is the allowed delay of its timers, or 0 for the
// default.
func (c *child) start(slack time.Duration) error {
	started := make(chan error)
	go func() {
		// Pdeathsig fires when the thread that called Start exits. So this thread stays until the process has exited.
		runtime.LockOSThread()
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0)
		err := c.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = c.cmd.Wait()
		close(c.ended)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("starting %s: %w", c.cmd.Path, err)
	}
	// If memory is short, the kernel should kill this process before any other. In Kubernetes, the daemon has nearly the same
	// score.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", c.cmd.Process.Pid), []byte("1000"), 0)
	return nil
}

// gone reports whether the process has exited.
func (c *child) gone() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// reason returns why the process exited. Call it after the process was killed or has exited.
func (c *child) reason() string {
	if !c.gone() {
		return "a file system blocks the process, so it cannot exit"
	}
	var exit *exec.ExitError
	last := c.log.last()
	switch {
	case c.err == nil:
		return "it exited with status 0" + last
	case errors.As(c.err, &exit):
		if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() {
			return "it was killed by the signal " + unix.SignalName(st.Signal()) + last
		}
	}
	return c.err.Error() + last
}

// socketPair makes a socket pair of a type, for this process and a child.
func socketPair(typ int) (ours, theirs *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a socket: %w", err)
	}
	return os.NewFile(uintptr(ends[0]), "socket"), os.NewFile(uintptr(ends[1]), "socket"), nil
}
