package symbols

import (
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// BenchmarkAddresses has a file read as a Store does, for a thousand new addresses all over it, in this process and in another one:
// cpu-ns is the CPU time of both ends.
func BenchmarkAddresses(b *testing.B) {
	f, size := elftest.BenchFile(b)
	id, err := symtab.Identify(f)
	require.NoError(b, err)
	for name, reader := range map[string]symtab.Reader{"here": parse.Here{}, "apart": newApart(b)} {
		b.Run(name, func(b *testing.B) {
			begin := symtab.ProcessTime()
			for b.Loop() {
				task := symtab.Task{Reading: symtab.Reading{Limits: symtab.DefaultLimits()}, ID: id, Opened: f, Size: size, Room: defaultBytes}
				table, _, err := reader.Read(b.Context(), &task)
				require.NoError(b, err)
				g := table.Golang
				if g == nil {
					continue
				}
				var addrs []uint64
				for i := 0; i < len(g.Start); i += 1 + len(g.Start)/1000 {
					addrs = append(addrs, g.Text+uint64(g.Start[i]))
				}
				task.Kind, task.Old, task.Functions = symtab.ReadFunctions, table, g.Missing(addrs)
				_, _, err = reader.Read(b.Context(), &task)
				require.NoError(b, err)
			}
			b.ReportMetric(float64(symtab.ProcessTime()-begin)/float64(b.N), "cpu-ns/op")
		})
		reader.Close()
	}
}

// BenchmarkStoreLookup is a look-up as whoever names stacks makes it: in a file that has a table, and in one that could
// not be read.
func BenchmarkStoreLookup(b *testing.B) {
	f, _ := elftest.BenchFile(b)
	id, err := symtab.Identify(f)
	require.NoError(b, err)
	gone := symtab.FileID{Inode: 1}
	s := NewStore(Options{Reader: parse.Here{}})
	b.Cleanup(s.Close)
	addr := uint64(reflect.ValueOf(elftest.BenchFile).Pointer())
	path := f.Name()
	s.Request(Request{ID: id, Address: addr, Open: func() (*os.File, error) { return os.Open(path) }})
	s.Request(Request{ID: gone, Open: func() (*os.File, error) { return nil, os.ErrNotExist }})
	require.True(b, s.Wait(b.Context(), id, gone))
	for name, c := range map[string]struct {
		id   symtab.FileID
		want symtab.State
	}{"named": {id, symtab.Named}, "gone": {gone, symtab.Gone}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, state := s.Lookup(c.id, addr); state != c.want {
					b.Fatal(state)
				}
			}
		})
	}
}
