package unwinder

import (
	"io"
	"testing"
	"time"

	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/sirupsen/logrus"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/metrictest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// TestMetrics requires that each count reaches its own metric, as the difference since the last report.
func TestMetrics(t *testing.T) {
	sums := metrictest.Sums(t)

	totals := func(n uint64) unwinder.Totals {
		s := wire.Stats{Taken: 2 * n, Full: 3 * n, Failed: 4 * n, Idle: 5 * n, KernelLost: 6 * n, KernelMemory: 10 * n, Aborts: map[uint32]uint64{3: 11 * n, 4: 100}}
		s.Languages[wire.FrameJVM] = wire.Language{Frames: 12 * n, Expected: 1, Missing: 1}
		return unwinder.Totals{Stats: s, Crashed: 7 * n, Restarts: 8 * n, Away: time.Duration(n) * time.Second / 2, Memory: 9 * n}
	}
	var r reporter
	for n := uint64(1); n <= 10; n += 9 {
		r.report(totals(n))
	}
	run := func(n uint64) (t unwindTotals) {
		t.results[wire.ResultDone], t.results[wire.ResultBusy] = unwindCount{2 * n, 20 * n}, unwindCount{3 * n, 30 * n}
		t.lost, t.lostValue, t.full, t.fullValue = 4*n, 40*n, 5*n, 50*n
		t.elsewhere, t.missed, t.others = unwindCount{6 * n, 60 * n}, 7*n, 8*n
		return t
	}
	now := run(10)
	now.report(run(1), "bytes")

	for _, tt := range []struct {
		metric, by string
		want       map[string]float64
	}{
		{"samples", "", map[string]float64{"": 20}},
		{"samples_dropped", "reason", map[string]float64{"full": 30, "failed": 40, "empty": 50, "kernel": 60, "crash": 70}},
		{"stacks_incomplete", "reason", map[string]float64{unwinder.Reason(3): 110, unwinder.Reason(4): 100}},
		{"samples_by_language", "language", map[string]float64{wire.FrameJVM.String(): 120}},
		{"restarts", "", map[string]float64{"": 80}},
		{"away", "", map[string]float64{"": 5}},
		{"memory", "where", map[string]float64{"process": 90, "kernel": 100}},
		{"events", "result", map[string]float64{"unwound": 18, "busy": 27, "lost": 81, "container": 54, "skipped": 63, "other_event": 72}},
		{"events_value", "result", map[string]float64{"unwound": 180, "busy": 270, "lost": 810, "container": 540, "skipped": 0, "other_event": 72}},
		{"events_value", "unit", map[string]float64{"bytes": 1872}},
	} {
		require.Equal(t, tt.want, sums("ig_otel_profiles_unwinder_"+tt.metric, tt.by), tt.metric)
	}
	r.report(totals(1))
	require.Equal(t, map[string]float64{"process": 9, "kernel": 10}, sums("ig_otel_profiles_unwinder_memory", "where"), "memory can shrink")

	later := now.since(run(1))
	require.Equal(t, unwindCount{18, 180}, later.results[wire.ResultDone])
	require.Equal(t, []uint64{36, 360, 72}, []uint64{later.lost, later.lostValue, later.others})
}

// TestWays requires that, without whole stacks, "auto" (the default) uses frame pointers, and "whole" fails. A metric shows the
// kind.
func TestWays(t *testing.T) {
	sums := metrictest.Sums(t)
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	op := unwindOperator{&operator{broker: unwinder.New(quiet)}}
	for _, tt := range []struct{ how, way, refused string }{
		{"", "frame-pointers", ""},
		{"auto", "frame-pointers", ""},
		{"frame-pointers", "frame-pointers", ""},
		{"whole", "", "--unwind=whole: the gadget has no map \"rows\""},
	} {
		t.Run(tt.how, func(t *testing.T) {
			ctx := gadgetcontext.New(t.Context(), "gadget")
			config := viper.New()
			config.Set("operator.unwind.source", "waits")
			ctx.SetVar("config", config)
			values := api.ParamValues{}
			for _, p := range op.InstanceParams() {
				values[p.Key] = p.DefaultValue
			}
			values[ParamUnwind] = tt.how
			i, err := op.InstantiateDataOperator(ctx, values)
			require.NoError(t, err)
			err = i.(*unwindInstance).PreStart(ctx)
			if tt.refused != "" {
				require.EqualError(t, err, tt.refused)
				return
			}
			require.NoError(t, err)
			require.EqualValues(t, 1, sums("ig_otel_profiles_unwinder_runs", "stacks")[tt.way])
			require.NoError(t, i.(*unwindInstance).Close(ctx))
			require.Zero(t, sums("ig_otel_profiles_unwinder_runs", "stacks")[tt.way])
		})
	}
	_, err := op.InstantiateDataOperator(gadgetcontext.New(t.Context(), "gadget"), api.ParamValues{ParamUnwind: "all"})
	require.NoError(t, err, "a gadget without the section")
}

// TestCutAbove requires that kernel frames up to the fault handler are omitted.
func TestCutAbove(t *testing.T) {
	frame := func(typ wire.FrameType, function string) *wire.Frame {
		return &wire.Frame{Type: typ, Function: function}
	}
	handler := frame(wire.FrameKernel, "asm_exc_page_fault")
	copying, main := frame(wire.FrameKernel, "copy_to_iter"), frame(wire.FrameNative, "main")
	s := &wire.Stack{ID: 7, Abort: 3, Frames: []*wire.Frame{frame(wire.FrameKernel, "bpf_trace_run3"), handler, copying, main}}
	require.Equal(t, &wire.Stack{ID: 7, Abort: 3, Frames: []*wire.Frame{copying, main}}, cutAbove(s, []string{"other", "asm_exc_page_fault"}))
	require.Len(t, s.Frames, 4, "others have it, too")
	require.Same(t, s, cutAbove(s, nil))
	named := &wire.Stack{Frames: []*wire.Frame{frame(wire.FrameNative, "asm_exc_page_fault"), main}}
	require.Same(t, named, cutAbove(named, []string{"asm_exc_page_fault"}), "a program's function of that name")
}
