package polyglot

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// Samples of a container's first seconds and of Java's own threads are separate, and none is lost between the parts.
func TestPartsOf(t *testing.T) {
	begin := time.Unix(1000, 0)
	sample := func(after time.Duration, thread string, n int64) receiver.Sample {
		return receiver.Sample{Start: begin.Add(after), Values: []int64{n}, Attributes: map[string]string{"thread.name": thread}}
	}
	samples := []receiver.Sample{
		sample(warmUp, "java", 64), sample(2*time.Second, "java", 1), sample(warmUp-1, "java", 2), sample(0, "C2 CompilerThre", 4),
		sample(time.Minute, "GC Thread#0", 8), sample(time.Minute, "java", 16), sample(time.Minute, "Signal Dispatch", 32),
	}
	sums := func(l loads.Load) [3]int64 {
		p := partsOf(samples, l)
		return [3]int64{igtest.Total(p.early), igtest.Total(p.runtime), igtest.Total(p.rest)}
	}
	require.Equal(t, [3]int64{3, 44, 80}, sums(loads.Load{FrameType: "jvm"}))
	require.Equal(t, [3]int64{7, 0, 120}, sums(loads.Load{FrameType: "native"}))
	require.Equal(t, guestParts{}, partsOf(nil, loads.Load{}))
}
