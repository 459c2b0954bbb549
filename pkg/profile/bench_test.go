package profile_test

import (
	"fmt"
	"testing"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

func BenchmarkEncode(b *testing.B) {
	for _, n := range []int{100, 2000, 50_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a := profile.New(config())
			stacks := make([]profile.Sample, n)
			for i := range stacks {
				stacks[i].Stack = deep(i, 28)
			}
			b.ReportAllocs()
			bytes := 0
			for b.Loop() {
				b.StopTimer()
				for i := range stacks {
					put(b, a, 1, uint64(i), stacks[i], 0, 1)
				}
				b.StartTimer()
				bytes = 0
				for _, m := range a.Flush(start, end, profile.Limits{}).Messages {
					bytes += len(m.Body)
				}
			}
			b.ReportMetric(float64(bytes)/float64(n), "B/sample")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/sample")
		})
	}
}
