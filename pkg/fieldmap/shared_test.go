package fieldmap

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// TestPlansShareStacks checks that Plans for several exporters read a row's stack once, with the same result as separate Plans.
func TestPlansShareStacks(t *testing.T) {
	s := idGadget(t, idMetadata)
	names := &functions{}
	o := idOptions(t, nil)
	o.Names = names
	first := compile(t, s, o)
	o.First = first
	o.Exporter.Attributes = []config.KeyValue{{Key: "thread.name", Value: "drop"}}
	second := compile(t, s, o)
	o.Exporter.Attributes = nil
	third := compile(t, s, o)
	require.False(t, second.SameKeys(first))
	require.True(t, third.SameKeys(first))

	d := s.row(idRow())
	key := first.StackKey(d)
	res, row := first.KeysOf(d, key)
	wantRes, wantRow := first.Keys(d)
	require.Equal(t, []uint64{wantRes, wantRow}, []uint64{res, row})
	other := idRow()
	other["proc.comm"] = "another"
	e := s.row(other)
	_, changed := first.KeysOf(e, first.StackKey(e))
	require.NotEqual(t, row, changed)
	_, a := second.KeysOf(d, key)
	_, b := second.KeysOf(e, first.StackKey(e))
	require.Equal(t, a, b, "the name of the thread is not part of it")

	var st Stack
	got := first.SampleOf(d, &st)
	require.Equal(t, profile.Incomplete, got.Fate, "main.main is called by another")
	want := slices.Clone(got.Stack)
	require.Equal(t, "main.work", want[1].Name)
	require.Equal(t, 1, names.n)
	for _, p := range []*Plan{second, third} {
		got := p.SampleOf(d, &st)
		require.Equal(t, want, got.Stack)
	}
	require.Equal(t, 1, names.n, "functions are named once")

	// This Plan exports kernel addresses as offsets.
	o.Exporter.KernelAddresses = "offset"
	fourth := compile(t, s, o)
	got = fourth.SampleOf(d, &st)
	require.NotEqual(t, want[0].Address, got.Stack[0].Address)
	require.Equal(t, want[1:], got.Stack[1:])
}
