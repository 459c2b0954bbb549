//go:build e2e

package hostile

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// change replaces a section of a program.
type change struct {
	data  []byte // nil: its own data
	size  uint64 // in its header; 0: the length of data
	flags elf.SectionFlag
}

// changed writes a copy of a program with changed sections. It still runs, because the kernel only reads segments.
func changed(t *testing.T, program, to string, sections map[string]change) {
	t.Helper()
	b, err := os.ReadFile(program)
	require.NoError(t, err)
	f, err := elf.NewFile(bytes.NewReader(b))
	require.NoError(t, err)
	le := binary.LittleEndian
	headers := le.Uint64(b[0x28:])
	left := len(sections)
	for i, s := range f.Sections {
		c, ok := sections[s.Name]
		if !ok {
			continue
		}
		left--
		header := headers + 64*uint64(i)
		if c.data != nil {
			le.PutUint64(b[header+24:], uint64(len(b)))
			le.PutUint64(b[header+32:], uint64(len(c.data)))
			b = append(b, c.data...)
		}
		if c.size != 0 {
			le.PutUint64(b[header+32:], c.size)
		}
		le.PutUint64(b[header+8:], uint64(s.Flags|c.flags))
	}
	require.Zero(t, left, "sections of %s", program)
	require.NoError(t, os.WriteFile(to, b, 0o755))
}

// symbolTable is n global functions in the section and at the address of the symbol like.
func symbolTable(n int, like elf.Symbol, at func(i int) (name uint32, offset, size uint64)) []byte {
	var b []byte
	le := binary.LittleEndian
	for i := range n {
		name, offset, size := at(i)
		b = append(le.AppendUint32(b, name), elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC), 0)
		b = le.AppendUint64(le.AppendUint64(le.AppendUint16(b, uint16(like.Section)), like.Value+offset), size)
	}
	return b
}

// textOf returns a symbol that begins where a program's code does.
func textOf(t *testing.T, program string) elf.Symbol {
	t.Helper()
	f, err := elf.Open(program)
	require.NoError(t, err)
	defer f.Close()
	for i, s := range f.Sections {
		if s.Name == ".text" {
			return elf.Symbol{Section: elf.SectionIndex(i), Value: s.Addr}
		}
	}
	require.FailNow(t, "no code")
	return elf.Symbol{}
}

// twoNames has 100,000 symbols that share two long names.
func twoNames(t *testing.T, program, to string) {
	changed(t, program, to, map[string]change{
		".symtab": {data: symbolTable(100_000, textOf(t, program), func(i int) (uint32, uint64, uint64) { return uint32(1 + i%2*16001), 4 * uint64(i), 4 })},
		".strtab": {data: []byte("\x00" + strings.Repeat("A", 16000) + "\x00" + strings.Repeat("B", 16000) + "\x00")},
		".text":   {size: 1 << 31},
	})
}

// nested has two million symbols in each other, with 64 MB of names.
func nested(t *testing.T, program, to string) {
	const n = 2_000_000
	names := []byte{0}
	for i := range n {
		names = fmt.Appendf(names, "%031x\x00", i*0x9e3779b97f4a7c1)
	}
	changed(t, program, to, map[string]change{
		".symtab": {data: symbolTable(n, textOf(t, program), func(i int) (uint32, uint64, uint64) { return uint32(1 + 32*i), uint64(i), 2 * uint64(n-i) })},
		".strtab": {data: names},
		".text":   {size: 1 << 31},
	})
}

// lyingDebug has compressed debug information that unpacks to half of the stated size.
func lyingDebug(t *testing.T, program, to string) {
	var b bytes.Buffer
	require.NoError(t, binary.Write(&b, binary.LittleEndian, elf.Chdr64{Type: uint32(elf.COMPRESS_ZLIB), Size: 120 << 20, Addralign: 1}))
	z := zlib.NewWriter(&b)
	_, err := z.Write(make([]byte, 66<<20))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	c := change{data: b.Bytes(), flags: elf.SHF_COMPRESSED}
	changed(t, program, to, map[string]change{".debug_info": c, ".debug_line": c, ".debug_str": c})
}

// manyFiles returns debug information of a few bytes. Its line table claims 2^36 files.
func manyFiles(t *testing.T, program, to string) {
	le := binary.LittleEndian
	unit := func(body ...byte) []byte { return append(le.AppendUint32(nil, uint32(len(body))), body...) }
	header := append([]byte{1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 1, 8, 1, '/', 0, 1, 1, 8}, binary.AppendUvarint(nil, 1<<36)...)
	line := append(le.AppendUint32([]byte{5, 0, 8, 0}, uint32(len(header))), header...)
	changed(t, program, to, map[string]change{
		".debug_info":   {data: unit(5, 0, 1, 8, 0, 0, 0, 0, 1, 0, 0, 0, 0, '/', 0)},
		".debug_abbrev": {data: []byte{1, 0x11, 0, 0x10, 0x17, 0x1b, 0x08, 0, 0, 0}},
		".debug_line":   {data: unit(line...)},
	})
}
