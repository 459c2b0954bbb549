package parse

import (
	"debug/elf"
	"encoding/binary"
	"hash/crc32"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

func TestPositions(t *testing.T) {
	for _, version := range []uint16{4, 5} {
		table, err := readBytes(elftest.WithDebug(elftest.DwarfExample(version)).Bytes())
		require.NoError(t, err)
		for addr, want := range map[uint64]symtab.Symbol{
			0x1000: {Name: "outer", File: "/src/main.c", Line: 5, Source: symtab.SourceSymtab},
			0x1007: {Name: "outer", File: "/src/main.c", Line: 5, Source: symtab.SourceSymtab},
			0x1008: {Name: "inner", File: "/src/main.c", Line: 100, Source: symtab.SourceDWARF, Callers: []symtab.Symbol{{Name: "outer", File: "/src/main.c", Line: 7, Source: symtab.SourceSymtab}}},
			0x1010: {Name: "outer", File: "/src/main.c", Line: 8, Source: symtab.SourceSymtab},
			0x101f: {Name: "outer", File: "/src/main.c", Line: 8, Source: symtab.SourceSymtab},
			0x1020: {},
		} {
			got, _ := table.Lookup(addr)
			require.Equal(t, want, got, "%#x", addr)
		}
	}
}

// If several inlined calls have the same code, the innermost call is the symbol and the other calls are callers.
func TestNestedCalls(t *testing.T) {
	le := binary.LittleEndian
	_, abbrev, line := elftest.DwarfExample(4)
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
	table, err := readBytes(elftest.WithDebug(unitOf(body, []byte{0, 0, 0}), abbrev, line).Bytes())
	require.NoError(t, err)
	got, _ := table.Lookup(0x1008)
	require.Equal(t, symtab.Symbol{Name: "inner", File: "/src/main.c", Line: 100, Source: symtab.SourceDWARF, Callers: []symtab.Symbol{
		{Name: "middle", File: "/src/main.c", Line: 9, Source: symtab.SourceDWARF}, {Name: "outer", File: "/src/main.c", Line: 7, Source: symtab.SourceSymtab},
	}}, got)
}

// Code at 0 belongs to functions that the linker removed.
func TestRangesAtZero(t *testing.T) {
	le := binary.LittleEndian
	at := func(kind byte, addr uint64, rest ...byte) []byte {
		return append(le.AppendUint64([]byte{kind}, addr), rest...)
	}
	list := slices.Concat([]byte{0, 0, 0, 0, 5, 0, 8, 0, 0, 0, 0, 0}, // the header
		at(7, 0, 8),                         // start_length
		at(6, 0, 0x10, 0, 0, 0, 0, 0, 0, 0), // start_end
		at(5, 0, 4, 0, 8),                   // base_address, offset_pair
		at(7, 0x1000, 8), []byte{0})         // start_length, end_of_list
	body := []byte{5, 0, 1, 8, 0, 0, 0, 0, 1, 2, 'f', 0, 3, 12, 0, 0, 0, 10, 0, 0, 0, 0}
	body[17] = byte(4 + 9) // the inlined function is f
	abbrev := []byte{1, 0x11, 1, 0, 0, 2, 0x2e, 0, 0x03, 0x08, 0, 0, 3, 0x1d, 0, 0x55, 0x17, 0x31, 0x13, 0, 0, 0}
	p := positions(t.Context(), t, elftest.Small, map[string][]byte{".debug_info": unitOf(body), ".debug_abbrev": abbrev, ".debug_line": {0}, ".debug_rnglists": list})
	require.Equal(t, []uint32{0}, p.Starts)
	require.Equal(t, []uint32{8}, p.Sizes)
	require.Equal(t, "f", p.Names.Get(0))
}

// If names are known, only lines are read, from the file or its debug file.
func TestLinesAlone(t *testing.T) {
	content := elftest.WithDebug(elftest.DwarfExample(5)).Bytes()
	all, err := readBytes(content)
	require.NoError(t, err)
	linked := func(padded string) []byte {
		note := elftest.TestSection{Name: ".gnu_debuglink", Kind: elf.SHT_PROGBITS, Data: binary.LittleEndian.AppendUint32([]byte(padded), crc32.ChecksumIEEE(content))}
		return new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x100)).Add(note).Bytes()
	}
	for name, file := range map[string][]byte{
		"the file's own": content, "of its debug file": linked("debug\x00\x00\x00"), "with four bytes of padding": linked("file.dbg\x00\x00\x00\x00"),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(dir+"/file", file, 0o600))
			require.NoError(t, os.WriteFile(dir+"/debug", content, 0o600))
			opened, err := os.Open(dir + "/file")
			require.NoError(t, err)
			defer opened.Close()
			table, _, err := Here{}.Read(t.Context(), &symtab.Task{
				Kind: symtab.ReadLines, Opened: opened, Size: int64(len(file)), Base: all.Base(), Debug: oneDebugFile(dir + "/debug"),
				Limits: elftest.Small,
			})
			require.NoError(t, err)
			require.Empty(t, table.Layers)
			require.Equal(t, all.Lines, table.Lines)
		})
	}
}

// oneDebugFile is the path of the file that a debug link finds.
type oneDebugFile string

func (d oneDebugFile) Candidate(by symtab.DebugKey, n int) (*os.File, int64, bool) {
	if by.Link == "" || n > 0 {
		return nil, 0, true
	}
	f, err := os.Open(string(d))
	if err != nil {
		return nil, 0, true
	}
	st, err := f.Stat()
	return f, st.Size(), err != nil
}

// If there is too much debug information, the lines are missing but the names stay.
func TestPositionsTooLarge(t *testing.T) {
	info, abbrev, line := elftest.DwarfExample(4)
	table, err := readBytes(elftest.WithDebug(append(info, make([]byte, elftest.Small.Debug)...), abbrev, line).Bytes())
	require.NoError(t, err)
	got, _ := table.Lookup(0x1000)
	require.Equal(t, symtab.Symbol{Name: "outer", Source: symtab.SourceSymtab}, got)
}

func FuzzPositions(f *testing.F) {
	for _, version := range []uint16{4, 5} {
		info, abbrev, line := elftest.DwarfExample(version)
		f.Add(info, abbrev, line)
	}
	f.Fuzz(func(t *testing.T, info, abbrev, line []byte) {
		// The test does not use survive, because survive would hide a panic.
		table, err := readBytes(elftest.WithDebug(info, abbrev, line).Bytes())
		require.NoError(t, err)
		for addr := uint64(0xff0); addr < 0x1100; addr++ {
			table.Lookup(addr)
		}
	})
}
