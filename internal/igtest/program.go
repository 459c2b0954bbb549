package igtest

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Program is a program that runs until its standard input or its work ends.
type Program struct {
	*exec.Cmd
	PID int

	t    *testing.T
	in   io.WriteCloser
	out  *bufio.Reader
	rest string
}

// StartProgram starts a program, which ends with the test at the latest. By default, it has its own session, because the scheduler
// first divides CPU time between sessions. So it also runs and gets sampled on a busy machine. A program that prints more than 64 KiB
// waits until somebody reads.
func StartProgram(t *testing.T, cmd *exec.Cmd) *Program {
	t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &Program{Cmd: cmd, PID: cmd.Process.Pid, t: t, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() { p.Stop() })
	return p
}

// StartEndless starts a program that ignores the end of its input. The kernel ends it with the test process, also if this process
// crashes. The calling test must not use threads that end before it.
func StartEndless(t *testing.T, cmd *exec.Cmd) *Program {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	p := StartProgram(t, cmd)
	t.Cleanup(p.Kill)
	return p
}

// Next writes a line to the program, which then continues.
func (p *Program) Next() {
	p.t.Helper()
	_, err := io.WriteString(p.in, "\n")
	require.NoError(p.t, err)
}

// Lines reads lines that the program prints.
func (p *Program) Lines(n int) (text string) {
	p.t.Helper()
	for range n {
		line, err := p.out.ReadString('\n')
		require.NoError(p.t, err, "the program has ended after %q", text)
		text += line
	}
	return text
}

// Stop ends the program's input, and waits for the program. It returns the program's last output. Callers can call it several
// times.
func (p *Program) Stop() string {
	p.t.Helper()
	if p.ProcessState == nil {
		_ = p.in.Close() // a second call after a failure returns an error
		rest, err := io.ReadAll(p.out)
		p.rest = string(rest)
		require.NoError(p.t, errors.Join(err, p.Wait()))
	}
	return p.rest
}

// Kill ends a program that does not end with its input.
func (p *Program) Kill() {
	if p.ProcessState == nil {
		_ = p.Process.Kill()
		_ = p.Wait()
	}
}

// CPU returns the CPU time of a program that has ended.
func (p *Program) CPU() time.Duration { return p.ProcessState.UserTime() + p.ProcessState.SystemTime() }
