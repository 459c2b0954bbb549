package parse

import (
	"context"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// BenchmarkRead takes a file in, as a Store does that was asked for a thousand addresses all over it. table-B is the
// memory that its table takes, names how many ranges have one, peak-B what the process has asked the system for at most.
func BenchmarkRead(b *testing.B) {
	f, size := elftest.BenchFile(b)
	o := symtab.Reading{Limits: symtab.DefaultLimits()}
	table, err := readTable(b.Context(), f, size, o, nil)
	require.NoError(b, err)
	var addrs []uint64
	if g := table.Golang; g != nil {
		for i := 0; i < len(g.Start); i += 1 + len(g.Start)/1000 {
			addrs = append(addrs, g.Text+uint64(g.Start[i]))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		table, err = readTable(b.Context(), f, size, o, nil)
		require.NoError(b, err)
		table, err = with(b.Context(), table, f, size, o, addrs)
		require.NoError(b, err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(table.Bytes()), "table-B")
	b.ReportMetric(float64(table.Len()), "names")
	b.ReportMetric(float64(m.HeapSys), "peak-B")
	b.ReportMetric(float64(size), "file-B")
}

// BenchmarkLookup looks up addresses all over a file.
func BenchmarkLookup(b *testing.B) {
	f, size := elftest.BenchFile(b)
	table, err := ReadTable(b.Context(), f, size, symtab.Reading{Limits: symtab.DefaultLimits()})
	require.NoError(b, err)
	var addrs []uint64
	if g := table.Golang; g != nil {
		for i := 0; i < len(g.Start); i += 1 + len(g.Start)/10_000 {
			addrs = append(addrs, g.Text+uint64(g.Start[i])+9)
		}
	}
	for i := range table.Layers {
		l := &table.Layers[i]
		for j := 0; j < len(l.Starts); j += 1 + len(l.Starts)/10_000 {
			addrs = append(addrs, l.Base+uint64(l.Starts[j]))
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		table.Lookup(addrs[i%len(addrs)])
		i += 7919
	}
}

// with returns a table that has Go's functions at those addresses, too.
func with(ctx context.Context, t *symtab.Table, r io.ReaderAt, size int64, o symtab.Reading, addrs []uint64) (*symtab.Table, error) {
	if t.Golang == nil {
		return t, nil
	}
	more := *t
	var err error
	more.Golang, err = loadFunctions(t.Golang, newReader(ctx, r, size, o), t.Golang.Missing(addrs), o.Inlined, o.Limits)
	return &more, err
}
