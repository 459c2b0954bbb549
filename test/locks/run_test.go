//go:build e2e

package locks

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// run is one run of the gadget on the program in testdata/locks.c.
type run struct {
	truth    map[string]waits
	samples  []receiver.Sample
	captured igtest.Captured
}

// profile runs the gadget on the program. The threads begin to contend once a wait of the warm-up has arrived with its
// functions. From then on, the gadget sees all waits.
func profile(t *testing.T, flags ...string) *run {
	t.Helper()
	program := exec.CommandContext(t.Context(), igtest.Compile(t, "testdata/locks.c", "gcc", "-O2", "-fomit-frame-pointer"), strconv.Itoa(seconds))
	// The scheduler first divides CPU time between sessions.
	program.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	program.Stderr = os.Stderr
	stdin, err := program.StdinPipe()
	require.NoError(t, err)
	out, err := program.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, program.Start())
	waited := false
	defer func() {
		if !waited {
			_ = program.Process.Kill()
			_ = program.Wait()
		}
	}()

	rcv := igtest.Receiver(t)
	flags = append(igtest.ExportTo(rcv), flags...)
	ig := igtest.Start(t, igtest.Import(t, "profile_lock"), append(flags, "--pid="+strconv.Itoa(program.Process.Pid))...)
	ig.Wait("a wait of the warm-up", func() bool { return len(igtest.Through(rcv.Samples(), "take_warmup")) > 0 })
	_, err = stdin.Write([]byte("\n"))
	require.NoError(t, err)
	var own bytes.Buffer
	_, err = bufio.NewReader(out).WriteTo(&own)
	require.NoError(t, err)
	require.NoError(t, program.Wait())
	waited = true
	ig.Stop()

	r := &run{samples: rcv.Samples(), captured: igtest.ReadCaptured(t, ig.Log.String())}
	r.truth, err = parseTruth(own.String())
	require.NoError(t, err)
	require.Greater(t, r.captured.Events, r.captured.Sampled, "short waits are drawn")
	require.Less(t, 100*r.captured.Lost, r.captured.Sampled)
	findings := rcv.Findings()
	for _, req := range rcv.Requests() {
		findings = append(findings, otlpcheck.CheckKernelAddresses(req)...)
	}
	require.Empty(t, findings)
	return r
}

// whole reports whether a stack is complete.
func whole(s receiver.Sample) bool {
	return !slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool {
		return f.Name == "[truncated]" || f.Name == "[incomplete]" || f.Name == "[no stack]" || f.Name == "[lost user stack]"
	})
}
