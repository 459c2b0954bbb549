package otelprofiles_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators/simple"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/peer"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

func TestRemoteCallerCannotChooseWhereADaemonConnects(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), ""))
	remote := gadgetcontext.WithAsRemoteCall(true)
	for _, param := range []string{otelprofiles.ParamEndpoint, otelprofiles.ParamInsecure, otelprofiles.ParamHeaders, otelprofiles.ParamCompression} {
		err := (&gadgettest.Gadget{}).Make(t.Context(), op, remote).Run(gadgettest.Params("mine", param, "http://10.0.0.1:4317"))
		require.ErrorContains(t, err, param)
	}
	require.ErrorContains(t, (&gadgettest.Gadget{}).Make(t.Context(), op, remote).Run(gadgettest.Params("otlp")), "the known exporters are mine", "no built-in exporter in a daemon")
	require.ErrorContains(t, (&gadgettest.Gadget{}).Make(t.Context(), op, remote).Run(gadgettest.Params("mine", otelprofiles.ParamInterval, "1ms")), "requires at least 1s")

	for remoteCall, want := range map[bool]bool{true: false, false: true} {
		g := &gadgettest.Gadget{}
		gc := g.Make(t.Context(), op, gadgetcontext.WithAsRemoteCall(remoteCall))
		require.NoError(t, gc.PrepareGadgetInfo(api.ParamValues{}))
		var keys []string
		for _, p := range gc.Params() {
			keys = append(keys, p.Key)
		}
		require.Contains(t, keys, otelprofiles.ParamExporter)
		require.Equal(t, want, slices.Contains(keys, otelprofiles.ParamEndpoint), "remote: %v, parameters: %v", remoteCall, keys)
	}
}

func TestImageCannotChooseWhereToConnect(t *testing.T) {
	r, evil := startReceiver(t), startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), ""))
	g := &gadgettest.Gadget{
		Metadata: fmt.Sprintf("paramDefaults:\n  operator.otel-profiles.otel-profiles-endpoint: http://%s\n  operator.otel-profiles.otel-profiles-exporter: otlp\n  operator.otel-profiles.otel-profiles-name: from_image\n", evil.Addr()),
		Start:    gadgettest.Emits("leaf", 1),
	}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine",
		otelprofiles.ParamEndpoint, "http://"+evil.Addr(), otelprofiles.ParamName, "from_image")))
	require.Equal(t, int64(1), leaves(t, r)["leaf"])
	require.Zero(t, evil.Stats().Requests)
	require.Contains(t, g.Log.String(), "paramDefaults")
	require.Equal(t, "from_image", r.Samples()[0].PeriodType)

	// If only the image requests an exporter, it must not be used.
	g = &gadgettest.Gadget{Metadata: g.Metadata, Start: g.Start}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("otlp")))
	require.Zero(t, evil.Stats().Requests)
}

// The log must say how a user requests the same value as the image's default. The described way must work.
func TestSameValueAsTheImages(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), ""))
	for _, params := range []map[string]string{
		{otelprofiles.ParamExporter: "mine"},
		{otelprofiles.ParamExporter: "otlp", otelprofiles.ParamEndpoint: "http://" + r.Addr(), otelprofiles.ParamInsecure: "true", otelprofiles.ParamCompression: "none", otelprofiles.ParamCheck: "true", otelprofiles.ParamInterval: "500ms"},
	} {
		metadata := "paramDefaults:\n"
		var same, withSpace []string
		for key, value := range params {
			metadata += "  operator.otel-profiles." + key + ": '" + value + "'\n"
			if key != otelprofiles.ParamExporter {
				same, withSpace = append(same, key, value), append(withSpace, key, value+" ")
			}
		}
		run := func(exporter string, more []string) string {
			g := &gadgettest.Gadget{Metadata: metadata, Start: gadgettest.Emits("leaf", 1)}
			require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params(exporter, more...)))
			return g.Log.String()
		}
		before := leaves(t, r)["leaf"]
		log := run(params[otelprofiles.ParamExporter], same)
		for key := range params {
			require.Contains(t, log, "To use this value, set the flag yourself, and add a space to distinguish it from the image's value: --"+key+"='… '")
		}
		require.Equal(t, before, leaves(t, r)["leaf"])
		log = run(params[otelprofiles.ParamExporter]+" ", withSpace)
		require.NotContains(t, log, "paramDefaults")
		require.Equal(t, before+1, leaves(t, r)["leaf"], log)
		require.NoError(t, op.Failed())
	}
}

