package bench

import (
	"strings"
	"testing"

	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
)

// BenchmarkExporters measures the cost of a row on the gadget's goroutine, with one exporter and with several exporters. Each
// additional exporter should cost at most half as much as the first.
//
//	go test ./test/bench -run xxx -bench Exporters -benchtime 1x
func BenchmarkExporters(b *testing.B) {
	sh := shape{stacks: 2000, depth: 28, containers: 30, goroutines: 1, ticks: 60}
	for _, with := range []struct {
		name string
		more []string
	}{
		{"one", nil},
		{"two", []string{""}},
		{"two, of other attributes", []string{", attributes: [process.pid=sample]"}},
		{"four", []string{"", "", ""}},
		{"four, of other attributes", []string{", attributes: [process.pid=sample]", ", preset: pyroscope", ", attributes: [thread.name=resource]"}},
	} {
		b.Run(strings.ReplaceAll(with.name, " ", "_"), func(b *testing.B) {
			var best result
			for range max(b.N, 1) {
				for range 6 {
					best.best(run(b, otelprofiles.New(), sh, "none", with.more...))
				}
			}
			b.ReportMetric(best.ns, "ns/row")
			b.ReportMetric(best.cold, "ns/row-in-first-window")
			b.ReportMetric(best.allocs, "allocs/row")
			b.ReportMetric(0, "ns/op")
		})
	}
}
