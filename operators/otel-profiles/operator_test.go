package otelprofiles_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	igconfig "github.com/inspektor-gadget/inspektor-gadget/pkg/config"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators/simple"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/backends"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/metrictest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// settings sets Inspektor Gadget's config for the test and initializes a new operator with it.
func settings(t *testing.T, yaml string) *otelprofiles.Operator {
	t.Helper()
	gadgettest.Config(t, yaml)
	op := otelprofiles.New()
	require.NoError(t, op.Init(nil))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = op.Shutdown(ctx)
	})
	return op
}

func exporter(name, endpoint, more string) string {
	return fmt.Sprintf("operator:\n  otel-profiles:\n    exporters:\n      %s:\n        exporter: otlp-grpc\n        endpoint: %q\n        insecure: true\n%s", name, endpoint, more)
}

var startReceiver = igtest.Receiver

// leaves returns the sums of the values by leaf function. It checks that every message conforms to the protocol.
func leaves(t *testing.T, r *receiver.Receiver) map[string]int64 {
	t.Helper()
	require.Empty(t, r.Findings())
	out := map[string]int64{}
	for _, s := range r.Samples() {
		for _, f := range s.Stack {
			if strings.HasPrefix(f.Name, "leaf") {
				for _, v := range s.Values {
					out[f.Name] += v
				}
			}
		}
	}
	return out
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func TestRowsFromPreStartToClose(t *testing.T) {
	for _, typ := range []datasource.Type{datasource.TypeArray, datasource.TypeSingle} {
		t.Run(fmt.Sprint("type ", typ), func(t *testing.T) {
			r := startReceiver(t)
			op := settings(t, exporter("mine", r.Addr(), ""))
			g := &gadgettest.Gadget{
				Type:     typ,
				PreStart: func(g *gadgettest.Gadget) { g.Emit("leaf_early", 1) },
				Start: func(g *gadgettest.Gadget) {
					g.Emit("leaf_a", 2)
					g.Emit("leaf_a", 3)
					g.Emit("leaf_a", 0)
					g.Context.Cancel()
				},
				PostStop: func(g *gadgettest.Gadget) { g.Emit("leaf_late", 7) },
			}
			require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))
			require.Equal(t, map[string]int64{"leaf_early": 1, "leaf_a": 5, "leaf_late": 7}, leaves(t, r), g.Log.String())
			require.Contains(t, g.Log.String(), "5 rows read, 4 exported, 1 not exported (zero_value 1), 0 without stack")
			require.Contains(t, g.Log.String(), "4 delivered, 0 held")
			require.NotContains(t, g.Log.String(), "level=warning")

			s := r.Samples()[0]
			require.Equal(t, "worker", s.Attributes["thread.name"])
			require.Equal(t, "registry.example/profile_cpu", s.Scope)

			// Rows after Close must be counted, and must do no harm.
			g.Emit("leaf_after", 1)
		})
	}
}

// Each preset's receiver must accept the preset's profiles.
func TestPresets(t *testing.T) {
	for _, preset := range config.Presets() {
		if preset == backends.Parca || preset == config.FormatHistory {
			continue // this test's receiver cannot read Parca's layout; the preset history has no receiver
		}
		t.Run(preset, func(t *testing.T) {
			r := startReceiver(t)
			op := settings(t, exporter("mine", r.Addr(), "        preset: "+preset+"\n"))
			g := &gadgettest.Gadget{
				Metadata: "programs: {profiler: {sampler: {frequency: 49}}}",
				Start:    gadgettest.Emits("leaf", 3),
			}
			require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))
			require.NotEmpty(t, r.Requests(), g.Log.String())
			for _, req := range r.Requests() {
				require.Empty(t, backends.Check(preset, req))
			}
		})
	}
}

// Elastic accepts only on-CPU samples, so the log must warn about other samples.
func TestElasticIsForCPUTime(t *testing.T) {
	for metadata, warned := range map[string]bool{"": true, "programs: {profiler: {sampler: {frequency: 49}}}": false} {
		r := startReceiver(t)
		op := settings(t, exporter("mine", r.Addr(), "        preset: elastic\n"))
		g := &gadgettest.Gadget{Metadata: metadata, Start: func(g *gadgettest.Gadget) { g.Context.Cancel() }}
		require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))
		require.Equal(t, warned, strings.Contains(g.Log.String(), "only accepts on-CPU samples"), g.Log.String())
	}
}

