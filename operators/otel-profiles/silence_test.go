package otelprofiles_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
)

// The log must mention flags without effect, and runs without result.
func TestNothingIsSilent(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), ""))
	ends := func(g *gadgettest.Gadget) { g.Context.Cancel() }

	g := &gadgettest.Gadget{Start: ends}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("", otelprofiles.ParamEndpoint, "http://127.0.0.1:1")))
	require.Contains(t, g.Log.String(), "--otel-profiles-endpoint has no effect without --otel-profiles-exporter, so nothing is exported")

	g = &gadgettest.Gadget{Start: ends}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))
	require.Contains(t, g.Log.String(), "nothing was exported, because the gadget had no rows")
	require.NoError(t, op.Failed(), "nobody asked")

	asked := settings(t, exporter("mine", r.Addr(), ""))
	require.NoError(t, (&gadgettest.Gadget{Start: ends}).Make(t.Context(), asked).Run(gadgettest.Params("mine", otelprofiles.ParamCheck, "true")))
	require.ErrorContains(t, asked.Failed(), "nothing was exported, because the gadget had no rows")

	g = &gadgettest.Gadget{Start: gadgettest.Emits("leaf", 1)}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine", otelprofiles.ParamCheck, "true")))
	require.NoError(t, op.Failed())

	g = &gadgettest.Gadget{Start: g.Start, Annotations: map[string]string{"profiles.value-fields": "samples", "profiles.trace-id": "true"}}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))
	require.Contains(t, g.Log.String(), "the annotation profiles.value-fields of the data source is ignored because it is unknown; the closest match is profiles.value-field")
	require.Contains(t, g.Log.String(), "the annotation profiles.trace-id of the data source is ignored: it applies only to a field")

	op = settings(t, exporter("mine", "127.0.0.1:1", "        shutdown_timeout: 10ms\n"))
	g = &gadgettest.Gadget{Start: g.Start}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine", otelprofiles.ParamCheck, "1")))
	require.ErrorContains(t, op.Failed(), "of 1 rows, none was delivered")
	require.Contains(t, g.Log.String(), "of 1 rows, none was delivered")
	require.ErrorContains(t, (&gadgettest.Gadget{}).Make(t.Context(), op).Run(gadgettest.Params("mine", otelprofiles.ParamCheck, "yes")),
		`parameter "otel-profiles-check": got "yes", expected true or false`)
}

// If its rows have no stack, a run must log a warning while it runs. With ParamCheck, it must fail.
func TestRowsWithoutAStack(t *testing.T) {
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), ""))
	run := func(bare, whole int) string {
		g := &gadgettest.Gadget{Start: func(g *gadgettest.Gadget) {
			p, err := g.Source.NewPacketArray()
			must(err)
			for i := range bare + whole {
				d := p.New()
				g.Fill(d, "leaf", 1)
				if i < bare {
					must(g.Source.GetField("kern_stack").PutString(d, ""))
					must(g.Source.GetField("user_stack").PutString(d, ""))
				}
				p.Append(d)
			}
			must(g.Source.EmitAndRelease(p))
			g.Context.Cancel()
		}}
		require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine", otelprofiles.ParamCheck, "true")))
		return g.Log.String()
	}
	log := run(5, 5)
	require.NotContains(t, log, "rows so far have no stack")
	require.NoError(t, op.Failed())

	log = run(39, 1)
	const line = "39 of 40 rows so far have no stack: the text fields for stacks are empty"
	require.Equal(t, 1, strings.Count(log, line), log)
	require.ErrorContains(t, op.Failed(), line)

	log = run(1, 0)
	require.Contains(t, log, "1 of 1 rows so far have no stack", "at the end one is enough")
	require.ErrorContains(t, op.Failed(), "1 of 1 rows so far")
}

// If the environment overrides an endpoint from the command line, the log must say so before anything is sent.
func TestEnvironmentOverridesAFlag(t *testing.T) {
	r, typed := startReceiver(t), startReceiver(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+r.Addr())
	op := settings(t, "")
	var before string
	g := &gadgettest.Gadget{Start: func(g *gadgettest.Gadget) {
		before = g.Log.String()
		g.Emit("leaf", 1)
		g.Context.Cancel()
	}}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("otlp", otelprofiles.ParamEndpoint, "http://"+typed.Addr())))
	require.Contains(t, before, "OTEL_EXPORTER_OTLP_ENDPOINT (http://"+r.Addr()+") in the environment overrides --otel-profiles-endpoint (http://"+typed.Addr()+")")
	require.Empty(t, typed.Samples())
	require.Equal(t, map[string]int64{"leaf": 1}, leaves(t, r))
}
