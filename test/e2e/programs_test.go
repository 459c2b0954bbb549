//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

const igModule = "github.com/inspektor-gadget/inspektor-gadget"

// compileC compiles a program of testdata such that its stacks can be unwound.
func compileC(t *testing.T, source, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	igtest.Output(t, "clang", "-O0", "-fno-omit-frame-pointer", "-Wall", "-Werror", "-o", program, filepath.Join("testdata", source))
	return program
}

func compileGo(t *testing.T, pkg, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	igtest.Output(t, "go", "build", "-buildvcs=false", "-o", program, pkg)
	return program
}

// busy is a program that runs until its standard input ends.
type busy struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// startBusy starts a program and returns it. It ends with the test at the latest.
func startBusy(t *testing.T, program string) *busy {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Stderr = os.Stderr
	// The scheduler shares CPUs between sessions first: one of its own has the
	// program run, and be sampled, where much else runs.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	b := &busy{cmd, stdin}
	t.Cleanup(func() { b.stop(t) })
	return b
}

// taken returns the CPU time that the program has taken so far, to a hundredth of a second.
func (b *busy) taken(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.cmd.Process.Pid))
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	require.Greater(t, len(fields), 12)
	var user, system int64 // proc(5): fields 14 and 15
	_, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	require.NoError(t, err)
	return time.Duration(user+system) * (time.Second / 100)
}

// stop ends the program and returns the CPU time that it took. It may be called
// more than once.
func (b *busy) stop(t *testing.T) time.Duration {
	t.Helper()
	if b.cmd.ProcessState == nil {
		require.NoError(t, b.stdin.Close())
		require.NoError(t, b.cmd.Wait())
	}
	return b.cmd.ProcessState.UserTime() + b.cmd.ProcessState.SystemTime()
}

// startCollector starts a Collector that writes what it gets to a file.
func startCollector(t *testing.T) *collectortest.Collector {
	t.Helper()
	c := collectortest.New(t, "")
	c.Start()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the Collector said:\n%s", c.Log())
		}
	})
	return c
}

// received ends the Collector and returns what it has written.
func received(t *testing.T, c *collectortest.Collector) []receiver.Sample {
	t.Helper()
	c.Stop()
	requests := c.Received()
	var samples []receiver.Sample
	for _, req := range requests {
		samples = append(samples, receiver.Resolve(req)...)
	}
	t.Logf("the Collector wrote %d requests with %d samples", len(requests), len(samples))
	return samples
}

// igCommand returns a command that runs the built ig.
func igCommand(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return igrun.Command(ctx, igtest.Built(t, igtest.Bin, "ig"), args...)
}

// buildUpstream builds a gadget from Inspektor Gadget's own sources, as they are
// in its Go module.
func buildUpstream(t *testing.T, name string) string {
	t.Helper()
	module := igtest.Output(t, "go", "list", "-m", "-f", "{{.Dir}}", igModule)
	image := "upstream-" + name + ":dev"
	igtest.Output(t, igtest.Built(t, igtest.Bin, "ig"), "image", "build", "--local", "-t", image, filepath.Join(module, "gadgets", name))
	return image
}
