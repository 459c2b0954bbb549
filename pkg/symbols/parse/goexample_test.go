package parse

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

func TestGoExample(t *testing.T) {
	table, err := readBytes(elftest.GoExample(elftest.GoExampleTable()).Bytes())
	require.NoError(t, err)
	const text = elftest.TestBase + 176
	outer := symtab.Symbol{Name: "main.main", File: "/main.go", Line: 10, StartLine: 9, Source: symtab.SourcePclntab}
	for off, want := range map[uint64]symtab.Symbol{
		0: outer, 3: outer,
		4:  {Name: "main.inner", File: "/inner.go", Line: 99, StartLine: 90, Source: symtab.SourcePclntab, Callers: []symtab.Symbol{outer}},
		8:  {Name: "main.main", File: "/main.go", Line: 12, StartLine: 9, Source: symtab.SourcePclntab},
		16: {Name: "main.last", File: "/main.go", Line: 20, Source: symtab.SourcePclntab}, 31: {Name: "main.last", File: "/main.go", Line: 20, Source: symtab.SourcePclntab},
		32: {},
	} {
		got, _ := table.Lookup(text + off)
		require.Equal(t, want, got, "%d", off)
	}
}

// If a read fails, functions are not recorded as nameless but requested again.
func TestGoReadingFails(t *testing.T) {
	content := elftest.GoExample(elftest.GoExampleTable()).Bytes()
	const text = elftest.TestBase + 176
	size := int64(len(content))
	table, err := readTable(newReader(t.Context(), bytes.NewReader(content), size, elftest.Small), elftest.Small, nil)
	require.NoError(t, err)
	for after := 0; ; after++ {
		c := &cutting{bytes.NewReader(content), 0, after}
		more, err := with(t.Context(), table, c, size, []uint64{text, text + 16})
		if c.reads <= after {
			require.NoError(t, err)
			for _, addr := range []uint64{text, text + 16} {
				_, state := more.Lookup(addr)
				require.Equal(t, symtab.Named, state)
			}
			break
		}
		require.ErrorIs(t, err, io.EOF, "after %d reads", after)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = with(ctx, table, bytes.NewReader(content), size, []uint64{text})
	require.ErrorIs(t, err, symtab.ErrTooLarge)
}

// with returns a table that also has Go's functions at addrs.
func with(ctx context.Context, t *symtab.Table, r io.ReaderAt, size int64, addrs []uint64) (*symtab.Table, error) {
	if t.Golang == nil {
		return t, nil
	}
	more := *t
	var err error
	more.Golang, err = loadFunctions(t.Golang, newReader(ctx, r, size, elftest.Small), t.Golang.Missing(addrs), elftest.Small)
	return &more, err
}
