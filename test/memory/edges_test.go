//go:build e2e

package memory

import (
	"io"
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
	ig := profile(t, rcv, "the first probes are attached", "--pid="+strconv.Itoa(c.cmd.Process.Pid))
	_, err := io.WriteString(c.in, "\n")
	require.NoError(t, err)
	line, err := c.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "allocated\n", line)
	ig.Stop()
	for function, own := range map[string]count{"allocate_at_page_end": {100 << 20, 100}, "allocate_gigabytes": {4 * 15 << 30, 4}} {
		t.Run(function, func(t *testing.T) {
			require.Equal(t, own.bytes, igtest.Total(through(rcv.Samples(), "alloc_space", function)))
			require.Equal(t, own.calls, igtest.Total(through(rcv.Samples(), "alloc_objects", function)))
		})
	}
	readCaptured(t, ig.Log.String())
}
