package symbols

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// perfMap writes a perf map and returns a Request for it.
func perfMap(t *testing.T, text string) Request {
	t.Helper()
	r := onDisk(t, []byte(text))
	r.ID = symtab.FileID{Dev: r.ID.Dev, Inode: r.ID.Inode, Process: 1}
	return r
}

// On a request, a Store must read the new part of a perf map. Before the request, new addresses are Outside.
func TestStorePerfMap(t *testing.T) {
	s := NewStore(Options{Reader: parse.Here{}})
	defer s.Close()
	r := perfMap(t, "1000 10 first\n")
	id := r.ID
	s.Request(r)
	require.True(t, s.Wait(t.Context(), id))
	got, state := s.Lookup(id, 0x1008)
	require.Equal(t, symtab.Named, state)
	require.Equal(t, symtab.Symbol{Name: "first", Source: symtab.SourcePerfMap}, got)
	require.Equal(t, symtab.Named, s.Request(r), "not again at once")
	appending, err := os.OpenFile(r.Path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	defer appending.Close()
	_, err = appending.WriteString("2000 10 second\n")
	require.NoError(t, err)
	_, state = s.Lookup(id, 0x2000)
	require.Equal(t, symtab.Outside, state)
	s.mu.Lock()
	s.entries[id].read = time.Time{} // long ago
	s.mu.Unlock()
	require.Equal(t, symtab.Pending, s.Request(r))
	require.True(t, s.Wait(t.Context(), id))
	got, _ = s.Lookup(id, 0x2000)
	require.Equal(t, "second", got.Name)
	files, _ := held(s)
	require.Equal(t, 1, files)
}

func TestVDSO(t *testing.T) {
	s := NewStore(Options{Reader: parse.Here{}})
	defer s.Close()
	require.Equal(t, symtab.Pending, s.Request(Request{ID: symtab.VDSO}))
	require.True(t, s.Wait(t.Context(), symtab.VDSO))
	names := map[string]bool{}
	for addr := uint64(0); addr < 0x4000; addr++ {
		if s, state := s.Lookup(symtab.VDSO, addr); state == symtab.Named {
			names[s.Name] = true
		}
	}
	require.Condition(t, func() bool { return names["__vdso_clock_gettime"] || names["__kernel_clock_gettime"] }, "%v", names)
}

// The more CPU time a read of a perf map takes, the longer the next read must wait, both alone and in the queue with other
// files.
func TestPerfMapCost(t *testing.T) {
	now := time.Now()
	e := entry{id: symtab.FileID{Process: 1}, table: &symtab.Table{}, read: now}
	require.False(t, e.more(now.Add(again-1)))
	require.True(t, e.more(now.Add(again)))
	program, small := entry{id: symtab.FileID{Size: 100 << 20}}, entry{id: symtab.FileID{Size: 1 << 20}}
	require.Greater(t, e.urgency(), small.urgency())
	e.cost = time.Second
	require.False(t, e.more(now.Add(perfRest*time.Second-1)))
	require.True(t, e.more(now.Add(perfRest*time.Second)))
	require.Less(t, e.urgency(), program.urgency())
	// The Store records the cost.
	s := newStore(t, Options{})
	var text strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&text, "%x 10 function%d\n", 0x10000+0x10*i, i)
	}
	r := perfMap(t, text.String())
	s.Request(r)
	require.True(t, s.Wait(t.Context(), r.ID))
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Positive(t, s.entries[r.ID].cost)
}

// A perf map must not count as read before all its parts were read.
func TestStorePerfMapInParts(t *testing.T) {
	text := strings.Repeat("1000 10 function\n", 1000)
	r := perfMap(t, text)
	s := newStore(t, Options{Limits: symtab.Limits{Symbols: 100, Names: 1000, Read: int64(len(text)) * 2 / 3, Memory: 1 << 20}})
	before := time.Now()
	for _, want := range []bool{false, true} {
		s.Request(r)
		require.True(t, s.Wait(t.Context(), r.ID))
		_, state := s.Lookup(r.ID, 0x1000)
		require.Equal(t, symtab.Named, state)
		require.Equal(t, want, s.ReadSince(r.ID, before))
		s.mu.Lock()
		s.entries[r.ID].read = time.Time{} // long ago
		s.mu.Unlock()
	}
}
