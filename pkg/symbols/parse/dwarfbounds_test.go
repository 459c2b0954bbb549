package parse

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// debugReader reads those sections. It returns how many bytes were allocated for it as well.
func debugReader(ctx context.Context, sections map[string][]byte) (*dwarfReader, uint64) {
	f := &elfFile{reader: &reader{ctx: ctx, left: &symtab.Budget{Memory: elftest.Small.Memory}}, order: binary.LittleEndian, segments: []segment{{kind: 1, flags: 1, addr: 0x1000, size: 1 << 30}}}
	d := &dwarfReader{
		elfFile: f, limits: elftest.Small, sections: sections, fileNumbers: map[string]uint32{}, nameNumbers: map[uint64]uint32{}, abbrevs: map[uint64]map[uint64]abbrev{},
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d.readUnits()
	runtime.ReadMemStats(&after)
	return d, after.TotalAlloc - before.TotalAlloc
}

// unitOf puts a length in front.
func unitOf(body ...[]byte) []byte {
	b := slices.Concat(body...)
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// lineTable is a unit of DWARF 5 whose table of lines has that list of folders and program.
func lineTable(folders, program []byte) map[string][]byte {
	le := binary.LittleEndian
	tail := slices.Concat([]byte{1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1}, folders, []byte{1, 1, 8, 1}, []byte("main.c\x00"))
	return map[string][]byte{
		".debug_info":   unitOf([]byte{5, 0, 1, 8, 0, 0, 0, 0}, []byte{1, 0, 0, 0, 0}, []byte("/src\x00")),
		".debug_abbrev": {1, 0x11, 0, 0x10, 0x17, 0x1b, 0x08, 0, 0, 0},
		".debug_line":   unitOf([]byte{5, 0, 8, 0}, le.AppendUint32(nil, uint32(len(tail))), tail, program),
	}
}

const mib = 1 << 20

// Folders that all have the same long name take no more than some MiB, and a path that is too long is none.
func TestManyFolders(t *testing.T) {
	for name, length := range map[string]int{"too long": 200 << 10, "long": 4000} {
		t.Run(name, func(t *testing.T) {
			const n = 5000
			folders := binary.AppendUvarint([]byte{1, 1, 0x1f}, n)
			sections := lineTable(append(folders, make([]byte, 4*n)...), nil)
			sections[".debug_line_str"] = append(bytes.Repeat([]byte("x"), length), 0)
			_, allocated := debugReader(t.Context(), sections)
			require.Less(t, allocated, uint64(12*mib))
		})
	}
}

// The names of files count in full: kept one after the other they take little.
func TestManyFiles(t *testing.T) {
	d := &dwarfReader{elfFile: &elfFile{reader: &reader{ctx: t.Context(), left: &symtab.Budget{Memory: elftest.Small.Memory}}}, limits: elftest.Small, fileNumbers: map[string]uint32{}}
	long := string(bytes.Repeat([]byte("x"), 4000))
	for i := range 10_000 {
		d.fileNumber(long, string(rune('a'+i%26))+string(rune(0x4e00+i)))
	}
	sum := 0
	for name := range d.fileNumbers {
		sum += len(name)
	}
	require.Greater(t, sum, elftest.Small.Names/2)
	require.LessOrEqual(t, sum, elftest.Small.Names)
}

// A sequence of too many rows is left out, and what was there before it stays.
func TestManyRows(t *testing.T) {
	le := binary.LittleEndian
	folders := []byte{1, 1, 8, 1, '/', 0}
	set := func(addr uint64) []byte { return append([]byte{0, 9, 2}, le.AppendUint64(nil, addr)...) }
	end := []byte{2, 1, 0, 1, 1}
	many := bytes.Repeat([]byte{13 + 5 + 1 + 14}, 4*mib) // an address and a line further
	d, allocated := debugReader(t.Context(), lineTable(folders, slices.Concat(set(0x1000), []byte{1}, end, set(0x2000), many, end)))
	require.Equal(t, 1, d.rows)
	require.LessOrEqual(t, cap(d.sequence), 2*maxSequence)
	require.Less(t, allocated, uint64(192*mib))
}

// Abbreviations at many offsets, each with all that come after it.
func TestManyAbbreviations(t *testing.T) {
	var abbrevs, info []byte
	var offsets []int
	for i := range 2000 {
		offsets = append(offsets, len(abbrevs))
		abbrevs = append(binary.AppendUvarint(abbrevs, uint64(i+1)), 0x11, 0)
		for range 100 {
			abbrevs = append(abbrevs, 0x3f, 0x19)
		}
		abbrevs = append(abbrevs, 0, 0)
	}
	for i := range 60 {
		info = append(info, unitOf([]byte{4, 0}, binary.LittleEndian.AppendUint32(nil, uint32(offsets[i])), []byte{8}, binary.AppendUvarint(nil, uint64(i+1)))...)
	}
	d, _ := debugReader(t.Context(), map[string][]byte{".debug_info": info, ".debug_abbrev": append(abbrevs, 0)})
	require.Len(t, d.units, 60)
	held := 0
	for _, table := range d.abbrevs {
		require.NotEmpty(t, table)
		for _, a := range table {
			held += cap(a.attrs)
		}
	}
	require.Positive(t, held)
	require.LessOrEqual(t, held, maxHeld)
}

// inlinedCalls is a unit with n inlined calls, each of another function, of which there is no description.
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
	}
}

