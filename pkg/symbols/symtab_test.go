package symbols

import (
	"context"
	"debug/elf"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// A Store must return the same functions for a program as debug/elf.
func TestStoreSymtab(t *testing.T) {
	s := NewStore(Options{Reader: parse.Here{}})
	defer s.Close()
	path := elftest.GoProgram(t, elftest.Printing)
	exe, err := os.Open(path)
	require.NoError(t, err)
	defer exe.Close()
	id, err := symtab.Identify(exe)
	require.NoError(t, err)
	_, state := s.Lookup(id, 1)
	require.Equal(t, symtab.Unknown, state)
	request := Request{ID: id, Open: func() (*os.File, error) { return os.Open(path) }}
	require.Contains(t, []symtab.State{symtab.Pending, symtab.Named}, s.Request(request))
	require.True(t, s.Wait(context.Background(), id))
	require.Equal(t, symtab.Named, s.Request(request))
	f, err := elf.NewFile(exe)
	require.NoError(t, err)
	symbols, err := f.Symbols()
	require.NoError(t, err)
	symbols = slices.DeleteFunc(symbols, func(s elf.Symbol) bool { return elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Size == 0 })
	for _, want := range symbols {
		_, state := s.Lookup(id, want.Value)
		require.NotEqual(t, symtab.Outside, state)
	}
	require.Contains(t, []symtab.State{symtab.Pending, symtab.Named}, s.Request(request), "those functions are read that were asked for")
	require.True(t, s.Wait(context.Background(), id))
	n := 0
	for _, want := range symbols {
		got, state := s.Lookup(id, want.Value+want.Size-1)
		require.Equal(t, symtab.Named, state)
		if n := len(got.Callers); n > 0 {
			got = got.Callers[n-1] // want is the function that others are inlined into
		}
		if got.Name == want.Name {
			n++
		}
	}
	require.Greater(t, n, 1000)
}
