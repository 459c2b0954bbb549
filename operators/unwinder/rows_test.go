package unwinder

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// registered registers rows, and calls each with every row that they hand on: its text fields by name, and its samples.
func registered(t *testing.T, r *rows, each func(row map[string]string, samples uint64)) *rows {
	t.Helper()
	require.NoError(t, r.register(gadgetcontext.New(t.Context(), "image"), 19))
	require.NoError(t, r.ds.Subscribe(func(ds datasource.DataSource, d datasource.Data) error {
		row := map[string]string{}
		for _, name := range []string{"proc.comm", "stack", "trace_id", "span_id", "label.tenant", "label.route"} {
			if field := ds.GetField(name); field != nil {
				row[name], _ = field.String(d)
			}
		}
		n, err := r.samples.Uint64(d)
		each(row, n)
		return err
	}, 100))
	return r
}

// oneFrame is a stack.
var oneFrame = &wire.Stack{ID: 7, Frames: []*wire.Frame{{Type: wire.FrameGo, Function: "main.main"}}}

// Samples are one row if all that a row shows is the same.
func TestRowsAddUp(t *testing.T) {
	sums := map[string]uint64{}
	r := registered(t, &rows{text: true, said: sayings{labels: []string{"tenant", "route"}}}, func(row map[string]string, samples uint64) {
		sums[fmt.Sprint(row["proc.comm"], "|", row["label.tenant"], "|", row["label.route"], "|", row["stack"])] += samples
	})
	add := func(comm string, n uint64, labels ...wire.Label) {
		require.True(t, r.add(&wire.Sample{Stack: oneFrame, Proc: &wire.Proc{PID: 1}, Comm: comm, Said: wire.Said{Labels: labels}}, n))
	}
	add("a", 1)
	add("a", 2)
	add("b", 4)
	add("a", 8, wire.Label{Key: "tenant", Value: "x"})
	add("a", 16, wire.Label{Key: "route", Value: "x"}, wire.Label{Key: "other", Value: "y"})
	total, err := r.emit()
	require.NoError(t, err)
	require.EqualValues(t, 31, total)
	want := map[string]uint64{"a|||main.main; ": 3, "b|||main.main; ": 4, "a|x||main.main; ": 8, "a||x|main.main; ": 16}
	require.Equal(t, want, sums)
	total, err = r.emit()
	require.NoError(t, err)
	require.Zero(t, total)
	require.Equal(t, want, sums, "once")
}

// A second may have so many spans. A sample beyond keeps its place, and one of a known span its span; the next second begins
// with none.
func TestRowsOfSpans(t *testing.T) {
	unlinked, linked := uint64(0), map[string]uint64{}
	r := registered(t, &rows{said: sayings{spans: true}}, func(row map[string]string, samples uint64) {
		if row["span_id"] == "" {
			unlinked += samples
		} else {
			linked[row["trace_id"][:2]+row["span_id"]] += samples
		}
	})
	add := func(span uint64) {
		s := wire.Sample{Stack: oneFrame, Proc: &wire.Proc{PID: 1}, Said: wire.Said{TraceID: [16]byte{0xab}}}
		binary.BigEndian.PutUint64(s.SpanID[:], span)
		require.True(t, r.add(&s, 1))
	}
	for span := range uint64(maxSpans + 5) {
		add(span + 1)
	}
	add(1)
	require.True(t, r.add(&wire.Sample{Stack: oneFrame, Proc: &wire.Proc{PID: 1}}, 1))
	_, err := r.emit()
	require.NoError(t, err)
	require.EqualValues(t, 6, unlinked)
	require.EqualValues(t, 5, r.said.unlinked, "a sample without a span lacks none")
	require.Len(t, linked, maxSpans)
	require.EqualValues(t, 2, linked["ab0000000000000001"])
	add(maxSpans + 5)
	_, err = r.emit()
	require.NoError(t, err)
	require.EqualValues(t, 1, linked[fmt.Sprintf("ab%016x", maxSpans+5)])
}

// A second may have so many rows.
func TestRowsBounded(t *testing.T) {
	r := registered(t, &rows{}, func(map[string]string, uint64) {})
	sample := func(pid uint32) *wire.Sample {
		return &wire.Sample{Stack: oneFrame, Proc: &wire.Proc{PID: pid}, Comm: fmt.Sprint(pid)}
	}
	first := sample(0)
	require.True(t, r.add(first, 1))
	for pid := range uint32(maxRows - 1) {
		require.True(t, r.add(sample(pid+1), 1))
	}
	require.False(t, r.add(sample(maxRows), 1))
	require.True(t, r.add(first, 1), "it has a row")
}

// What a backend gets of a stack: the kernel's functions first, no address that means something in the process alone.
func TestFramesOfRows(t *testing.T) {
	file := &wire.File{Name: "app", Path: "/opt/app", GNUBuildID: "0af1"}
	s := &wire.Stack{ID: 3, Frames: []*wire.Frame{
		{Type: wire.FrameKernel, Function: "vfs_read"}, {Type: wire.FrameKernel},
		{Type: wire.FramePython, Function: "hash_orders", File: "orders.py", Line: 12, Address: 5},
		{Type: wire.FrameNative, Address: 0x1234, Mapping: &wire.Mapping{File: file}},
		{Type: wire.FrameNative, Address: 0x7f0000001234},
	}}
	r := registered(t, &rows{}, func(map[string]string, uint64) {})
	r.stacks[s.ID] = s
	frames, outcome, pending := r.Frames(nil, s.ID)
	require.Equal(t, stack.OK, outcome)
	require.False(t, pending)
	require.Len(t, frames, 5)
	require.Equal(t, "vfs_read", frames[0].Name)
	require.Equal(t, stack.Unknown, frames[1].Name)
	require.Equal(t, []profile.Frame{
		{Name: "hash_orders", File: "orders.py", Line: 12, Type: "cpython"},
		{Type: profile.FrameNative, Address: 0x1234, Mapping: profile.Mapping{File: "/opt/app", GNUBuildID: "0af1", HTLHash: file.HashText()}},
		{Name: stack.Unknown, Type: profile.FrameNative},
	}, frames[2:])
	require.Equal(t, []string{"vfs_read", stack.Unknown, "hash_orders", "app+0x1234", stack.Unknown, ""}, strings.Split(r.format(s), "; "))
	r.userOnly = true
	frames, _, _ = r.Frames(nil, s.ID)
	require.Len(t, frames, 3, "without the kernel's")
	require.Equal(t, "hash_orders", frames[0].Name)
	s.Abort = 4012
	_, outcome, _ = r.Frames(nil, s.ID)
	require.Equal(t, stack.Truncated, outcome)
	_, outcome, _ = r.Frames(nil, 4)
	require.Equal(t, stack.Lost, outcome)
}
