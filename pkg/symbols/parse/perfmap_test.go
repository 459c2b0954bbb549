package parse

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

func perfMapOf(t *testing.T, text string, old *symtab.Table) *symtab.Table {
	t.Helper()
	table, err := ReadPerfMap(context.Background(), bytes.NewReader([]byte(text)), int64(len(text)), old, symtab.DefaultLimits())
	require.NoError(t, err)
	return table
}

func TestPerfMap(t *testing.T) {
	text := "7f0000001000 100 LazyCompile:~work /app/main.js:12\n" +
		"0x7f0000002000 0x80 with prefix\r\n" +
		"7f0000001080 10 in the middle, later\n" +
		"nonsense\n\n7f 10\nzz 10 name\n7f0000009000 0 empty\nffffffffffffff00 fff around the end\n" +
		"100 20 far away\n" +
		"7f0000003000 10 not compl"
	table := perfMapOf(t, text, nil)
	for addr, want := range map[uint64]string{
		0x7f0000001000: "LazyCompile:~work /app/main.js:12", 0x7f000000107f: "LazyCompile:~work /app/main.js:12",
		0x7f0000001080: "in the middle, later", 0x7f000000108f: "in the middle, later", 0x7f0000001090: "LazyCompile:~work /app/main.js:12",
		0x7f00000010ff: "LazyCompile:~work /app/main.js:12", 0x7f0000001100: "", 0x7f0000002000: "with prefix", 0x7f000000207f: "with prefix",
		0x7f0000002080: "", 0x100: "far away", 0x7f0000003000: "", 0x7f0000009000: "", 0xffffffffffffff00: "", 0: "",
	} {
		s, state := table.Lookup(addr)
		require.Equal(t, want, s.Name, "%#x", addr)
		require.Equal(t, want != "", state == symtab.Named)
	}
	// The rest of the line is written, and new code replaces old code.
	text += "ete\n7f0000001040 100 newer\n"
	table = perfMapOf(t, text, table)
	for addr, want := range map[uint64]string{
		0x7f0000003000: "not complete", 0x7f0000001040: "newer", 0x7f0000001080: "newer", 0x7f000000113f: "newer",
		0x7f000000103f: "LazyCompile:~work /app/main.js:12", 0x100: "far away",
	} {
		s, _ := table.Lookup(addr)
		require.Equal(t, want, s.Name, "%#x", addr)
	}
	require.Same(t, table, perfMapOf(t, text, table), "nothing was added")
	// A new file gets the same name.
	s, _ := perfMapOf(t, "100 10 other\n", table).Lookup(0x100)
	require.Equal(t, "other", s.Name)
}

func FuzzPerfMap(f *testing.F) {
	f.Add([]byte("1000 10 f\n1008 10 g\n"), 12)
	f.Add([]byte("ffffffffffffffff 1 f\n0 ffffffffffffffff g\n"), 3)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		limits := symtab.Limits{Symbols: 100, Names: 1000, Read: 10_000, Memory: 1 << 20}
		first := b[:min(max(cut, 0), len(b))]
		table, err := ReadPerfMap(t.Context(), bytes.NewReader(first), int64(len(first)), nil, limits)
		require.NoError(t, err)
		table, err = ReadPerfMap(t.Context(), bytes.NewReader(b), int64(len(b)), table, limits)
		require.NoError(t, err)
		checkTable(t, table)
	})
}

