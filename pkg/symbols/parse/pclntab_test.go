package parse

import (
	"bytes"
	"debug/elf"
	"debug/gosym"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

func tableOf(t *testing.T, path string) *symtab.Table {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	table, err := readAll(f, st.Size(), symtab.DefaultLimits())
	require.NoError(t, err)
	return table
}

// outermost returns the function that other functions were inlined into.
func outermost(s symtab.Symbol) symtab.Symbol {
	if n := len(s.Callers); n > 0 {
		return s.Callers[n-1]
	}
	return s
}

// For every 31st address of the test binary, the table returns the same function as the Go runtime.
func TestGoRuntime(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	f, err := elf.Open(exe)
	require.NoError(t, err)
	defer f.Close()
	if f.Type != elf.ET_EXEC {
		t.Skip("the program does not lie where it was linked to")
	}
	table := tableOf(t, exe)
	text := f.Section(".text")
	checked, inlined, begun := 0, 0, 0
	for pc := text.Addr; pc < text.Addr+text.Size; pc += 31 {
		fn := runtime.FuncForPC(uintptr(pc))
		got, state := table.Lookup(pc)
		if fn == nil {
			require.NotEqual(t, symtab.Named, state, "%#x %s", pc, got.Name)
			continue
		}
		if next := runtime.FuncForPC(uintptr(pc + 1)); next != nil && uint64(next.Entry()) == pc+1 {
			continue // no call returns to a function's first byte: CallersFrames assumes an interrupt
		}
		if fn.Name() == "" { // the runtime treats the first name, at offset 0, as none
			continue
		}
		// For an address that runtime.Callers did not return, Next returns only the inlined function.
		frame, _ := runtime.CallersFrames([]uintptr{uintptr(pc + 1)}).Next()
		if frame.Function == "" { // between functions
			continue
		}
		if len(got.Callers) > 0 {
			inlined++
		}
		// The runtime returns the entry of the outermost function, also for an inlined function.
		entry, _ := table.Lookup(uint64(fn.Entry()))
		require.Equal(t, outermost(entry).Name, outermost(got).Name, "%#x", pc)
		require.Equal(t, outermost(entry).StartLine, outermost(got).StartLine, "%#x", pc)
		// The runtime does not print type parameters.
		if from, to := strings.IndexByte(got.Name, '['), strings.LastIndexByte(got.Name, ']'); from >= 0 && from < to {
			got.Name = got.Name[:from] + "[...]" + got.Name[to+1:]
		}
		start := int(reflect.ValueOf(frame).FieldByName("startLine").Int()) // as in runtime/pprof
		want := symtab.Symbol{Name: frame.Function, File: frame.File, Line: frame.Line, StartLine: start, Source: symtab.SourcePclntab, Callers: got.Callers}
		if want.File == "?" || want.File == "" {
			want.File, want.Line = "", 0
		}
		require.Equal(t, symtab.Named, state)
		require.Equal(t, want, got, "%#x", pc)
		checked++
		if start > 0 {
			begun++
		}
	}
	t.Logf("%d addresses, %d of them inlined; a table of %d bytes for %d functions", checked, inlined, table.Bytes(), len(table.Golang.Start)-1)
	require.Greater(t, checked, 50_000)
	require.Greater(t, inlined, 5_000)
	require.Greater(t, begun, 50_000)
}

// In programs from different builds, all functions are the same as in debug/gosym, which reads the program with its symbol table.
func TestGoPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		arch  string
		flags []string
	}{
		"static": {"", nil},
		"PIE":    {"", []string{"-buildmode=pie"}},
		"arm64":  {"arm64", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CGO_ENABLED", "0")
			if c.arch != "" {
				t.Setenv("GOARCH", c.arch)
			}
			full := elftest.GoProgram(t, elftest.Printing, c.flags...)
			truth := goFunctions(t, full)
			stripped := elftest.GoProgram(t, elftest.Printing, append(c.flags, "-ldflags=-s -w")...)
			bare := filepath.Join(t.TempDir(), "bare")
			withoutSections(t, stripped, bare)
			nameless := filepath.Join(t.TempDir(), "nameless")
			withoutNames(t, stripped, nameless)
			for _, path := range []string{full, stripped, bare, nameless} {
				table := tableOf(t, path)
				require.NotNil(t, table.Golang, path)
				n := 0
				for _, f := range truth.Funcs {
					for _, pc := range []uint64{f.Entry, (f.Entry + f.End) / 2, f.End - 1} {
						s, state := table.Lookup(pc)
						require.Equal(t, symtab.Named, state)
						s = outermost(s)
						require.Equal(t, f.Name, s.Name, "%#x of %s", pc, path)
						require.Equal(t, symtab.SourcePclntab, s.Source)
						if file, line, fn := truth.PCToLine(f.Entry); fn != nil && pc == f.Entry && file != "" {
							require.Equal(t, file, s.File)
							_ = line
						}
						n++
					}
				}
				t.Logf("%s: %d addresses, %d bytes", filepath.Base(path), n, table.Bytes())
				require.Greater(t, n, 2000)
			}
		})
	}
}

