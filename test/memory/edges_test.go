//go:build e2e

package memory

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestEdges checks allocations that are easily lost. In some, the thread has not used the next page of its stack yet. Others
// add up to more bytes than 32 bits can count. Each is larger than --sample-bytes, so each is sampled.
func TestEdges(t *testing.T) {
	igtest.NeedRoot(t)
	rcv := igtest.Receiver(t)
	c := start(t, plan{program: compile(t, "gcc", "-O2", "-fomit-frame-pointer", "-Wall", "-Werror", "-Wl,-z,now", source("edges.c"))})
	ig := profile(t, rcv, "the first probes are attached", "--pid="+strconv.Itoa(c.PID))
	c.Next()
	require.Equal(t, "allocated\n", c.Lines(1))
	ig.Stop()
	for function, own := range map[string]igtest.Truth{"allocate_at_page_end": {Sum: 100 << 20, Calls: 100}, "allocate_gigabytes": {Sum: 4 * 15 << 30, Calls: 4}} {
		t.Run(function, func(t *testing.T) {
			require.Equal(t, own.Sum, igtest.Total(through(rcv.Samples(), "alloc_space", function)))
			require.Equal(t, own.Calls, igtest.Total(through(rcv.Samples(), "alloc_objects", function)))
		})
	}
	readCaptured(t, ig.Log.String())
}
