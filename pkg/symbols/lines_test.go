package symbols

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// endedByLines is a Reader that ends, or is too slow, when it reads debug information.
type endedByLines struct {
	parse.Here
	ends  bool
	slow  bool
	tasks []bool // whether the ones so far wanted lines
}

func (r *endedByLines) Read(ctx context.Context, t *symtab.Task) (*symtab.Table, time.Duration, error) {
	r.tasks = append(r.tasks, t.Lines)
	if t.Lines && r.slow {
		return nil, 0, symtab.ErrTooSlow
	}
	if t.Lines && r.ends {
		return nil, 0, fmt.Errorf("%w: %w", symtab.ErrReader, errors.New("out of memory"))
	}
	return r.Here.Read(ctx, t)
}

// withLines is a file with names and lines.
func withLines() []byte {
	content := elftest.WithDebug(elftest.DwarfExample(4)).Bytes()
	binary.LittleEndian.PutUint64(content[64+16:], 0)
	return content
}

// Debug information is read after the names, which stay where that ends what reads it.
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
		require.Equal(t, ends, s.Stats().Lost == 1)
	}
}

// Lines that the reader was not there for, or too slow, come later, and the names stay meanwhile.
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

// So it is with a debug file that was fetched.
func TestLinesOfFetched(t *testing.T) {
	debug := onDisk(t, withLines())
	for ends, want := range map[bool]string{true: "", false: "/src/main.c"} {
		fetch := func(context.Context, string) (*os.File, error) { return debug.Open() }
		s := newStore(t, Options{Reader: &endedByLines{ends: ends}, Limits: elftest.Small, Lines: true, Fetch: fetch})
		file := onDisk(t, elftest.WithNote().Symbols(".dynsym", elf.SHT_DYNSYM, elftest.Function("shown", 0x1080, 0x10)).Bytes())
		s.Request(file)
		require.Eventually(t, func() bool { return s.Stats().Fetched+s.Stats().NotFetched == 1 }, 10*time.Second, time.Millisecond)
		got, state := s.Lookup(file.ID, 0x1000)
		require.Equal(t, symtab.Named, state)
		require.Equal(t, "outer", got.Name)
		require.Equal(t, want, got.File)
		require.EqualValues(t, 1, s.Stats().Fetched)
	}
}
