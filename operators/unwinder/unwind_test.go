package unwinder

import (
	"io"
	"testing"

	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/metrics"
	"github.com/sirupsen/logrus"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// runs returns the metric of runs by the kind of their stacks.
func runs(t *testing.T, reader *sdkmetric.ManualReader) map[string]int64 {
	t.Helper()
	var found metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &found))
	by := map[string]int64{}
	for _, scope := range found.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != "ig_otel_profiles_unwinder_runs" {
				continue
			}
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				way, _ := p.Attributes.Value("stacks")
				by[way.AsString()] = p.Value
			}
		}
	}
	return by
}

// TestWays requires that, without whole stacks, "auto" (the default) uses frame pointers, and "whole" fails. A metric shows the
// kind.
func TestWays(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	require.NoError(t, metrics.RegisterProvider(provider))
	defer metrics.UnregisterProvider(provider)
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
			require.EqualValues(t, 1, runs(t, reader)[tt.way])
			require.NoError(t, i.(*unwindInstance).Close(ctx))
			require.Zero(t, runs(t, reader)[tt.way])
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
