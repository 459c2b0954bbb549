package symbols

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// heap returns the memory in use, in bytes.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the second collection frees the content of pools
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// changing is a path whose file changes with each call of next.
type changing struct {
	path string
	time time.Time
}

func (c *changing) next(t *testing.T, content []byte) Request {
	t.Helper()
	if content != nil {
		require.NoError(t, os.WriteFile(c.path, content, 0o600))
	}
	c.time = c.time.Add(time.Second)
	require.NoError(t, os.Chtimes(c.path, c.time, c.time))
	f, err := os.Open(c.path)
	require.NoError(t, err)
	defer f.Close()
	id, err := symtab.Identify(f)
	require.NoError(t, err)
	return Request{ID: id, Path: c.path, Open: func() (*os.File, error) { return os.Open(c.path) }}
}

// As on a build machine, C and Go programs with and without names appear, are requested and disappear. Some disappear before
// they are read. The Store's memory must stay constant and within its limit, and must be freed after the last request.
func TestStoreMemory(t *testing.T) {
	const bound = 2 << 20
	s := newStore(t, Options{Bytes: bound})
	dir := t.TempDir()
	c, golang := &changing{path: filepath.Join(dir, "c")}, &changing{path: filepath.Join(dir, "go")}
	exe, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	golang.next(t, exe)
	all := tableOf(t, os.Args[0])
	starts := all.Golang.Start[:len(all.Golang.Start)-1]
	const files, steps = 600, 3
	var levels []int64
	gone := 0
	before, begin := heap(), time.Now()
	for i := range files {
		var symbols []elftest.TestSymbol
		for j := range i % 50 * 10 {
			symbols = append(symbols, elftest.Function(fmt.Sprintf("function%d_%d", i, j), 0x1000+uint64(j), 1))
		}
		content := new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x1000)).Symbols(".symtab", elf.SHT_SYMTAB, symbols...).Bytes()
		r := c.next(t, content)
		switch i % 20 {
		case 0:
			r = golang.next(t, nil)
			s.Request(r)
			s.Wait(t.Context(), r.ID)
			for j := range 20 {
				s.Lookup(r.ID, all.Golang.Text+uint64(starts[(i+97*j)%len(starts)]))
			}
			s.Request(r) // the functions
			s.Wait(t.Context(), r.ID)
			golang.next(t, nil) // removed before more is requested
			s.Lookup(r.ID, all.Golang.Text+uint64(starts[i]))
		case 1, 11:
			c.next(t, content) // removed before it is read
		}
		s.Request(r)
		s.Wait(t.Context(), r.ID)
		if _, state := s.Lookup(r.ID, 0x1000); state == symtab.Gone {
			gone++
		}
		if (i+1)%(files/steps) == 0 {
			levels = append(levels, heap()-before)
		}
	}
	runtime.KeepAlive(all)
	kept, bytes := held(s)
	t.Log(levels, kept, bytes, gone)
	require.Positive(t, gone)
	require.Less(t, kept, files, "some are forgotten")
	for _, level := range levels {
		require.InDelta(t, bytes, level, bound/2, "what is kept is what is counted")
	}
	same := func() {
		files, _ := held(s)
		require.Equal(t, kept, files)
	}
	s.forgetOld(begin.Add(defaultKeep))
	same()
	s.KeepFor(2 * defaultKeep)
	s.forgetOld(begin.Add(2 * defaultKeep))
	same()
	s.forgetOld(time.Now().Add(2 * defaultKeep))
	kept, bytes = held(s)
	require.Zero(t, kept)
	require.Zero(t, bytes)
	require.Less(t, heap()-before, int64(bound/2))
}

// tableOf returns a file's table, with all functions of a Go program.
func tableOf(t *testing.T, path string) *symtab.Table {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	task := symtab.Task{Limits: symtab.DefaultLimits(), Opened: f, Size: st.Size()}
	return elftest.Read(t, parse.Here{}, task)
}