// If an image requests an extreme interval, the exporter's own interval must apply.
func TestImageCannotFlood(t *testing.T) {
	for asked, want := range map[string]string{"1ns": "every 10s", "999ms": "every 10s", "2h": "every 10s", "7s": "every 7s"} {
		r := startReceiver(t)
		op := settings(t, exporter("mine", r.Addr(), ""))
		g := &gadgettest.Gadget{
			Metadata: "paramDefaults:\n  operator.otel-profiles.otel-profiles-interval: " + asked + "\n",
			Start:    func(g *gadgettest.Gadget) { g.Context.Cancel() },
		}
		require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine", otelprofiles.ParamInterval, asked)))
		require.Contains(t, g.Log.String(), want)
		require.Equal(t, want == "every 10s", strings.Contains(g.Log.String(), "an image may only set 1s to 1h"), asked)
	}
	require.ErrorContains(t, (&gadgettest.Gadget{}).Make(t.Context(), settings(t, "")).Run(gadgettest.Params("otlp", otelprofiles.ParamInterval, "1ns")), "at least 10ms")
}

// The run requests such a long interval that the exporter would drop all data as too old.
func TestIntervalBeyondMaxAge(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), "        sending_queue: {max_age: 15m}\n"))
	g := &gadgettest.Gadget{Start: func(g *gadgettest.Gadget) { g.Context.Cancel() }}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine", otelprofiles.ParamInterval, "30m")))
	require.Contains(t, g.Log.String(), "every 10s")
	require.Contains(t, g.Log.String(), "--otel-profiles-interval=30m0s")
	require.Contains(t, g.Log.String(), "older than 15m0s (sending_queue.max_age)")
}

func TestWrongSettings(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), "      broken:\n        exporter: carrier-pigeon\n"))
	require.NoError(t, op.Init(nil), "and again")

	err := (&gadgettest.Gadget{}).Make(t.Context(), op).Run(gadgettest.Params("broken"))
	require.ErrorContains(t, err, "carrier-pigeon")
	err = (&gadgettest.Gadget{}).Make(t.Context(), op).Run(gadgettest.Params("nobody"))
	require.ErrorContains(t, err, "the known exporters are broken, mine, otlp")
	err = (&gadgettest.Gadget{}).Make(t.Context(), op).Run(gadgettest.Params("elsewhere:mine"))
	require.ErrorContains(t, err, `"samples"`)

	ends := func(g *gadgettest.Gadget) {
		g.Emit("leaf", 1)
		g.Context.Cancel()
	}
	g := &gadgettest.Gadget{Start: ends}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("samples:mine")), "the other exporter goes on")
	require.Equal(t, int64(1), leaves(t, r)["leaf"])
}

// Inspektor Gadget merges --annotate into the gadget's metadata, even for data sources that do not exist.
func TestWrongAnnotations(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), ""))
	run := func(annotated string, opts ...gadgetcontext.Option) error {
		g := &gadgettest.Gadget{Metadata: annotated, Start: func(g *gadgettest.Gadget) { g.Context.Cancel() }}
		gadgetCtx := g.Make(t.Context(), op, opts...)
		merged, _ := gadgetCtx.GetVar("config")
		require.NoError(t, gadgetCtx.SetMetadata([]byte("name: mine")))
		gadgetCtx.SetVar("config", merged)
		return gadgetCtx.Run(gadgettest.Params("mine"))
	}
	require.ErrorContains(t, run("datasources: {sample: {annotations: {profiles.name: mine}}}"),
		`--annotate names the data source "sample", which the gadget does not have; it has "samples"`)
	require.ErrorContains(t, run("datasources: {samples: {fields: {proc.com: {annotations: {profiles.sample-attribute: 'true'}}}}}"),
		`--annotate names the field "proc.com", which the data source "samples" does not have`)
	require.NoError(t, run("datasources: {Samples: {fields: {Proc.comm: {annotations: {profiles.sample-attribute: 'true'}}}}}"))

	// The image describes a data source that exists only with some parameters.
	const described = "datasources: {others: {annotations: {a: b}}, samples: {fields: {none: {annotations: {a: b}}}}}"
	g := &gadgettest.Gadget{Start: func(g *gadgettest.Gadget) { g.Context.Cancel() }}
	gadgetCtx := g.Make(t.Context(), op)
	require.NoError(t, gadgetCtx.SetMetadata([]byte(described)))
	require.NoError(t, gadgetCtx.Run(gadgettest.Params("mine")))
}

