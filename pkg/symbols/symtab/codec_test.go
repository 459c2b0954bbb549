package symtab_test

import (
	"bytes"
	"debug/elf"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// readBytes reads a file with this content, and all functions of a Go program.
func readBytes(t testing.TB, content []byte) *symtab.Table {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	task := symtab.Task{Limits: elftest.Small, Opened: f, Size: int64(len(content))}
	return elftest.Read(t, parse.Here{}, task)
}

// examples returns tables of all kinds.
func examples(t testing.TB) map[string]*symtab.Table {
	t.Helper()
	all := map[string]*symtab.Table{}
	all["go"] = readBytes(t, elftest.GoExample(elftest.GoExampleTable()).Bytes())
	all["symtab"] = readBytes(t, new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x1000)).
		Symbols(".symtab", elf.SHT_SYMTAB, elftest.Function("one", 0x1000, 0x10), elftest.Function("two", 0x1010, 0x10), elftest.Function("two", 0x1030, 0x10)).Bytes())
	perf := []byte("1000 10 a\n1020 10 b\n700000000000 10 c\n")
	var err error
	all["perf map"], err = parse.ReadPerfMap(t.Context(), bytes.NewReader(perf), int64(len(perf)), nil, symtab.DefaultLimits())
	require.NoError(t, err)
	return all
}

// A decoded Table must return the same results as the original.
func TestCodec(t *testing.T) {
	for name, table := range examples(t) {
		got, err := symtab.ReadWritten(symtab.Written(t, table), table.Bytes()+symtab.Slack)
		require.NoError(t, err, name)
		require.InDelta(t, table.Bytes(), got.Bytes(), 100, name)
		for addr := uint64(0); addr < 0x3000; addr++ {
			for _, base := range []uint64{0, elftest.TestBase, 0x700000000000} {
				want, state := table.Lookup(base + addr)
				symbol, gotState := got.Lookup(base + addr)
				require.Equal(t, want, symbol, name)
				require.Equal(t, state, gotState, name)
			}
		}
		_, err = symtab.ReadWritten(symtab.Written(t, table), 100)
		require.ErrorIs(t, err, symtab.ErrCodec, "%s: it takes more than it may", name)
	}
}

// hostile returns encoded Tables that tests can change.
func hostile(t testing.TB) (all [][]byte) {
	for _, table := range examples(t) {
		all = append(all, symtab.Written(t, table))
	}
	var table symtab.Table
	symtab.Fill(reflect.ValueOf(&table).Elem())
	return append(all, symtab.Written(t, &table))
}

// ask looks up everything in an encoded Table. It returns false if the Table cannot be decoded.
func ask(t *testing.T, b []byte) bool {
	const left = 1 << 20
	table, err := symtab.ReadWritten(b, left)
	if err != nil {
		return false
	}
	require.Less(t, table.Bytes(), int64(3*left))
	addrs := []uint64{0}
	for _, l := range table.Layers {
		for i := range min(len(l.Starts), 100) {
			addrs = append(addrs, l.Base+uint64(l.Starts[i]))
		}
	}
	if g := table.Golang; g != nil {
		for i := range g.Loaded {
			if int(i) < len(g.Start) {
				addrs = append(addrs, g.Text+uint64(g.Start[i]), g.Text+uint64(g.Start[i])+8)
			}
		}
		g.Missing(addrs)
	}
	debug := table.WithDebug(table)
	for _, addr := range addrs {
		table.Lookup(addr)
		debug.Lookup(addr)
	}
	return true
}

// Decoding arbitrary bytes must return an error or a Table. The Table's methods must not panic, and its memory must be within
// the limit.
func FuzzCodec(f *testing.F) {
	for _, b := range hostile(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { ask(t, b) })
}

// TestCodecChanged changes some bytes of encoded Tables, with the requirements of FuzzCodec. Many changed Tables can be
// decoded.
func TestCodecChanged(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	read := 0
	for _, b := range hostile(t) {
		for range 20_000 {
			changed := bytes.Clone(b)
			for range 1 + r.IntN(3) {
				changed[r.IntN(len(b))] = []byte{0, 1, 2, 0x7f, 0x80, 0xff, byte(r.IntN(256))}[r.IntN(7)]
			}
			if ask(t, changed) {
				read++
			}
		}
	}
	t.Log(read)
	require.Greater(t, read, 1000)
}
