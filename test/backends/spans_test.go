//go:build e2e

package backends

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestSpans runs a Go service that labels its goroutines. Its samples have links to its spans, and Pyroscope shows a span's
// profile.
func TestSpans(t *testing.T) {
	needs(t, "pyroscope")
	igtest.NeedRoot(t)
	const trace, checkout, search = "0102030405060708090a0b0c0d0e0f10", "a1a2a3a4a5a6a7a8", "b1b2b3b4b5b6b7b8"
	program := filepath.Join(t.TempDir(), "spans")
	igtest.Output(t, "go", "build", "-o", program, "./spans")
	igtest.StartProgram(t, exec.Command(program, trace, checkout, search))

	for name, p := range map[string]*pyroscope{"as it is": startPyroscope(t), "with the storage of 2.x": startPyroscope2(t)} {
		t.Run(name, func(t *testing.T) {
			between := passOn(t, p.addr())
			config := "operator:\n  otel-profiles:\n    exporters:\n" + exporter(t, p.name(), p.name(), "server", between.Addr()) + patient
			said, in := sampled(t, "profile_cpu", config, "server", "--timeout=20", "--comm=spans", "--spans", "--unwind=whole", "--frequency=99")

			sent := map[string]int64{}
			for _, s := range between.Samples() {
				sent[s.SpanID] += s.Total() * s.Period
				wrong := map[string]string{checkout: "main.search", search: "main.checkout"}[s.SpanID]
				for _, f := range s.Stack {
					require.False(t, s.SpanID != "" && f.Name == wrong, "%s is in the span %s: %v", f.Name, s.SpanID, s.Stack)
				}
				if s.SpanID != "" {
					require.Equal(t, trace, s.TraceID)
				}
			}
			require.Positive(t, sent[checkout], "%s", said)
			require.Positive(t, sent[search], "%s", said)
			for id := range sent {
				require.Contains(t, []string{"", checkout, search}, id)
			}
			const service = `{service_name="spans"}`
			for id, function := range map[string]string{checkout: "main.checkout", search: "main.search", "c1c2c3c4c5c6c7c8": ""} {
				require.Eventually(t, func() bool { total, _ := p.ofSpan(t, service, id, in); return total == sent[id] }, 30*time.Second, time.Second,
					"the span %s: %d sent", id, sent[id])
				_, names := p.ofSpan(t, service, id, in)
				for _, f := range []string{"main.checkout", "main.search"} {
					require.Equal(t, f == function, slices.Contains(names, f), "the span %s has %v", id, names)
				}
			}
			// docs/guides states this for this version.
			require.Contains(t, p.labels(t, service, in), "trace_id")
			t.Logf("pyroscope %s: %.2f s and %.2f s of the two spans, %.2f s in none", p.version(), float64(sent[checkout])/1e9, float64(sent[search])/1e9, float64(sent[""])/1e9)
		})
	}
}

// ofSpan returns the content of a span's flame graph.
func (p *pyroscope) ofSpan(t *testing.T, selector, id string, in span) (total int64, names []string) {
	t.Helper()
	var answer struct {
		Flamegraph struct {
			Total number
			Names []string
		}
	}
	p.ask(t, "SelectMergeSpanProfile", selector, in, map[string]any{"spanSelector": []string{id}}, &answer)
	return int64(answer.Flamegraph.Total), answer.Flamegraph.Names
}