func TestTwoInstancesOneExporter(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), ""))
	first := &gadgettest.Gadget{Start: func(g *gadgettest.Gadget) { g.Emit("leaf_first", 1) }}
	firstDone := make(chan error, 1)
	started := make(chan struct{})
	orig := first.Start
	first.Start = func(g *gadgettest.Gadget) { orig(g); close(started) }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	gc := first.Make(ctx, op)
	go func() { firstDone <- gc.Run(gadgettest.Params("mine")) }()
	<-started

	second := &gadgettest.Gadget{Start: gadgettest.Emits("leaf_second", 2)}
	require.NoError(t, second.Make(t.Context(), op).Run(gadgettest.Params("MINE")))
	require.Equal(t, int64(2), leaves(t, r)["leaf_second"], "an instance that ends flushes its own")
	first.Emit("leaf_first", 10) // which does not affect the others

	cancel()
	require.NoError(t, <-firstDone)
	require.Equal(t, map[string]int64{"leaf_first": 11, "leaf_second": 2}, leaves(t, r))
}

func TestClientExportsNothing(t *testing.T) {
	op := settings(t, exporter("mine", "127.0.0.1:1", ""))
	inst, err := op.InstantiateDataOperator((&gadgettest.Gadget{}).Make(t.Context(), op, gadgetcontext.WithIsClient(true)), api.ParamValues{otelprofiles.ParamExporter: "mine"})
	require.NoError(t, err)
	require.Nil(t, inst)
}

// With profiles.aggregation: last, a stack's newest row counts, even if it is zero. Sampling must not multiply the value.
func TestLastRowWins(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), "        sampling: 1/1000\n"))
	g := &gadgettest.Gadget{
		Type: datasource.TypeSingle, Annotations: map[string]string{"profiles.aggregation": "last", "profiles.type": "inuse_space"},
		Start: func(g *gadgettest.Gadget) {
			g.Emit("leaf_never", 0)
			g.Emit("leaf_freed", 100)
			g.Emit("leaf_kept", 100)
			g.Emit("leaf_freed", 0)
			g.Emit("leaf_kept", 7)
			g.Context.Cancel()
		},
	}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))
	require.Equal(t, map[string]int64{"leaf_kept": 7}, leaves(t, r), g.Log.String())
	require.Contains(t, g.Log.String(), "5 rows read, 2 exported, 3 not exported (zero_value 3)")

	// An array is a snapshot of all stacks: a stack that it lacks is gone.
	r = startReceiver(t)
	op = settings(t, exporter("mine", r.Addr(), ""))
	g = &gadgettest.Gadget{Annotations: g.Annotations, Start: func(g *gadgettest.Gadget) {
		g.Emit("leaf_gone", 100)
		g.Emit("leaf_kept", 7)
		g.Context.Cancel()
	}}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))
	require.Equal(t, map[string]int64{"leaf_kept": 7}, leaves(t, r), g.Log.String())
}

// The setting sample_shape and the data source's annotations decide whether samples have values, timestamps or both.
func TestShapes(t *testing.T) {
	timed := map[string]string{"profiles.timestamps": "true"}
	counted := map[string]string{"profiles.timestamps": "true", "profiles.value-field": ""}
	for _, tt := range []struct {
		shape       string
		annotations map[string]string
		want        string // values and number of timestamps of each sample
	}{
		{"", nil, "[5] 0"},
		{"single", nil, "[5] 1"},
		{"timestamps", nil, "[] 5"},
		{"", timed, "[2 3] 2"},
		{"sum", timed, "[5] 0"},
		{"", counted, "[] 2"},
	} {
		r := startReceiver(t)
		op := settings(t, exporter("mine", r.Addr(), "        sample_shape: \""+tt.shape+"\"\n"))
		g := &gadgettest.Gadget{Annotations: tt.annotations, Start: func(g *gadgettest.Gadget) {
			g.Emit("leaf", 2)
			g.Emit("leaf", 3)
			g.Context.Cancel()
		}}
		require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))
		require.Empty(t, r.Findings())
		var got []string
		for _, s := range r.Samples() {
			got = append(got, fmt.Sprint(s.Values, len(s.Timestamps)))
			if len(s.Timestamps) > 1 {
				require.Len(t, slices.Compact(slices.Sorted(slices.Values(s.Timestamps))), 2, "each row has its own time")
			}
		}
		slices.Sort(got)
		require.Equal(t, tt.want, strings.Join(got, ", "), "%+v", tt)
	}
}

// If sampling would make a value too large, it must become the maximum.
func TestSampledValueDoesNotOverflow(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), "        sampling: 1/2\n"))
	g := &gadgettest.Gadget{Start: func(g *gadgettest.Gadget) {
		for range 64 { // at least one is sampled, except in one of 10^19 runs
			g.Emit("leaf", 1<<62)
		}
		g.Context.Cancel()
	}}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))
	require.Equal(t, map[string]int64{"leaf": math.MaxInt64}, leaves(t, r), g.Log.String())
}

func TestSettingsAreTakenAnew(t *testing.T) {
	first, second := startReceiver(t), startReceiver(t)
	op := settings(t, exporter("mine", first.Addr(), ""))
	run := func() {
		g := &gadgettest.Gadget{Start: gadgettest.Emits("leaf", 1)}
		require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))
	}
	run()
	require.NoError(t, igconfig.Config.ReadConfig(strings.NewReader(exporter("mine", second.Addr(), ""))))
	require.NoError(t, op.Init(nil))
	run()
	require.Equal(t, int64(1), leaves(t, first)["leaf"])
	require.Equal(t, int64(1), leaves(t, second)["leaf"])
}

