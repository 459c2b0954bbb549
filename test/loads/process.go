package loads

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// DefaultLimit is the CPU time after which a program ends by itself.
const DefaultLimit = 20 * time.Minute

// startTimeout is how long a program may take, on a busy machine, until it has called each of its functions.
const startTimeout = 2 * time.Minute

// bounded is a shell script that runs a command in the shell's own process, for no more CPU time than its first
// argument says, in seconds, and until the pipe that it has as its file descriptor 3 is closed: its owner has it open.
const bounded = `{ read -r _ <&3; kill -KILL -$$; } >/dev/null 2>&1 &
exec 3<&- && ulimit -t "$1" && shift && exec "$@"`

// Process is a program that runs.
type Process struct {
	*Program
	// PID is the program's; where the load is a loop of short programs, the loop's.
	PID int

	cmd   *exec.Cmd
	owner io.Closer
	stop  sync.Once
	cpu   time.Duration
}

// Start starts the program and returns when each of its functions has been called. It runs in a session of its own:
// the scheduler shares CPUs between sessions first, so it gets some where much else runs. It ends with the process that
// has started it, or after limit of CPU time, at the latest. The caller has to stop it.
func (p *Program) Start(ctx context.Context, limit time.Duration) (*Process, error) {
	seconds := strconv.Itoa(int(limit.Seconds()))
	cmd := exec.Command("/bin/sh", append([]string{"-c", bounded, "sh", seconds}, p.Args...)...)
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), "LOAD_LIMIT="+seconds)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the load %s: %w", p.Name, err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting the load %s: %w", p.Name, err)
	}
	cmd.ExtraFiles = []*os.File{read}
	err = cmd.Start()
	_ = read.Close()
	if err != nil {
		_ = write.Close()
		return nil, fmt.Errorf("starting the load %s: %w", p.Name, err)
	}
	r := &Process{Program: p, PID: cmd.Process.Pid, cmd: cmd, owner: write}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	kill := context.AfterFunc(ctx, func() { _ = syscall.Kill(-r.PID, syscall.SIGKILL) })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if kill() && err == nil && line == "ready\n" {
		return r, nil
	}
	r.Stop()
	return nil, fmt.Errorf("starting the load %s: it did not get to work, but said %q: %w\n%s", p.Name, line, errors.Join(err, ctx.Err()), stderr.String())
}

// CPU returns the CPU time of the program and of its children that have ended, so far, to a hundredth of a second.
func (p *Process) CPU() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
	if err != nil {
		return 0, fmt.Errorf("reading the CPU time of the load %s: %w", p.Name, err)
	}
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	if len(fields) < 15 {
		return 0, fmt.Errorf("reading the CPU time of the load %s: it is not in %q", p.Name, text)
	}
	ticks := int64(0)
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading the CPU time of the load %s: %w", p.Name, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100), nil
}

// Stop kills the program and its children and returns the CPU time, of user and kernel, that it has taken from its
// start as the kernel has counted it (getrusage). Children that were running at its end are left out. Further calls
// return the same.
func (p *Process) Stop() time.Duration {
	p.stop.Do(func() {
		_ = syscall.Kill(-p.PID, syscall.SIGKILL)
		_ = p.cmd.Wait()
		_ = p.owner.Close()
		if s := p.cmd.ProcessState; s != nil {
			p.cpu = s.UserTime() + s.SystemTime()
		}
	})
	return p.cpu
}