// Random pieces of code, read in parts, match a plain list. Beyond the bounds, the newest pieces stay. No address has the name of
// earlier code.
func TestPerfMapBounds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, limits := range map[string]symtab.Limits{
		"pieces": {Symbols: 100, Names: 1 << 20, Read: 1 << 20, Memory: 4 << 20},
		"names":  {Symbols: 1 << 20, Names: 500, Read: 1 << 20, Memory: 4 << 20},
		"none":   {Symbols: 1 << 20, Names: 1 << 20, Read: 1 << 20, Memory: 4 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			var truth [1 << 10]string
			var text bytes.Buffer
			var table *symtab.Table
			for i := range 400 {
				start, size := random.IntN(len(truth)-8), 1+random.IntN(7)
				name := fmt.Sprintf("f%d", i)
				switch i % 50 {
				case 7:
					name = strings.Repeat("x", 1000) // longer than the limit
				case 8:
					name = ""
				case 9:
					name = strings.Repeat("x", maxPerfLine)
				}
				fmt.Fprintf(&text, "%x %x %s\n", start, size, name)
				if len(name) >= 1000 && (limits.Names == 500 || len(name) == maxPerfLine) {
					name = ""
				}
				for a := start; a < start+size; a++ {
					truth[a] = name
				}
				if i%40 != 39 {
					continue
				}
				var err error
				table, err = ReadPerfMap(t.Context(), bytes.NewReader(text.Bytes()), int64(text.Len()), table, limits)
				require.NoError(t, err)
				named := 0
				for addr, want := range truth {
					got, state := table.Lookup(uint64(addr))
					if state == symtab.Named || want != "" && limits.Symbols == limits.Names { // all pieces fit
						require.Equal(t, want, got.Name, "%#x after %d pieces", addr, i+1)
						named++
					}
				}
				require.Greater(t, named, 60)
				got, _ := table.Lookup(uint64(start))
				require.Equal(t, name, got.Name, "the newest is there")
			}
		})
	}
}

// Replaced pieces do not count towards the bounds, so old code that still runs keeps its name.
func TestPerfMapReplaced(t *testing.T) {
	var text bytes.Buffer
	text.WriteString("9000 10 old\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "%x 10 f%d\n", 0x1000+0x10*(i%40), i)
	}
	table, err := ReadPerfMap(t.Context(), bytes.NewReader(text.Bytes()), int64(text.Len()), nil, symtab.Limits{Symbols: 100, Names: 1 << 20, Read: 1 << 20, Memory: 4 << 20})
	require.NoError(t, err)
	for addr, want := range map[uint64]string{0x9000: "old", 0x1000: "f960", 0x1270: "f999"} {
		got, _ := table.Lookup(addr)
		require.Equal(t, want, got.Name)
	}
}

// If a JVM rewrites a perf map, the file is read again from the start, whatever its size.
func TestPerfMapRewritten(t *testing.T) {
	piece := func(from, to int, name string) string {
		var text strings.Builder
		for i := from; i < to; i++ {
			fmt.Fprintf(&text, "%x 10 %s%04d\n", 0x10000+0x10*i, name, i)
		}
		return text.String()
	}
	first := piece(0, 1000, "first")
	for name, second := range map[string]string{
		"other from the start on":       piece(0, 2000, "other"),
		"other from the start, as long": piece(0, 1000, "other"),
		"the same head":                 piece(0, 500, "first") + piece(1500, 3000, "other"),
		"the same head, as long":        piece(0, 500, "first") + piece(1500, 2000, "other"),
		"the same end":                  piece(500, 1000, "other") + piece(500, 1000, "first") + piece(2000, 2100, "added"),
		"shorter":                       piece(300, 700, "other"),
		"empty":                         "",
	} {
		t.Run(name, func(t *testing.T) {
			for _, parts := range [][]string{{first}, {first[:100], first}, {first[:5000], first}} {
				var table *symtab.Table
				for _, part := range parts {
					table = perfMapOf(t, part, table)
				}
				table = perfMapOf(t, second, table)
				want := perfMapOf(t, second, nil)
				for i := range 3000 {
					addr := uint64(0x10000 + 0x10*i)
					expected, _ := want.Lookup(addr)
					got, _ := table.Lookup(addr)
					require.Equal(t, expected.Name, got.Name, "%#x", addr)
				}
			}
		})
	}
}

