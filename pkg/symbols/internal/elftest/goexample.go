package elftest

import (
	"debug/elf"
	"encoding/binary"
)

// goHeaderSize is the size of a function table's header in bytes. moduleWords is the number of words that are read from
// runtime.firstmoduledata.
const (
	goHeaderSize = 8 + 8*8
	moduleWords  = 41
)

// GoExampleTable returns a .gopclntab in the layout of Go 1.20 and later. main.main is at 0x1000, with main.inner inlined from
// 0x1004 to 0x1008. main.last is at 0x1010.
func GoExampleTable() []byte {
	le := binary.LittleEndian
	names := []byte("\x00main.main\x00main.last\x00main.inner\x00")
	files := []byte("/main.go\x00/inner.go\x00")
	units := le.AppendUint32(le.AppendUint32(nil, 0), 9) // file 0, file 1
	pctab := []byte{0}
	values := func(pairs ...int) uint32 { // value and end of its range
		at := uint32(len(pctab))
		value, pc := -1, 0
		for i := 0; i < len(pairs); i += 2 {
			pctab = binary.AppendVarint(pctab, int64(pairs[i]-value))
			pctab = binary.AppendUvarint(pctab, uint64(pairs[i+1]-pc))
			value, pc = pairs[i], pairs[i+1]
		}
		pctab = append(pctab, 0)
		return at
	}
	file, line, inlined := values(0, 4, 1, 8, 0, 16), values(10, 4, 99, 8, 12, 16), values(-1, 4, 0, 8, -1, 16)
	lastLine := values(20, 16)
	lastFile := values(0, 16)
	describe := func(start, name, file, line, begins, inlined, tree uint32) []byte {
		var b []byte
		for _, word := range []uint32{start, name, 0, 0, 0, file, line, 3, 0, begins} {
			b = le.AppendUint32(b, word)
		}
		b = append(b, 0, 0, 0, 4)
		for _, word := range []uint32{0, 0, inlined, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1, tree} {
			b = le.AppendUint32(b, word)
		}
		return b
	}
	functions := [][]byte{describe(0, 1, file, line, 9, inlined, 0), describe(16, 11, lastFile, lastLine, 1<<31, 0, 1<<32-1)} // the last one has no start line
	head := uint32(4 * (2*len(functions) + 1))
	var program []byte
	for i, f := range functions {
		program = le.AppendUint32(le.AppendUint32(program, uint32(16*i)), head+uint32(i*len(f)))
	}
	program = le.AppendUint32(program, 32)
	for _, f := range functions {
		program = append(program, f...)
	}
	table := []byte{0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8}
	at := uint64(goHeaderSize)
	table = le.AppendUint64(table, uint64(len(functions)))
	table = le.AppendUint64(table, 2)
	table = le.AppendUint64(table, 0)
	for _, part := range [][]byte{names, units, files, pctab, program} {
		table = le.AppendUint64(table, at)
		at += uint64(len(part))
	}
	for _, part := range [][]byte{names, units, files, pctab, program} {
		table = append(table, part...)
	}
	return table
}

// GoExample returns a program with the given table.
func GoExample(table []byte) *TestELF {
	le := binary.LittleEndian
	e := new(TestELF).Code(".text", 0, make([]byte, 0x40))
	var tree []byte
	for _, word := range []uint32{0, 21, 3, 90} { // main.inner, called at 0x1003
		tree = le.AppendUint32(tree, word)
	}
	// The segment begins at TestBase. These are the first sections after 176 bytes of headers.
	const text, calls, module = TestBase + 176, TestBase + 176 + 0x40, TestBase + 176 + 0x40 + 16
	e.Add(TestSection{Name: ".calls", Kind: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC, Data: tree})
	words := make([]uint64, moduleWords)
	tableAt := uint64(module + 8*moduleWords)
	words[0] = tableAt
	if len(table) >= goHeaderSize {
		words[1] = tableAt + le.Uint64(table[32:])
	}
	words[22], words[23], words[40] = text, text+0x20, calls
	var data []byte
	for _, word := range words {
		data = le.AppendUint64(data, word)
	}
	e.Add(TestSection{Name: ".go.module", Kind: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC | elf.SHF_WRITE, Data: data})
	return e.Add(TestSection{Name: ".gopclntab", Kind: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC, Data: table})
}
