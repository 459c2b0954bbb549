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

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// DefaultLimit is the CPU time after which a program ends by itself.
const DefaultLimit = 20 * time.Minute

// startTimeout limits how long a program takes to call each of its functions, on a busy machine.
const startTimeout = 2 * time.Minute

// bounded is a shell script that runs a command in the shell's own process. The command ends after the CPU time in the first
// argument, in seconds, or when the owner closes the pipe at file descriptor 3.
const bounded = `{ read -r _ <&3; kill -KILL -$$; } >/dev/null 2>&1 &
exec 3<&- && ulimit -t "$1" && shift && exec "$@"`

// Process is a running program.
type Process struct {
	*Program
	// PID is the program's. For a loop of short programs, it is the loop's.
	PID int

	cmd   *exec.Cmd
	owner io.Closer
	stop  sync.Once
	cpu   time.Duration
}

// Run builds the program of that name into dir, and starts it.
func Run(ctx context.Context, name, dir string, limit time.Duration) (*Process, error) {
	load, err := Find(name)
	if err != nil {
		return nil, err
	}
	program, err := load.Build(ctx, dir)
	if err != nil {
		return nil, err
	}
	return program.Start(ctx, limit)
}

// Start starts the program and returns when each of its functions has been called. The program runs in a session of its own,
// because the scheduler shares CPUs between sessions first. It ends with this process, or after limit of CPU time, at the latest.
// The caller has to stop it.
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
	return nil, fmt.Errorf("starting the load %s: it did not call its functions, but printed %q: %w\n%s", p.Name, line, errors.Join(err, ctx.Err()), stderr.String())
}

// CPU returns the CPU time of the program and its exited children up to now, to a hundredth of a second.
func (p *Process) CPU() (time.Duration, error) {
	stat, ok := procfs.Stat("/proc", uint32(p.PID), 14, 15, 16, 17) // utime, stime, cutime, cstime
	if !ok {
		return 0, fmt.Errorf("reading the CPU time of the load %s: it has exited", p.Name)
	}
	return time.Duration(stat[0]+stat[1]+stat[2]+stat[3]) * procfs.Tick, nil
}

// Stop kills the program and its children. It returns the user and kernel CPU time of the program since its start, from getrusage.
// Children that were still running do not count. Further calls return the same.
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
