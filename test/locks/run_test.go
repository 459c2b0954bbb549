//go:build e2e

package locks

import (
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// run is one run of the gadget on the program in testdata/locks.c.
type run struct {
	truth    map[string]igtest.Truth
	samples  []receiver.Sample
	captured igtest.Captured
}

// profile runs the gadget on the program. The threads begin to contend once a wait of the warm-up has arrived with its
// functions. From then on, the gadget sees all waits.
func profile(t *testing.T, flags ...string) *run {
	t.Helper()
	program := igtest.StartProgram(t, exec.Command(igtest.Compile(t, "testdata/locks.c", "gcc", "-O2", "-fomit-frame-pointer"), strconv.Itoa(seconds)))
	rcv := igtest.Receiver(t)
	flags = append(igtest.ExportTo(rcv), flags...)
	ig := igtest.Start(t, igtest.Import(t, "profile_lock"), append(flags, "--pid="+strconv.Itoa(program.PID))...)
	ig.Wait("a wait of the warm-up", func() bool { return len(igtest.Through(rcv.Samples(), "take_warmup")) > 0 })
	program.Next()
	truth := igtest.ReadTruth(t, program.Stop())
	ig.Stop()

	r := &run{truth, rcv.Samples(), igtest.ReadCaptured(t, ig.Log.String())}
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
