package otelprofiles_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
)

// exporters returns a config with several exporters, each with its own receiver.
func exporters(t *testing.T, settings ...string) (yaml string, receivers []*receiver.Receiver) {
	t.Helper()
	var b strings.Builder
	b.WriteString("operator:\n  otel-profiles:\n    exporters:\n")
	for i, more := range settings {
		r := startReceiver(t)
		receivers = append(receivers, r)
		fmt.Fprintf(&b, "      e%d: {exporter: otlp-grpc, endpoint: %q, insecure: true, %s}\n", i, r.Addr(), more)
	}
	return b.String(), receivers
}

// Every named exporter must get all rows, with its own settings.
func TestSeveralExportersForOneSource(t *testing.T) {
	for _, typ := range []datasource.Type{datasource.TypeArray, datasource.TypeSingle} {
		for _, params := range []string{"e0,e1,e2,disk", "samples:e0, samples:e1 ,samples:e2,samples:disk,other", "e0,E1,e0,e2,disk,e1"} {
			t.Run(fmt.Sprint("type ", typ, " ", params), func(t *testing.T) {
				yaml, rs := exporters(t, "", "attributes: [thread.name=drop], sample_shape: timestamps", "attributes: [thread.name=resource], sampling: 1/1, preset: pyroscope")
				path := filepath.Join(t.TempDir(), "out.jsonl")
				op := settings(t, yaml+"      disk: {exporter: file, path: \""+path+"\"}\n      other: {endpoint: 'https://127.0.0.1:1'}\n")
				g := &gadgettest.Gadget{Type: typ, Start: func(g *gadgettest.Gadget) {
					for i := range 50 {
						g.Emit(fmt.Sprint("leaf_", i%7), 2)
					}
					g.Context.Cancel()
				}}
				begin := uint64(time.Now().UnixNano())
				require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params(params)))

				got := leaves(t, rs[0])
				require.Len(t, got, 7)
				sum := int64(0)
				for _, v := range got {
					sum += v
				}
				require.Equal(t, int64(100), sum, g.Log.String())
				require.Equal(t, "worker", rs[0].Samples()[0].Attributes["thread.name"])

				require.Len(t, rs[1].Samples(), 7)
				for _, s := range rs[1].Samples() {
					require.NotContains(t, s.Attributes, "thread.name")
					require.NotEmpty(t, s.Timestamps)
					require.Greater(t, s.Timestamps[0], begin)
				}
				require.Equal(t, got, leaves(t, rs[2]))
				require.Equal(t, "worker", rs[2].Samples()[0].Resource["thread_name"])

				line, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Contains(t, string(line), "leaf_6")

				require.Equal(t, 4, strings.Count(g.Log.String(), "50 rows read, 50 exported, 0 not"), g.Log.String())
				require.Equal(t, 4, strings.Count(g.Log.String(), "exporting data source"), g.Log.String())
			})
		}
	}
}

// One exporter's sampling must not affect the next exporter.
func TestSamplingIsOfOneExporter(t *testing.T) {
	yaml, rs := exporters(t, "sampling: 1/2", "")
	g := &gadgettest.Gadget{Start: func(g *gadgettest.Gadget) {
		for range 64 { // the first exporter samples at least one, except in one of 10^19 runs
			g.Emit("leaf", 1)
		}
		g.Context.Cancel()
	}}
	require.NoError(t, g.Make(t.Context(), settings(t, yaml)).Run(gadgettest.Params("e0,e1")))
	require.Zero(t, leaves(t, rs[0])["leaf"]%2)
	require.Equal(t, map[string]int64{"leaf": 64}, leaves(t, rs[1]))
}

// A named data source must go only to the exporters that are named for it.
func TestANamedSourceGoesOnlyThere(t *testing.T) {
	yaml, rs := exporters(t, "", "")
	op := settings(t, yaml)
	g := &gadgettest.Gadget{Start: gadgettest.Emits("leaf", 1)}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("e0,samples:e1")))
	require.Empty(t, rs[0].Samples())
	require.Equal(t, map[string]int64{"leaf": 1}, leaves(t, rs[1]))

	for _, wrong := range []string{"samples:", ":e0", "samples:e0:e1"} {
		err := (&gadgettest.Gadget{}).Make(t.Context(), op).Run(gadgettest.Params(wrong))
		require.ErrorContains(t, err, fmt.Sprintf("got %q, expected the name of an exporter or datasource:name", wrong))
	}
}

// If an exporter is unavailable, the others must not lose a row.
func TestOneOfSeveralExportersIsAway(t *testing.T) {
	yaml, rs := exporters(t, "", "")
	op := settings(t, yaml+"      away: {endpoint: 'http://127.0.0.1:1', shutdown_timeout: 50ms}\n")
	g := &gadgettest.Gadget{Start: func(g *gadgettest.Gadget) {
		for range 3 {
			g.Emit("leaf", 1)
		}
		g.Context.Cancel()
	}}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("e0,away,e1")))
	require.Equal(t, map[string]int64{"leaf": 3}, leaves(t, rs[0]))
	require.Equal(t, map[string]int64{"leaf": 3}, leaves(t, rs[1]))
	require.Contains(t, g.Log.String(), `3 dropped (shutdown 3)`)
}

func TestCallbackDoesNotAllocate(t *testing.T) {
	yaml, rs := exporters(t, "batch: {interval: 1h}", "batch: {interval: 1h}, attributes: [thread.name=drop]")
	op := settings(t, yaml)
	g := &gadgettest.Gadget{Type: datasource.TypeSingle, Start: func(g *gadgettest.Gadget) {
		p, err := g.Source.NewPacketSingle()
		must(err)
		g.Fill(p, "leaf", 1)
		must(g.Source.EmitAndRelease(p))
		require.Zero(t, testing.AllocsPerRun(1000, func() { must(g.Source.EmitAndRelease(p)) }))
		g.Context.Cancel()
	}}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("e0,e1", otelprofiles.ParamInterval, "1h")))
	for _, r := range rs {
		require.Equal(t, int64(1002), leaves(t, r)["leaf"])
	}
}
