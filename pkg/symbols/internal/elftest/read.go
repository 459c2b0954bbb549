package elftest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// Read returns the table of a task, with all functions of a Go program. A parser's reader is a parameter, because the parser's
// own tests import this package.
func Read(t testing.TB, r symtab.Reader, task symtab.Task) *symtab.Table {
	t.Helper()
	table, _, err := r.Read(t.Context(), &task)
	require.NoError(t, err)
	if g := table.Golang; g != nil {
		task.Kind, task.Old = symtab.ReadFunctions, table
		for i, start := range g.Start[:len(g.Start)-1] {
			task.Functions = append(task.Functions, symtab.GoRange{Number: uint32(i), Size: g.Start[i+1] - start})
		}
		table, _, err = r.Read(t.Context(), &task)
		require.NoError(t, err)
	}
	return table
}
