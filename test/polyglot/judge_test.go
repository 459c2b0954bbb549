package polyglot

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

func named(names ...string) []receiver.Frame {
	var stack []receiver.Frame
	for _, n := range names {
		stack = append(stack, receiver.Frame{Name: n})
	}
	return stack
}

func TestJudge(t *testing.T) {
	load, err := loads.Find("c")
	require.NoError(t, err)
	j := &judge{load: load, entries: []span{{"c", "_start", 0x1000, 0x1040}}, functions: []span{{"c", "light", 0x2000, 0x2100}}}
	sample := func(n int64, stack []receiver.Frame) receiver.Sample {
		return receiver.Sample{Stack: stack, Values: []int64{n}}
	}
	kernel := receiver.Frame{Name: "main", Type: "kernel"}
	v := j.judge([]receiver.Sample{
		sample(60, named("heavy", "work", "step", "run", "main", "_start")), // all there
		sample(20, named("light", "step", "run", "main")),                   // a caller is missing
		sample(8, []receiver.Frame{{Mapping: "/x/c", Address: 0x2010}}),     // by address, at the end of the stack
		sample(2, []receiver.Frame{{Mapping: "/x/c", Address: 0x2100}, {Mapping: "/x/c", Address: 0x1020}}),
		sample(9, append([]receiver.Frame{kernel}, named("rest")...)), // a function of the kernel is not an entry
		sample(1, []receiver.Frame{kernel}),
	})
	require.EqualValues(t, 100, v.samples)
	require.EqualValues(t, 82, v.complete)
	require.EqualValues(t, 89, v.named)
	require.EqualValues(t, 60, v.chained)
	require.Equal(t, map[string]int64{"heavy": 60, "light": 28, "rest": 9}, v.at)
	require.Equal(t, map[string]int64{"c+0x2010": 8, "rest": 9, "[no user stack]": 1}, v.outermost)
	require.InDelta(t, 100*60/97.0-60, v.off(), 1)

	empty := j.judge(nil)
	require.Equal(t, "-", empty.shares().String())
	require.InDelta(t, 60, empty.off(), 0)
}

// A function of an interpreter only counts as placed with type, file and line.
func TestJudgePlaced(t *testing.T) {
	load, err := loads.Find("python")
	require.NoError(t, err)
	frame := receiver.Frame{Name: "heavy", Type: "cpython", File: "load.py", Line: 3}
	other, nowhere, lost := frame, frame, frame
	other.Type, nowhere.File, lost.Line = "native", "", 0
	var samples []receiver.Sample
	for i, f := range []receiver.Frame{frame, other, nowhere, lost} {
		samples = append(samples, receiver.Sample{Stack: []receiver.Frame{f}, Values: []int64{1 << i}})
	}
	v := (&judge{load: load}).judge(samples)
	require.EqualValues(t, 15, v.named)
	require.EqualValues(t, 1, v.placed)
}
