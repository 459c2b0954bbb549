package parse

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

//go:noinline
func callsNothing(text string) (h uint32) {
	for i := range len(text) {
		h = (h ^ uint32(text[i])) * 16777619
	}
	return h
}

//go:noinline
func callsOne(text string) uint32 { return callsNothing(text) + 1 }

// In the test binary, ReadGoLeaves finds exactly the functions that call nothing. Truncated or damaged copies have fewer leaves,
// and do no harm.
func TestGoLeaves(t *testing.T) {
	require.NotZero(t, callsOne("a"))
	exe, err := os.Executable()
	require.NoError(t, err)
	content, err := os.ReadFile(exe)
	require.NoError(t, err)
	leaves, err := ReadGoLeaves(context.Background(), bytes.NewReader(content), int64(len(content)), symtab.DefaultLimits())
	require.NoError(t, err)
	require.NotZero(t, leaves.Assembly)
	f, err := openELF(newReader(context.Background(), bytes.NewReader(content), int64(len(content)), symtab.DefaultLimits()))
	require.NoError(t, err)
	table, err := f.readGo(symtab.DefaultLimits())
	require.NoError(t, err)
	// isLeaf finds a function by the offset of its entry in the function list.
	isLeaf := func(function any) bool {
		i, ok := table.Function(uint64(reflect.ValueOf(function).Pointer()))
		require.True(t, ok)
		at := table.Offset + table.Program
		at += uint64(binary.LittleEndian.Uint32(content[at+8*uint64(i)+4:])) + 32
		return slices.ContainsFunc(leaves.Functions, func(l GoLeaf) bool { return l.UnitAt == at })
	}
	require.True(t, isLeaf(callsNothing))
	require.False(t, isLeaf(callsOne))
	t.Logf("%d of %d functions", len(leaves.Functions), table.Functions)

	few := symtab.DefaultLimits()
	few.Names = 1 << 10
	none, err := ReadGoLeaves(context.Background(), bytes.NewReader(content), int64(len(content)), few)
	require.NoError(t, err)
	require.Empty(t, none.Functions, "a table beyond the limits")

	for _, damage := range []byte{0, 0x7f, 0xff} {
		broken := slices.Clone(content)
		for i := table.Offset + 64; i < table.End; i += 97 {
			broken[i] = damage
		}
		_, _ = ReadGoLeaves(context.Background(), bytes.NewReader(broken), int64(len(broken)), symtab.DefaultLimits()) // must return
	}
}