// Calls of functions that are nowhere are not all remembered.
func TestManyUnnamedCalls(t *testing.T) {
	d, _ := debugReader(t.Context(), inlinedCalls(3*elftest.Small.Symbols))
	require.NotEmpty(t, d.nameNumbers)
	require.LessOrEqual(t, len(d.nameNumbers), elftest.Small.Symbols)
}

// A text that is longer than a name can be is not looked through.
func TestLongText(t *testing.T) {
	d := &dwarfReader{elfFile: &elfFile{reader: &reader{ctx: t.Context(), left: &symtab.Budget{Memory: elftest.Small.Memory}}, order: binary.LittleEndian}, sections: map[string][]byte{
		".debug_str": append(bytes.Repeat([]byte("x"), 8*mib), 0),
	}}
	require.Nil(t, d.text(attrValue{form: 0x0e}, &unit{}))
	require.Len(t, d.text(attrValue{form: 0x0e, n: 8*mib - symtab.MaxName}, &unit{}), symtab.MaxName)
	c := cursor{b: d.sections[".debug_str"]}
	require.Nil(t, c.text(100))
	require.True(t, c.bad)
	require.Nil(t, d.text(d.value(&cursor{b: c.b}, 0x08, &unit{}, 0), &unit{}))
}

// The time is looked at as work is done, and when it is up nothing more is.
func TestDebugTime(t *testing.T) {
	le := binary.LittleEndian
	program := append([]byte{0, 9, 2}, le.AppendUint64(nil, 0x1000)...)
	for name, sections := range map[string]map[string][]byte{
		"calls": inlinedCalls(100_000),
		"rows":  lineTable([]byte{1, 1, 8, 1, '/', 0}, append(program, bytes.Repeat([]byte{33}, mib/2)...)),
		// 60,000 folders with 255 attributes each, of which none takes a byte
		"folders": lineTable(append(append([]byte{255}, bytes.Repeat([]byte{3, 0x19}, 255)...), binary.AppendUvarint(nil, 60_000)...), nil),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := &counting{Context: t.Context()}
			debugReader(ctx, sections)
			require.Greater(t, ctx.asked, 10)
			whole := ctx.asked
			ctx = &counting{Context: t.Context(), end: 5}
			d, _ := debugReader(ctx, sections)
			require.Equal(t, 6, ctx.asked, "of %d", whole)
			require.Less(t, d.work, 8*(64<<10))
		})
	}
}
