package elftest

import (
	"debug/elf"
	"encoding/binary"
	"slices"
)

// DwarfExample returns debug information in the given version of DWARF. The function outer is 0x20 bytes long and begins at
// 0x1000. The function inner is inlined into outer from 0x1008 to 0x1010.
func DwarfExample(version uint16) (info, abbrev, line []byte) {
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
	if version >= 5 { // a folder has a name; a file has a name and a folder number
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

// WithDebug returns an ELF file that contains the function outer and the given debug sections. Its segment covers the code.
func WithDebug(info, abbrev, line []byte) *TestELF {
	e := (&TestELF{AtZero: true}).Code(".text", 0x1000, make([]byte, 0x100)).Symbols(".symtab", elf.SHT_SYMTAB, Function("outer", 0x1000, 0x20))
	for name, content := range map[string][]byte{".debug_info": info, ".debug_abbrev": abbrev, ".debug_line": line} {
		e.Add(TestSection{Name: name, Kind: elf.SHT_PROGBITS, Data: content})
	}
	return e
}
