//go:build e2e

package locks

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// seconds is how long the threads contend. sampleTime is the value of --sample-time. Most waits are longer, so each of them is
// sampled. TestLock of test/e2e uses the gadget's defaults, and checks addresses.
const (
	seconds    = 8
	sampleTime = 2000000
)

func byKind(samples []receiver.Sample) map[string]int64 {
	sums := map[string]int64{}
	for _, s := range samples {
		sums[s.Attributes["lock.kind"]] += s.Total()
	}
	return sums
}

// TestAllFutex requires that the thread pool's waits have the kind user_futex.
func TestAllFutex(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	r := profile(t, "--all-futex", "--sample-time="+strconv.Itoa(sampleTime))
	delays := igtest.Typed(r.samples, "delay")
	pool := append(igtest.Through(delays, "wait_for_work"), igtest.Through(delays, "wait_for_job")...)
	kinds := byKind(pool)
	// If the stacks exceed a CPU's budget, some are cut below the waiting function, but keep their value.
	cut := byKind(slices.DeleteFunc(slices.Clone(delays), func(s receiver.Sample) bool {
		return whole(s) || slices.ContainsFunc([]string{"wait_for_work", "wait_for_job", "take_mutex"}, func(name string) bool { return igtest.Depth(s, name) >= 0 })
	}))
	t.Logf("%.1f s of the pool, by kind: %v; in stacks that were cut: %v", float64(igtest.Total(pool))/1e9, kinds, cut)
	// The sums exclude waits that are unfinished at the end of the run.
	require.Greater(t, kinds["user_futex"]+cut["user_futex"], int64(80*seconds*1e9))
	require.Less(t, 2*cut["user_futex"], kinds["user_futex"])
	require.Greater(t, 100*kinds["user_futex"], 99*igtest.Total(pool))
	named := byKind(igtest.Through(delays, "take_mutex"))["user_mutex"]
	t.Logf("take_mutex: %d ns, %d ns of mutexes in stacks that were cut; its own %d ns", named, cut["user_mutex"], r.truth["take_mutex"].Sum)
	require.Less(t, 100*named, 105*r.truth["take_mutex"].Sum)
	require.Greater(t, 100*(named+cut["user_mutex"]), 95*r.truth["take_mutex"].Sum)
	require.Less(t, 2*cut["user_mutex"], named)
	require.Zero(t, r.captured.Other)
}

// TestWithoutKernelLocks requires that only the program's own locks appear.
func TestWithoutKernelLocks(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	r := profile(t, "--kernel-locks=false", "--sample-time="+strconv.Itoa(sampleTime))
	delays := igtest.Typed(r.samples, "delay")
	require.Empty(t, igtest.Through(delays, "count_pipe"))
	for kind := range byKind(delays) {
		require.True(t, strings.HasPrefix(kind, "user_"), kind)
	}
	require.InEpsilon(t, r.truth["take_mutex"].Sum, igtest.Total(igtest.Through(delays, "take_mutex")), 0.05)
}
