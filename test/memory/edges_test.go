//go:build e2e

package memory

import (
	"io"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// TestEdges has allocations that are easily lost: by a thread that has not used the next page of its stack yet, and of more bytes than
// 32 bits can count. All are larger than the step, so that each is drawn.
func TestEdges(t *testing.T) {
	igtest.NeedRoot(t)
	rcv, err := receiver.Start(receiver.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, rcv.Close()) }()
	c := start(t, plan{program: compile(t, "gcc", "-O2", "-fomit-frame-pointer", "-Wall", "-Werror", "-Wl,-z,now", source("edges.c"))})
	ig := profile(t, rcv, "the first probes are attached", "--pid="+strconv.Itoa(c.cmd.Process.Pid))
	_, err = io.WriteString(c.in, "\n")
	require.NoError(t, err)
	line, err := c.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "allocated\n", line)
	ig.stop(t)
	for function, own := range map[string]count{"allocate_at_page_end": {100 << 20, 100}, "allocate_gigabytes": {4 * 15 << 30, 4}} {
		t.Run(function, func(t *testing.T) {
			require.Equal(t, own.bytes, total(through(rcv.Samples(), "alloc_space", function)))
			require.Equal(t, own.calls, total(through(rcv.Samples(), "alloc_objects", function)))
		})
	}
	readBooks(t, ig.log.String())
}