// A run that can export nothing must log this. A mistake ends the run. A gadget without a stack ends a run that must deliver. It
// also ends a detached run, whose log nobody reads: otherwise, no metric and no alert would show that nothing is exported.
func TestNothingToExport(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), ""))
	g := &gadgettest.Gadget{Annotations: map[string]string{"profiles.stack-fields": "missing"}}
	require.ErrorContains(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")),
		`nothing is exported to "mine": data source "samples": profiles.stack-fields names the field "missing", which does not exist; the fields are kern_stack`)

	plain := simple.New("plain", simple.OnInit(func(gadgetCtx operators.GadgetContext) error {
		_, err := gadgetCtx.RegisterDataSource(datasource.TypeSingle, "plain")
		return err
	}), simple.OnStart(func(gadgetCtx operators.GadgetContext) error {
		gadgetCtx.(*gadgetcontext.GadgetContext).Cancel()
		return nil
	}))
	run := func(ctx context.Context, remote bool, params ...string) error {
		return g.Make(ctx, op, gadgetcontext.WithDataOperators(plain, op), gadgetcontext.WithAsRemoteCall(remote)).Run(gadgettest.Params("mine", params...))
	}
	require.NoError(t, run(t.Context(), false))
	require.Contains(t, g.Log.String(), "has no data source with a stack")
	require.ErrorContains(t, run(t.Context(), false, otelprofiles.ParamCheck, "true"), "has no data source with a stack")
	require.NoError(t, run(peer.NewContext(t.Context(), &peer.Peer{}), true), "a client waits, and sees the log")
	require.ErrorContains(t, run(t.Context(), true), "has no data source with a stack")
}

// Inspektor Gadget closes a gadget after a failed PreStart. Exporters that were acquired before must not delay it.
func TestOneOfTwoExportersIsWrong(t *testing.T) {
	r := startReceiver(t)
	for _, remote := range []bool{false, true} {
		op := settings(t, exporter("mine", r.Addr(), ""))
		other := simple.New("other", simple.WithPriority(2), simple.OnInit(func(gadgetCtx operators.GadgetContext) error {
			ds, err := gadgetCtx.RegisterDataSource(datasource.TypeSingle, "first")
			must(err)
			ds.AddAnnotation("profiles.stack-fields", "stack")
			_, err = ds.AddField("stack", api.Kind_String)
			return err
		}))
		g := &gadgettest.Gadget{}
		all := append(g.Make(t.Context(), op).DataOperators(), other)
		gadgetCtx := g.Make(t.Context(), op, gadgetcontext.WithDataOperators(all...), gadgetcontext.WithAsRemoteCall(remote))
		done := make(chan error, 1)
		go func() { done <- gadgetCtx.Run(gadgettest.Params("samples:nobody,first:mine")) }()
		select {
		case err := <-done:
			require.ErrorContains(t, err, `"nobody"`)
		case <-time.After(20 * time.Second):
			require.FailNow(t, "the gadget does not end")
		}
	}
}

// If a gadget cannot start, the run must report the gadget's error, and not that there were no rows.
func TestGadgetThatDoesNotStart(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), ""))
	broken := simple.New("broken", simple.WithPriority(2), simple.OnStart(func(operators.GadgetContext) error { return errors.New("no such kernel function") }))
	g := &gadgettest.Gadget{}
	all := append(g.Make(t.Context(), op).DataOperators(), broken)
	err := g.Make(t.Context(), op, gadgetcontext.WithDataOperators(all...)).Run(gadgettest.Params("mine", otelprofiles.ParamCheck, "true"))
	require.ErrorContains(t, err, "no such kernel function")
	require.NotContains(t, g.Log.String(), "no rows")
	require.Contains(t, g.Log.String(), "0 rows read")
}

// If an operator ends a run, the run must report the operator's reason, and not that there were no rows.
func TestRunThatIsEnded(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), ""))
	g := &gadgettest.Gadget{Start: func(g *gadgettest.Gadget) { tune.End(g.Context, "allocator", errors.New("the probes cost too much")) }}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine", otelprofiles.ParamCheck, "true")))
	require.Contains(t, g.Log.String(), "allocator: stopping the run: the probes cost too much")
	require.NotContains(t, g.Log.String(), "no rows")
	require.ErrorContains(t, op.Failed(), "the probes cost too much")
}

// A gadget's log goes to its user, who must not see the daemon's secrets.
func TestLogShowsNoSecrets(t *testing.T) {
	op := settings(t, "operator: {otel-profiles: {exporters: {mine: {exporter: otlp-http, shutdown_timeout: 10ms, "+
		"profiles_endpoint: 'http://127.0.0.1:1/in?api-key=verysecret', headers: {x-token: hidden}, insecure: true}}}}")
	g := &gadgettest.Gadget{Start: gadgettest.Emits("leaf", 1)}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))
	require.Contains(t, g.Log.String(), "http://127.0.0.1:1/in?…)")
	require.NotContains(t, g.Log.String(), "verysecret")
	require.NotContains(t, g.Log.String(), "hidden")
}
