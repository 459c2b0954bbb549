package symbols

import (
	"debug/elf"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// dwarfExample is the debug information of a function outer at 0x1000, of 0x20 bytes, with inner inlined in it from 0x1008 to 0x1010,
// in two versions.
func dwarfExample(version uint16) (info, abbrev, line []byte) {
	le := binary.LittleEndian
	unit := func(body []byte) []byte { return append(le.AppendUint32(nil, uint32(len(body))), body...) }
	abbrev = []byte{
		1, 0x11, 1, 0x10, 0x17, 0x11, 0x01, 0x12, 0x06, 0x1b, 0x08, 0, 0,
		2, 0x2e, 0, 0x03, 0x08, 0, 0,
		3, 0x2e, 1, 0x03, 0x08, 0x11, 0x01, 0x12, 0x06, 0, 0,
		4, 0x1d, 0, 0x31, 0x13, 0x11, 0x01, 0x12, 0x06, 0x58, 0x0b, 0x59, 0x0b, 0, 0,
		0,
	}
	header := le.AppendUint16(nil, version)
	if version >= 5 {
		header = append(header, 1, 8, 0, 0, 0, 0)
	} else {
		header = append(header, 0, 0, 0, 0, 8)
	}
	body := slices.Concat(header, []byte{1, 0, 0, 0, 0})
	body = append(le.AppendUint32(le.AppendUint64(body, 0x1000), 0x20), "/src\x00"...)
	inner := uint32(4 + len(body))
	body = append(body, "\x02inner\x00"...)
	body = append(body, "\x03outer\x00"...)
	body = le.AppendUint32(le.AppendUint64(body, 0x1000), 0x20)
	body = le.AppendUint32(append(body, 4), inner)
	body = le.AppendUint32(le.AppendUint64(body, 0x1008), 8)
	body = append(body, 1, 7, 0, 0)
	info = unit(body)

	tail := []byte{1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1}
	if version >= 5 { // folders and files, each with a name; files with the number of a folder as well
		tail = append(tail, "\x01\x01\x08\x01/src\x00\x02\x01\x08\x02\x0b\x02unused.c\x00\x00main.c\x00\x00"...)
	} else {
		tail = append(tail, "\x00main.c\x00\x00\x00\x00\x00"...)
	}
	program := append([]byte{0, 9, 2}, le.AppendUint64(nil, 0x1000)...)
	program = append(program,
		3, 4, 1, // line 5 at 0x1000
		2, 8, 3, 0xdf, 0, 1, // line 100 at 0x1008
		2, 8, 3, 0xa4, 0x7f, 1, // line 8 at 0x1010
		2, 16, 0, 1, 1) // until 0x1020
	header = le.AppendUint16(nil, version)
	if version >= 5 {
		header = append(header, 8, 0)
	}
	header = le.AppendUint32(header, uint32(len(tail)))
	line = unit(append(append(header, tail...), program...))
	return info, abbrev, line
}

func withDebug(info, abbrev, line []byte) *testELF {
	e := new(testELF).code(".text", 0x1000, make([]byte, 0x100)).symbols(".symtab", elf.SHT_SYMTAB, function("outer", 0x1000, 0x20))
	for name, content := range map[string][]byte{".debug_info": info, ".debug_abbrev": abbrev, ".debug_line": line} {
		e.add(testSection{name: name, kind: elf.SHT_PROGBITS, data: content})
	}
	return e
}

func TestPositions(t *testing.T) {
	for _, version := range []uint16{4, 5} {
		content := withDebug(dwarfExample(version)).bytes()
		// Code is where segments say, too.
		binary.LittleEndian.PutUint64(content[64+16:], 0)
		table, err := readBytes(content)
		require.NoError(t, err)
		for addr, want := range map[uint64]Symbol{
			0x1000: {Name: "outer", File: "/src/main.c", Line: 5, Source: SourceSymtab},
			0x1007: {Name: "outer", File: "/src/main.c", Line: 5, Source: SourceSymtab},
			0x1008: {Name: "inner", File: "/src/main.c", Line: 100, Source: SourceDWARF, Callers: []Symbol{{Name: "outer", File: "/src/main.c", Line: 7, Source: SourceSymtab}}},
			0x1010: {Name: "outer", File: "/src/main.c", Line: 8, Source: SourceSymtab},
			0x101f: {Name: "outer", File: "/src/main.c", Line: 8, Source: SourceSymtab},
			0x1020: {},
		} {
			got, _ := table.Lookup(addr)
			require.Equal(t, want, got, "%#x", addr)
		}
	}
}

// Of inlined calls that have the same code the innermost counts, and all of them are callers.
func TestNestedCalls(t *testing.T) {
	le := binary.LittleEndian
	_, abbrev, line := dwarfExample(4)
	abbrev = append(abbrev[:len(abbrev)-1], 5, 0x1d, 1, 0x31, 0x13, 0x11, 0x01, 0x12, 0x06, 0x58, 0x0b, 0x59, 0x0b, 0, 0, 0)
	code := func(b []byte, low uint64, size uint32) []byte { return le.AppendUint32(le.AppendUint64(b, low), size) }
	body := append(code([]byte{4, 0, 0, 0, 0, 0, 8, 1, 0, 0, 0, 0}, 0x1000, 0x20), "/src\x00"...)
	inner := uint32(4 + len(body))
	body = append(body, "\x02inner\x00"...)
	middle := uint32(4 + len(body))
	body = append(body, "\x02middle\x00\x03outer\x00"...)
	body = code(body, 0x1000, 0x20)
	body = append(code(le.AppendUint32(append(body, 5), middle), 0x1008, 8), 1, 7)
	body = append(code(le.AppendUint32(append(body, 4), inner), 0x1008, 8), 1, 9)
	content := withDebug(unitOf(body, []byte{0, 0, 0}), abbrev, line).bytes()
	le.PutUint64(content[64+16:], 0)
	table, err := readBytes(content)
	require.NoError(t, err)
	got, _ := table.Lookup(0x1008)
	require.Equal(t, Symbol{Name: "inner", File: "/src/main.c", Line: 100, Source: SourceDWARF, Callers: []Symbol{
		{Name: "middle", File: "/src/main.c", Line: 9, Source: SourceDWARF}, {Name: "outer", File: "/src/main.c", Line: 7, Source: SourceSymtab},
	}}, got)
}

// Code at 0 is that of functions that a linker has left out.
func TestRangesAtZero(t *testing.T) {
	le := binary.LittleEndian
	at := func(kind byte, addr uint64, rest ...byte) []byte {
		return append(le.AppendUint64([]byte{kind}, addr), rest...)
	}
	list := slices.Concat(at(7, 0, 8), // start_length
		at(6, 0, 0x10, 0, 0, 0, 0, 0, 0, 0), // start_end
		at(5, 0, 4, 0, 8),                   // base_address, offset_pair
		at(7, 0x1000, 8), []byte{0})         // start_length, end_of_list
	d, _ := debugReader(t.Context(), map[string][]byte{".debug_rnglists": list})
	require.Equal(t, [][2]uint64{{0x1000, 0x1008}}, d.newRanges(0, &unit{address: 8}))
	low := description{hasHigh: true, high: attrValue{n: 8}, low: attrValue{form: 1}}
	require.Empty(t, d.ranges(&low, &unit{address: 8}))
	low.low.n = 0x1000
	require.Equal(t, [][2]uint64{{0x1000, 0x1008}}, d.ranges(&low, &unit{address: 8}))
}

// More debug information than allowed costs the lines, not the names.
func TestPositionsTooLarge(t *testing.T) {
	info, abbrev, line := dwarfExample(4)
	table, err := readBytes(withDebug(append(info, make([]byte, small.Debug)...), abbrev, line).bytes())
	require.NoError(t, err)
	got, _ := table.Lookup(0x1000)
	require.Equal(t, Symbol{Name: "outer", Source: SourceSymtab}, got)
}

func FuzzPositions(f *testing.F) {
	for _, version := range []uint16{4, 5} {
		info, abbrev, line := dwarfExample(version)
		f.Add(info, abbrev, line)
	}
	f.Fuzz(func(t *testing.T, info, abbrev, line []byte) {
		content := withDebug(info, abbrev, line).bytes()
		binary.LittleEndian.PutUint64(content[64+16:], 0)
		// Not by way of survive: a panic counts.
		table, err := readBytes(content)
		require.NoError(t, err)
		for addr := uint64(0xff0); addr < 0x1100; addr++ {
			table.Lookup(addr)
		}
	})
}
