//go:build e2e

package e2e

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// compileC compiles a program with frame pointers, which the kernel needs to walk its stacks.
func compileC(t *testing.T, source string) string {
	t.Helper()
	return igtest.Compile(t, source, "clang", "-O0", "-fno-omit-frame-pointer")
}

// compileAsShipped compiles a program as distributions do, without frame pointers.
func compileAsShipped(t *testing.T, source string) string {
	t.Helper()
	return igtest.Compile(t, source, "gcc", "-O2", "-fomit-frame-pointer")
}

func compileGo(t *testing.T, pkg, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	igtest.Output(t, "go", "build", "-buildvcs=false", "-o", program, pkg)
	return program
}

// process is a program that runs until its standard input or its work ends.
type process struct {
	cmd   *exec.Cmd
	pid   int
	stdin io.WriteCloser
	out   *bufio.Reader
	rest  string
}

// start starts a program, which ends with the test at the latest.
func start(t *testing.T, program string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stderr = os.Stderr
	// The scheduler first divides CPU time between sessions. In its own session, the program also runs and gets sampled on a busy
	// machine.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{cmd: cmd, pid: cmd.Process.Pid, stdin: stdin, out: bufio.NewReader(out)}
	t.Cleanup(func() { p.stop(t) })
	return p
}

// next writes a line to the program, which then continues.
func (p *process) next(t *testing.T) {
	t.Helper()
	_, err := io.WriteString(p.stdin, "\n")
	require.NoError(t, err)
}

// line reads a line that the program prints.
func (p *process) line(t *testing.T) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(t, err)
	return line
}

// stop ends the program, and returns its CPU time and its last output. Callers can call it several times.
func (p *process) stop(t *testing.T) (cpu time.Duration, printed string) {
	t.Helper()
	if p.cmd.ProcessState == nil {
		require.NoError(t, p.stdin.Close())
		rest, err := io.ReadAll(p.out)
		require.NoError(t, err)
		require.NoError(t, p.cmd.Wait())
		p.rest = string(rest)
	}
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime(), p.rest
}
