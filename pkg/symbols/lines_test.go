package symbols

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// endedByLines is a Reader that exits or is too slow when it reads debug information.
type endedByLines struct {
	parse.Here
	ends  bool
	slow  bool
	tasks []bool // whether each task so far requested lines
	costs time.Duration
}

func (r *endedByLines) Read(ctx context.Context, t *symtab.Task) (*symtab.Table, time.Duration, error) {
	lines := t.Kind == symtab.ReadLines
	r.tasks = append(r.tasks, lines)
	if lines && r.slow {
		return nil, r.costs, symtab.ErrTooSlow
	}
	if lines && r.ends {
		return nil, r.costs, fmt.Errorf("%w: %w", symtab.ErrReader, errors.New("out of memory"))
	}
	table, _, err := r.Here.Read(ctx, t)
	return table, r.costs, err
}

// withLines returns a file with names and lines.
func withLines() []byte {
	return elftest.WithDebug(elftest.DwarfExample(4)).Bytes()
}

// Debug information is read after the names. If this crashes the reader, the names must stay.
func TestLinesApart(t *testing.T) {
	content := withLines()
	for ends, want := range map[bool]string{true: "", false: "/src/main.c"} {
		s := newStore(t, Options{Reader: &endedByLines{ends: ends}, Limits: elftest.Small, Lines: true})
		file := onDisk(t, content)
		require.Equal(t, symtab.Pending, s.Request(file))
		require.True(t, s.Wait(t.Context(), file.ID))
		got, state := s.Lookup(file.ID, 0x1000)
		require.Equal(t, symtab.Named, state)
		require.Equal(t, "outer", got.Name)
		require.Equal(t, want, got.File)
	}
}

// If the reader was missing or too slow, lines come later. Until then, the names must stay.
func TestLinesLater(t *testing.T) {
	content := withLines()
	for _, reader := range []*endedByLines{{ends: true}, {slow: true}} {
		s := newStore(t, Options{Reader: reader, Limits: elftest.Small, Lines: true})
		file := onDisk(t, content)
		look := func(want symtab.State) string {
			got, state := s.Lookup(file.ID, 0x1000)
			require.Equal(t, want, state)
			require.Equal(t, "outer", got.Name)
			return got.File
		}
		require.Equal(t, symtab.Pending, s.Request(file))
		require.True(t, s.Wait(t.Context(), file.ID))
		for _, wait := range []time.Duration{30 * time.Second, time.Minute} {
			require.Empty(t, look(symtab.Named))
			pass(s, file.ID, wait-10*time.Second)
			require.Empty(t, look(symtab.Named), "not yet")
			pass(s, file.ID, 10*time.Second)
			require.Empty(t, look(symtab.Unknown), "whoever looks up has to request them")
			require.Equal(t, symtab.Named, s.Request(file))
			require.True(t, s.Wait(t.Context(), file.ID))
		}
		pass(s, file.ID, time.Hour)
		reader.ends, reader.slow = false, false
		require.Equal(t, symtab.Named, s.Request(file))
		require.True(t, s.Wait(t.Context(), file.ID))
		require.Equal(t, "/src/main.c", look(symtab.Named))
		require.Equal(t, []bool{false, true, true, true, true}, reader.tasks, "names are read once")
		pass(s, file.ID, time.Hour)
		require.Equal(t, "/src/main.c", look(symtab.Named))
	}
}

// A fetched debug file's lines also come later. Then only the lines are read.
func TestLinesOfFetched(t *testing.T) {
	debug := onDisk(t, withLines())
	for _, reader := range []*endedByLines{{}, {ends: true}, {slow: true}} {
		want, missing := "/src/main.c", reader.ends || reader.slow
		if missing {
			want = ""
		}
		var fetches atomic.Int64
		fetch := func(context.Context, string) (*os.File, error) {
			if fetches.Add(1) == 2 {
				return nil, errors.New("it is not there for now")
			}
			return debug.Open()
		}
		s := newStore(t, Options{Reader: reader, Limits: elftest.Small, Lines: true, Fetch: fetch})
		file := onDisk(t, elftest.WithNote().Symbols(".dynsym", elf.SHT_DYNSYM, elftest.Function("shown", 0x1080, 0x10)).Bytes())
		fetched := func(n int64) {
			require.Eventually(t, func() bool { return fetches.Load() == n }, 10*time.Second, time.Millisecond)
			awaitFetch(t, s, file.ID)
		}
		look := func(wanted symtab.State) string {
			got, state := s.Lookup(file.ID, 0x1000)
			require.Equal(t, wanted, state)
			require.Equal(t, "outer", got.Name)
			return got.File
		}
		s.Request(file)
		fetched(1)
		require.Equal(t, want, look(symtab.Named))
		if missing {
			for i, wait := range []time.Duration{30 * time.Second, time.Minute} {
				pass(s, file.ID, wait-10*time.Second)
				require.Empty(t, look(symtab.Named), "not yet")
				pass(s, file.ID, 10*time.Second)
				require.Empty(t, look(symtab.Unknown), "whoever looks up has to request them")
				reader.ends, reader.slow = false, false
				require.Equal(t, symtab.Named, s.Request(file))
				fetched(2 + int64(i))
			}
			require.Equal(t, []bool{false, false, true, true}, reader.tasks, "names are read once")
		}
		pass(s, file.ID, time.Hour)
		require.Equal(t, "/src/main.c", look(symtab.Named))
		shown, _ := s.Lookup(file.ID, 0x1080)
		require.Equal(t, "shown", shown.Name)
	}
}

// The CPU time for fetched debug files must count like the CPU time for other files.
func TestFetchedCounts(t *testing.T) {
	debug := onDisk(t, withLines())
	reader := &endedByLines{costs: burst}
	s := newStore(t, Options{Reader: reader, Limits: elftest.Small, Lines: true, Fetch: func(context.Context, string) (*os.File, error) { return debug.Open() }})
	file := onDisk(t, elftest.WithNote().Symbols(".dynsym", elf.SHT_DYNSYM, elftest.Function("shown", 0x1080, 0x10)).Bytes())
	s.Request(file)
	require.True(t, s.Wait(t.Context(), file.ID))
	awaitFetch(t, s, file.ID)
	got, _ := s.Lookup(file.ID, 0x1000)
	require.Equal(t, "outer", got.Name)
	require.Greater(t, s.allowance.Wait(), (slowdown+1)*burst, "for names, and for names and lines of the debug file")
}
