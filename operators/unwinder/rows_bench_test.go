package unwinder

import (
	"context"
	"fmt"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource/compat"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// second is what a machine with two busy CPUs has in a second: samples of a few threads, of which some have the same stack.
func second(samples, different int) []wire.Sample {
	var stacks []*wire.Stack
	mapping := &wire.Mapping{File: &wire.File{Name: "program", Path: "/usr/bin/program"}}
	for i := range different {
		s := &wire.Stack{ID: uint64(i + 1)}
		for f := range 20 {
			s.Frames = append(s.Frames, &wire.Frame{Type: wire.FrameNative, Address: uint64(i*100 + f), Mapping: mapping})
		}
		stacks = append(stacks, s)
	}
	var list []wire.Sample
	for i := range samples {
		list = append(list, wire.Sample{
			Stack: stacks[i%different], Proc: &wire.Proc{PID: uint32(i%4 + 1), Start: 1, MntNS: 4026531840}, Comm: fmt.Sprint("thread", i%4), Count: 1,
		})
	}
	return list
}

// BenchmarkRows is a second's rows, with the fields that Inspektor Gadget adds.
func BenchmarkRows(b *testing.B) {
	gadgetCtx := gadgetcontext.New(context.Background(), "image")
	r := &rows{}
	require.NoError(b, r.register(gadgetCtx, 49))
	_, err := compat.GetEventWrappers(gadgetCtx)
	require.NoError(b, err)
	require.NoError(b, r.ds.SubscribeArray(func(_ datasource.DataSource, _ datasource.DataArray) error { return nil }, 100))
	samples := second(98, 60)
	b.ReportAllocs()
	for b.Loop() {
		for i := range samples {
			r.add(&samples[i], 1)
		}
		if _, err := r.emit(); err != nil {
			b.Fatal(err)
		}
	}
}