// Inspektor Gadget's daemons exit without closing their gadgets.
func TestShutdownEndsRunningGadgets(t *testing.T) {
	for name, c := range map[string]struct {
		ends bool // false: it hangs at its end
		want map[string]int64
	}{
		"that ends":         {true, map[string]int64{"leaf": 4, "leaf_late": 5}},
		"that does not end": {false, map[string]int64{"leaf": 4}},
	} {
		t.Run(name, func(t *testing.T) {
			r := startReceiver(t)
			op := settings(t, exporter("mine", r.Addr(), ""))
			started, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			g := &gadgettest.Gadget{Start: func(g *gadgettest.Gadget) {
				g.Emit("leaf", 4)
				close(started)
			}, PostStop: func(g *gadgettest.Gadget) {
				if !c.ends {
					<-release
					return
				}
				g.Emit("leaf_late", 5)
			}}
			gc := g.Make(context.Background(), op, gadgetcontext.WithAsRemoteCall(true))
			go func() { done <- gc.Run(gadgettest.Params("mine")) }()
			<-started
			limit := 20 * time.Second
			if !c.ends {
				limit = 400 * time.Millisecond // half of it is for the gadget
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			err := op.Shutdown(ctx)
			require.Equal(t, c.want, leaves(t, r))
			if !c.ends {
				require.ErrorContains(t, err, "did not stop in time")
				close(release)
			} else {
				require.NoError(t, err)
				require.Error(t, (&gadgettest.Gadget{}).Make(t.Context(), op).Run(gadgettest.Params("mine")), "nothing starts afterwards")
				require.NoError(t, op.Shutdown(ctx), "twice is harmless")
			}
			require.NoError(t, <-done)
		})
	}
}

func TestCloseWithoutStart(t *testing.T) {
	op := settings(t, exporter("mine", "127.0.0.1:1", ""))
	gc := (&gadgettest.Gadget{}).Make(t.Context(), op)
	inst, err := op.InstantiateDataOperator(gc, api.ParamValues{otelprofiles.ParamExporter: "mine"})
	require.NoError(t, err)
	require.NoError(t, inst.Close(gc))
	require.NoError(t, inst.Close(gc))
}

// If a receiver accepts connections but never responds, all callbacks must finish. The run must end within the exporter's
// shutdown_timeout.
func TestDeadReceiver(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for _, endpoint := range []string{l.Addr().String(), "127.0.0.1:1"} {
		op := settings(t, exporter("mine", endpoint, "        shutdown_timeout: 200ms\n"))
		const rows = 20_000
		g := &gadgettest.Gadget{Type: datasource.TypeSingle, Start: func(g *gadgettest.Gadget) {
			p, perr := g.Source.NewPacketSingle()
			must(perr)
			g.Fill(p, "leaf", 1)
			for range rows {
				must(g.Source.EmitAndRelease(p))
			}
			g.Context.Cancel()
		}}
		require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine", otelprofiles.ParamInterval, "50ms")))
		require.Contains(t, g.Log.String(), fmt.Sprintf("%d rows read, %d exported, 0 not", rows, rows))
		require.Contains(t, g.Log.String(), fmt.Sprintf("dropped (shutdown %d)", rows))
		t.Log(g.Log.String())
	}
}

// If a row cannot be read, only this row must be lost.
func TestRowsThatCannotBeRead(t *testing.T) {
	sums := metrictest.Sums(t)
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), ""))
	g := &gadgettest.Gadget{Start: func(g *gadgettest.Gadget) {
		p, err := g.Source.NewPacketArray()
		must(err)
		p.Append(p.New())
		d := p.New()
		g.Fill(d, "leaf", 3)
		p.Append(d)
		bad := p.New()
		g.Fill(bad, "leaf\xff\xfe\x1b[31m; \x00", 2)
		p.Append(bad)
		must(g.Source.EmitAndRelease(p))
		g.Context.Cancel()
	}}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))
	got := leaves(t, r)
	require.Equal(t, int64(3), got["leaf"])
	require.Len(t, got, 2)
	require.NotContains(t, g.Log.String(), "\x1b")
	require.Equal(t, map[string]float64{"mine": 2}, sums("ig_otel_profiles_texts_replaced", "exporter"))
}

func TestRegistered(t *testing.T) {
	require.NoError(t, otelprofiles.Registered())
	operators.RegisterDataOperator(simple.New(otelprofiles.Name))
	require.ErrorContains(t, otelprofiles.Registered(), "instead of this project's operator")
	otelprofiles.Register()
	require.NoError(t, otelprofiles.Registered())
}
