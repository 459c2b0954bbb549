//go:build e2e

package polyglot

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestSeveralIGs runs a daemon and a separate "ig". Each has its own unwinder, and they must not disturb each other.
func TestSeveralIGs(t *testing.T) {
	running := startLoads(t, find(t, "c-fp", "python"))
	d := startDaemon(t)
	d.attach("profile_cpu", nil)
	d.arrived("samples")
	first := d.unwinderPID()
	byHand := startRun(t, igtest.Import(t, "profile_cpu"), "--unwind=whole")
	require.True(t, byHand.wait("samples of the separate ig", 3*time.Minute, func() bool { return byHand.receiver.Stats().Samples > 0 }))
	since := time.Now()
	of := func(r *gadgetRun) bool {
		for _, p := range running {
			if r.counted(p.PID, since) < 200 {
				return false
			}
		}
		return true
	}
	require.True(t, d.wait("samples of both", 5*time.Minute, func() bool { return of(d.gadgetRun) && of(byHand) }))
	second := byHand.unwinderPID()
	require.NotZero(t, second)
	require.NotEqual(t, first, second)
	t.Logf("memory of the unwinders: %d MiB in the daemon, %d MiB in the separate ig; the daemon's kernel memory is %.0f MiB", igtest.Resident(first)>>20, igtest.Resident(second)>>20,
		d.metric("ig_otel_profiles_unwinder_memory_bytes", `where="kernel"`)/(1<<20))
	samples := byHand.stop()
	t.Logf("%s", byHand.log)
	require.NoError(t, readClosingLines(t, byHand.log.String()).Check(igtest.Total(samples)))
	require.Equal(t, first, d.unwinderPID(), "the daemon's unwinder has ended with the other")
	require.Zero(t, d.metric("ig_otel_profiles_unwinder_restarts_total"))
	since = time.Now()
	require.True(t, d.wait("more samples", time.Minute, func() bool { return of(d.gadgetRun) }))
	d.stop()
}
