package symbols

import (
	"os"
	"reflect"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// benchFile is the file that is measured: SYMBOLS_BENCH_FILE, or the largest library that is usually there.
func benchFile(b *testing.B) (*os.File, int64) {
	path := os.Getenv("SYMBOLS_BENCH_FILE")
	if path == "" {
		path = "/proc/self/exe"
	}
	f, err := os.Open(path)
	require.NoError(b, err)
	b.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	require.NoError(b, err)
	return f, st.Size()
}

// BenchmarkRead takes a file in, as a Store does that was asked for a thousand addresses all over it. table-B is the
// memory that its table takes, names how many ranges have one, peak-B what the process has asked the system for at most.
func BenchmarkRead(b *testing.B) {
	f, size := benchFile(b)
	o := Reading{Limits: DefaultLimits()}
	table, err := readTable(b.Context(), f, size, o, nil)
	require.NoError(b, err)
	var addrs []uint64
	if g := table.golang; g != nil {
		for i := 0; i < len(g.start); i += 1 + len(g.start)/1000 {
			addrs = append(addrs, g.text+uint64(g.start[i]))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		table, err = readTable(b.Context(), f, size, o, nil)
		require.NoError(b, err)
		table, err = table.with(b.Context(), f, size, o, addrs)
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
	f, size := benchFile(b)
	table, err := ReadTable(b.Context(), f, size, Reading{Limits: DefaultLimits()})
	require.NoError(b, err)
	var addrs []uint64
	if g := table.golang; g != nil {
		for i := 0; i < len(g.start); i += 1 + len(g.start)/10_000 {
			addrs = append(addrs, g.text+uint64(g.start[i])+9)
		}
	}
	for i := range table.layers {
		l := &table.layers[i]
		for j := 0; j < len(l.starts); j += 1 + len(l.starts)/10_000 {
			addrs = append(addrs, l.base+uint64(l.starts[j]))
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		table.Lookup(addrs[i%len(addrs)])
		i += 7919
	}
}

// BenchmarkAddresses has a file read as a Store does, for a thousand new addresses all over it, in this process and in another one:
// cpu-ns is the CPU time of both ends.
func BenchmarkAddresses(b *testing.B) {
	f, size := benchFile(b)
	id, err := Identify(f)
	require.NoError(b, err)
	for name, reader := range map[string]Reader{"here": here{}, "apart": newApart(b)} {
		b.Run(name, func(b *testing.B) {
			begin := processTime()
			for b.Loop() {
				task := Task{Reading: Reading{Limits: DefaultLimits()}, id: id, file: f, size: size, room: defaultBytes}
				table, _, err := reader.Read(b.Context(), &task)
				require.NoError(b, err)
				g := table.golang
				if g == nil {
					continue
				}
				var addrs []uint64
				for i := 0; i < len(g.start); i += 1 + len(g.start)/1000 {
					addrs = append(addrs, g.text+uint64(g.start[i]))
				}
				task.kind, task.old, task.functions = readFunctions, table, g.missing(addrs)
				_, _, err = reader.Read(b.Context(), &task)
				require.NoError(b, err)
			}
			b.ReportMetric(float64(processTime()-begin)/float64(b.N), "cpu-ns/op")
		})
		reader.Close()
	}
}

// BenchmarkStoreLookup is a look-up as whoever names stacks makes it: in a file that has a table, and in one that could
// not be read.
func BenchmarkStoreLookup(b *testing.B) {
	f, _ := benchFile(b)
	id, err := Identify(f)
	require.NoError(b, err)
	gone := FileID{Inode: 1}
	s := NewStore(Options{})
	b.Cleanup(s.Close)
	addr := uint64(reflect.ValueOf(benchFile).Pointer())
	path := f.Name()
	s.Request(Request{ID: id, Address: addr, Open: func() (*os.File, error) { return os.Open(path) }})
	s.Request(Request{ID: gone, Open: func() (*os.File, error) { return nil, os.ErrNotExist }})
	require.True(b, s.Wait(b.Context(), id, gone))
	for name, c := range map[string]struct {
		id   FileID
		want State
	}{"named": {id, Named}, "gone": {gone, Gone}} {
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