// goFunctions reads a program's functions with its symbol table, which contains the start of the text.
func goFunctions(t *testing.T, path string) *gosym.Table {
	t.Helper()
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.Symbols()
	require.NoError(t, err)
	var text, table, end uint64
	for _, s := range symbols {
		switch s.Name {
		case "runtime.text":
			text = s.Value
		case "runtime.pclntab":
			table = s.Value
		case "runtime.epclntab":
			end = s.Value
		}
	}
	var data []byte
	for _, s := range f.Sections {
		if s.Addr <= table && table < s.Addr+s.Size {
			data = make([]byte, end-table)
			_, err := s.ReadAt(data, int64(table-s.Addr))
			require.NoError(t, err)
		}
	}
	tab, err := gosym.NewTable(nil, gosym.NewLineTable(data, text))
	require.NoError(t, err)
	return tab
}

// withoutSections copies a program without its section headers.
func withoutSections(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	clear(b[0x28:0x30]) // e_shoff
	clear(b[0x3c:0x40]) // e_shnum, e_shstrndx
	require.NoError(t, os.WriteFile(to, b, 0o700))
}

// withoutNames copies a program without section names.
func withoutNames(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	f, err := elf.NewFile(bytes.NewReader(b))
	require.NoError(t, err)
	s := f.Section(".shstrtab")
	clear(b[s.Offset:][:s.Size])
	require.NoError(t, os.WriteFile(to, b, 0o700))
}

// A lookup decodes only a few pairs of a function's tables, even if they are long.
func TestGoPairs(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const n, quantum = 20_000, 4
	type row struct {
		end   uint32
		value int32
	}
	var b []byte
	var truth []row
	now := row{0, -1}
	for i := range n {
		by := random.IntN(200) - 100
		if by == 0 && i > 0 {
			by = 1 // 0 would be the end
		}
		distance := 1 + random.IntN(5)
		b = binary.AppendUvarint(binary.AppendVarint(b, int64(by)), uint64(distance))
		now = row{now.end + uint32(distance)*quantum, now.value + int32(by)}
		truth = append(truth, now)
	}
	b = append(b, 0)
	table := &symtab.GoTable{GoPlace: symtab.GoPlace{GoHeader: symtab.GoHeader{Quantum: quantum}}}
	p, whole := newGoPairs(b, quantum)
	require.True(t, whole)
	require.LessOrEqual(t, len(p.Resume), n/symtab.ResumeSteps)
	start := uint32(0)
	for _, want := range truth {
		for _, pc := range []uint32{start, want.end - 1} {
			steps := 0
			symtab.GoValues(p.B, quantum, p.From(pc), func(now symtab.GoResume) bool {
				steps++
				return now.Pc <= pc
			})
			if got := table.Value(&p, pc); got != want.value || steps > symtab.ResumeSteps {
				t.Fatalf("%#x: %d after %d steps, want %d", pc, got, steps, want.value)
			}
		}
		start = want.end
	}
	require.EqualValues(t, -1, table.Value(&p, start))
	require.EqualValues(t, -1, table.Value(&symtab.GoPairs{}, 0))

	// In a table whose addresses do not increase, no state is close to the address.
	b = nil
	for range n {
		b = append(b, 2, 0)
	}
	p, _ = newGoPairs(append(b, 0), quantum)
	steps := 0
	symtab.GoValues(p.B, quantum, p.From(1), func(symtab.GoResume) bool { steps++; return true })
	require.LessOrEqual(t, steps, symtab.ResumeSteps)
	require.EqualValues(t, -1, table.Value(&p, 1))
}
