package symbols

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// checkTable looks up around everything that a table says it has.
func checkTable(t *testing.T, table *Table) {
	t.Helper()
	table.Virtual(0)
	table.Bytes()
	look := func(addr uint64) {
		if s, state := table.Lookup(addr); state == Named {
			require.NotEmpty(t, s.Name)
		}
	}
	for i := range table.layers {
		l := &table.layers[i]
		end := uint64(0)
		for j, start := range l.starts {
			require.GreaterOrEqual(t, uint64(start), end, "in order and apart")
			end = uint64(start) + uint64(l.sizes[j])
			look(l.base + uint64(start))
			look(l.base + end - 1)
			look(l.base + end)
		}
	}
	if g := table.golang; g != nil {
		for _, start := range g.start {
			look(g.text + uint64(start) - 1)
			look(g.text + uint64(start))
			look(g.text + uint64(start) + 7)
		}
	}
}

var small = Limits{Symbols: 4096, Names: 1 << 20, Read: 16 << 20}

func fuzzELF(t *testing.T, b []byte) {
	begin := time.Now()
	table, err := ReadTable(t.Context(), bytes.NewReader(b), int64(len(b)), Reading{Limits: small, Inlined: true})
	if err == nil {
		checkTable(t, table)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Fatalf("reading %d bytes took %v", len(b), took)
	}
}
