package parse

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// positions reads sections of debug information for code at 0x1000.
func positions(ctx context.Context, t *testing.T, limits symtab.Limits, sections map[string][]byte) *symtab.Positions {
	e := elftest.WithDebug(sections[".debug_info"], sections[".debug_abbrev"], sections[".debug_line"])
	for name, content := range sections {
		if name == ".debug_info" || name == ".debug_abbrev" || name == ".debug_line" {
			continue
		}
		e.Add(elftest.TestSection{Name: name, Kind: elf.SHT_PROGBITS, Data: content})
	}
	content := e.Bytes()
	f, err := openELF(newReader(t.Context(), bytes.NewReader(content), int64(len(content)), limits))
	require.NoError(t, err)
	f.ctx = ctx
	return f.readPositions(0x1000, limits)
}

// unitOf puts the length before body.
func unitOf(body ...[]byte) []byte {
	b := slices.Concat(body...)
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// lineTable returns a DWARF 5 unit whose line table has the given program and files.
func lineTable(program []byte, files ...string) map[string][]byte {
	le := binary.LittleEndian
	tail := []byte{1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 1, 8, 1, '/', 0, 1, 1, 8}
	tail = binary.AppendUvarint(tail, uint64(len(files)))
	for _, name := range files {
		tail = append(append(tail, name...), 0)
	}
	return map[string][]byte{
		".debug_info":   unitOf([]byte{5, 0, 1, 8, 0, 0, 0, 0}, []byte{1, 0, 0, 0, 0}, []byte("/src\x00")),
		".debug_abbrev": {1, 0x11, 0, 0x10, 0x17, 0x1b, 0x08, 0, 0, 0},
		".debug_line":   unitOf([]byte{5, 0, 8, 0}, le.AppendUint32(nil, uint32(len(tail))), tail, program),
	}
}

const mib = 1 << 20

// setAddress and endSequence are operations of a line program.
func setAddress(addr uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{0, 9, 2}, addr)
}

var endSequence = []byte{2, 1, 0, 1, 1}

// A relative path in DWARF 5 is relative to the unit's folder.
func TestRelativePath(t *testing.T) {
	p := positions(t.Context(), t, elftest.Small, lineTable(slices.Concat(setAddress(0x1000), []byte{4, 0, 1}, endSequence), "x/main.c"))
	require.Equal(t, 1, p.Files.Count)
	require.Equal(t, "/src/x/main.c", p.Files.Get(0))
}

// File names count with their full length, although they need little memory when stored.
func TestManyFiles(t *testing.T) {
	var files []string
	long := string(bytes.Repeat([]byte("x"), 4000))
	program := setAddress(0x1000)
	for i := range 1000 {
		files = append(files, long+string(rune('a'+i%26))+string(rune(0x4e00+i)))
		program = append(binary.AppendUvarint(append(program, 4), uint64(i)), 33) // the next file, address and line
	}
	limits := elftest.Small
	limits.Debug *= 8
	p := positions(t.Context(), t, limits, lineTable(append(program, endSequence...), files...))
	sum := 0
	for i := range p.Files.Count {
		sum += len(p.Files.Get(i))
	}
	require.Greater(t, sum, limits.Names/2)
	require.LessOrEqual(t, sum, limits.Names)
}

// A sequence with too many rows is dropped. Earlier sequences stay.
func TestManyRows(t *testing.T) {
	many := bytes.Repeat([]byte{13 + 5 + 1 + 14}, 4*mib) // the next address and line
	p := positions(t.Context(), t, symtab.DefaultLimits(), lineTable(slices.Concat(setAddress(0x1000), []byte{1}, endSequence, setAddress(0x1010), many, endSequence), "main.c"))
	require.Len(t, p.Pieces, 1)
	require.Equal(t, symtab.Piece{Start: 0, End: 1}, p.Pieces[0])
}

// inlinedCalls returns a unit with n inlined calls, each of a different function without an entry.
func inlinedCalls(n int) map[string][]byte {
	le := binary.LittleEndian
	body := slices.Concat([]byte{4, 0}, []byte{0, 0, 0, 0, 8}, []byte{1, 2})
	for i := range n {
		body = append(le.AppendUint32(append(body, 3), uint32(i+100)<<16), le.AppendUint64(nil, 0x1000)...)
		body = append(body, 8)
	}
	return map[string][]byte{
		".debug_info":   unitOf(body, []byte{0, 0}),
		".debug_abbrev": {1, 0x11, 1, 0, 0, 2, 0x2e, 1, 0, 0, 3, 0x1d, 0, 0x31, 0x13, 0x11, 0x01, 0x12, 0x0b, 0, 0, 0},
		".debug_line":   {0},
	}
}

// After a timeout, nothing more is read, and earlier results stay.
func TestDebugTime(t *testing.T) {
	rows := lineTable(slices.Concat(setAddress(0x1000), endSequence, setAddress(0x1000), bytes.Repeat([]byte{33}, mib/2)), "main.c")
	for name, sections := range map[string]map[string][]byte{"calls": inlinedCalls(10_000), "rows": rows} {
		t.Run(name, func(t *testing.T) {
			ctx := &counting{Context: t.Context()}
			require.NotNil(t, positions(ctx, t, symtab.DefaultLimits(), sections))
			require.Greater(t, ctx.asked, 1000)
			ctx = &counting{Context: t.Context(), end: 100}
			require.NotNil(t, positions(ctx, t, symtab.DefaultLimits(), sections))
			require.Equal(t, 101, ctx.asked)
		})
	}
}