// If a perf map has only grown, only the new part and its edges are read.
func TestPerfMapGrown(t *testing.T) {
	var text bytes.Buffer
	write := func(n int) {
		for range n {
			fmt.Fprintf(&text, "%x 10 function%d\n", 0x10000+text.Len(), text.Len())
		}
	}
	write(100_000)
	read := func(old *symtab.Table) (*symtab.Table, int64) {
		r := &counted{ReaderAt: bytes.NewReader(text.Bytes())}
		table, err := ReadPerfMap(t.Context(), r, int64(text.Len()), old, symtab.DefaultLimits())
		require.NoError(t, err)
		return table, r.bytes
	}
	table, _ := read(nil)
	before := text.Len()
	write(10)
	_, more := read(table)
	require.LessOrEqual(t, more, int64(text.Len()-before+2*perfEdge))
}

// counted counts the bytes read.
type counted struct {
	io.ReaderAt
	bytes int64
}

func (c *counted) ReadAt(b []byte, off int64) (int, error) {
	c.bytes += int64(len(b))
	return c.ReaderAt.ReadAt(b, off)
}

// lines is a file that repeats one line.
type lines string

func (l lines) ReadAt(b []byte, off int64) (int, error) {
	for n := 0; n < len(b); {
		n += copy(b[n:], l[(off+int64(n))%int64(len(l)):])
	}
	return len(b), nil
}

// An endless perf map is read in parts. The pause between them depends on the cost of the last part.
func TestPerfMapEndless(t *testing.T) {
	const size = 1 << 40
	for name, text := range map[string]lines{"lines": lines("1000 10 " + strings.Repeat("x", 1000) + "\n"), "zeros": lines(make([]byte, 1000))} {
		t.Run(name, func(t *testing.T) {
			var table *symtab.Table
			for i := range int64(2) {
				r := &counted{ReaderAt: text}
				var err error
				table, err = ReadPerfMap(t.Context(), r, size, table, symtab.DefaultLimits())
				require.NoError(t, err)
				require.LessOrEqual(t, r.bytes, int64(maxPerfRead+2*perfEdge))
				require.True(t, table.Cut, "there is more")
				require.InDelta(t, (i+1)*maxPerfRead, table.Read, 2*symtab.Chunk)
			}
		})
	}
}

// Content after a hole is found without reading the hole.
func TestPerfMapHole(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "perf-1.map"))
	require.NoError(t, err)
	defer f.Close()
	const hole = 64<<30 + 100 // file systems report holes only in pages
	read := func(old *symtab.Table) *symtab.Table {
		st, err := f.Stat()
		require.NoError(t, err)
		table, err := ReadPerfMap(t.Context(), f, st.Size(), old, symtab.DefaultLimits())
		require.NoError(t, err)
		require.False(t, table.Cut, "all was read at once")
		require.Equal(t, st.Size(), table.Read)
		return table
	}
	_, err = f.WriteString("1000 10 first\n")
	require.NoError(t, err)
	require.NoError(t, f.Truncate(hole))
	table := read(nil)
	_, err = f.WriteAt([]byte("2000 10 second\n"), hole)
	require.NoError(t, err)
	table = read(table)
	require.NoError(t, f.Truncate(2*hole))
	table = read(table)
	require.Len(t, table.Layers[0].Starts, 2, "what was there stays")
	_, err = f.WriteAt([]byte("3000 10 third\n"), 2*hole)
	require.NoError(t, err)
	require.Len(t, read(table).Layers[0].Starts, 3)
	for _, table := range []*symtab.Table{read(table), read(nil)} {
		for addr, want := range map[uint64]string{0x1000: "first", 0x2000: "second", 0x3000: "third"} {
			s, _ := table.Lookup(addr)
			require.Equal(t, want, s.Name)
		}
	}
}

// If a file is truncated during a read, the remaining content is used.
func TestPerfMapTruncated(t *testing.T) {
	text := "1000 10 first\n2000 10 second\n"
	table, err := ReadPerfMap(t.Context(), strings.NewReader(text), int64(len(text)+symtab.Chunk), nil, symtab.DefaultLimits())
	require.NoError(t, err)
	require.True(t, table.Cut)
	table = perfMapOf(t, text, table)
	require.Len(t, table.Layers[0].Starts, 2)
	require.False(t, table.Cut)
}
