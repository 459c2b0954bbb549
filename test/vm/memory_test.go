package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// count is a line in the report of guest/allocate.c.
type count struct{ sum, calls int64 }

func readCounts(t *testing.T, path string) map[string]count {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	counts := map[string]count{}
	for line := range strings.Lines(string(data)) {
		var name string
		var b count
		n, _ := fmt.Sscan(line, &name, &b.sum, &b.calls) // some lines have one number
		require.GreaterOrEqual(t, n, 2, line)
		counts[name] = b
	}
	return counts
}

// TestMemoryAndLocks profiles allocations and lock waits in two of three containers of the same image. One of the two starts
// later. The third container must not appear, and must never have a probe.
func TestMemoryAndLocks(t *testing.T) {
	out := filepath.Join(results(t, "VM_OUT"), "memory")
	samples := map[string][]receiver.Sample{} // by container ID
	for _, s := range readSamples(t, out) {
		samples[s.Resource["container.id"]] = append(samples[s.Resource["container.id"]], s)
	}
	containers := readContainers(t, filepath.Join(out, "containers"))
	require.Len(t, containers, 3)
	for _, c := range containers {
		t.Run(c.name, func(t *testing.T) {
			counts := readCounts(t, filepath.Join(out, "counts", c.name))
			of := samples[c.id]
			delete(samples, c.id)
			require.Positive(t, counts["take_mutex"].sum, "it has made no rounds")
			require.Zero(t, counts["probed-at-the-end"].sum, "a probe has outlived the gadget")
			if strings.HasPrefix(c.kind, "not") {
				t.Logf("%s: %d rounds, %d of them with a probe; %d samples", c.name, counts["rounds"].sum, counts["probed"].sum, len(of))
				require.Zero(t, counts["probed"].sum, "another container has probes")
				require.Empty(t, of)
				return
			}
			for _, s := range of {
				for key, value := range c.expected() {
					require.Equal(t, value, s.Resource[key], key)
				}
			}
			t.Logf("%s: %d rounds, %d of them with a probe", c.name, counts["rounds"].sum, counts["probed"].sum)
			much, little := counts["allocate_much"], counts["allocate_little"]
			bytes, calls := igtest.Total(igtest.Typed(of, "alloc_space")), igtest.Total(igtest.Typed(of, "alloc_objects"))
			t.Logf("%d bytes in %d allocations; its own %d in %d", bytes, calls, much.sum+little.sum, much.calls+little.calls)
			// The probes are attached before the first allocation that counts, and until after the last.
			require.InEpsilon(t, much.sum+little.sum, bytes, 0.25)
			require.InEpsilon(t, much.calls+little.calls, calls, 0.25)
			// Names are read asynchronously, so the first samples can lack them.
			through := func(kind, function string) int64 {
				return igtest.Total(igtest.Through(igtest.Typed(of, kind), function))
			}
			m, l := through("alloc_space", "allocate_much"), through("alloc_space", "allocate_little")
			t.Logf("of these, %d by allocate_much and %d by allocate_little", m, l)
			require.InDelta(t, 75, 100*float64(m)/float64(m+l), 5, "percent of allocate_much")
			delay, contentions := through("delay", "take_mutex"), through("contentions", "take_mutex")
			own := counts["take_mutex"]
			t.Logf("take_mutex: %d ns in %d waits while profile_lock ran; its own %d in %d since it began", delay, contentions, own.sum, own.calls)
			require.Positive(t, contentions)
			require.Positive(t, delay)
			require.LessOrEqual(t, delay, own.sum)
		})
	}
	require.Empty(t, samples, "of a process that was not selected")
}
