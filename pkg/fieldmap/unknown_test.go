package fieldmap

import (
	"fmt"
	"strings"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// callTree is stack i of n frames, leaf first: as in programs, stacks differ in few of their frames,
// and functions call others from that many places.
func callTree(n, i int, prefix string, places int) (names, addresses string) {
	var b, a strings.Builder
	for d := range n {
		v := i % 256
		if d > 0 {
			v = (i / 256) % (1 + (n-d)*16)
		}
		fmt.Fprintf(&b, "%s_%02d_%d; ", prefix, d, v/places)
		fmt.Fprintf(&a, "0x%016x; ", 0x400000+d<<16+v*24)
	}
	return b.String(), a.String()
}

// BenchmarkUnknown is what becomes of a row whose stack is met for the first time, up to the table
// that knows it then.
func BenchmarkUnknown(b *testing.B) {
	for _, form := range []string{"text", "addresses"} {
		for _, n := range []int{2000, 50_000} {
			b.Run(fmt.Sprintf("%s/%d", form, n), func(b *testing.B) {
				s := profileCPU(b, profileCPUMetadata)
				rows := make([]datasource.Data, n)
				for i := range rows {
					places := 1
					if form == "addresses" {
						places = 3
					}
					kernel, _ := callTree(7, i, "kernel_function", 1)
					names, addrs := callTree(21, i, "github.com/some/module/pkg.(*Type).method", places)
					change := map[string]any{"kern_stack": kernel, "user_stack_raw.symbols": names, "user_stack_raw.addresses": addrs}
					if form == "text" {
						change["user_stack_raw.addresses"] = nil
					}
					rows[i] = s.row(with(change))
				}
				p := compile(b, s, testOptions())
				filter := NewValueCap(1000)
				var agg *profile.Aggregator
				resource := p.Resource(rows[0])
				i, values := 0, []int64{1}
				b.ReportAllocs()
				for b.Loop() {
					if i == len(rows) {
						i = 0
					}
					if i == 0 {
						agg, _ = profile.New(profile.Config{Types: []profile.ValueType{{Type: "samples", Unit: "count"}}, MaxBytes: 1 << 30})
						res, _ := p.Keys(rows[0])
						agg.SetResource(res, resource)
					}
					d := rows[i]
					res, key := p.Keys(d)
					if st := agg.Add(key, values, 0); st != profile.NeedSample {
						b.Fatal(st)
					}
					sm, _ := p.Sample(d)
					sm.Attributes = filter.Filter(sm.Attributes)
					if st := agg.Insert(res, key, sm, values, 0); st != profile.Added {
						b.Fatal(st)
					}
					i++
				}
				require.NotNil(b, agg)
			})
		}
	}
}
