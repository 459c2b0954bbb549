package symbols

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// goExampleTable is a .gopclntab of two functions, in the layout of Go 1.20 and later: main.main at 0x1000, with main.inner inlined
// from 0x1004 to 0x1008, and main.last at 0x1010.
func goExampleTable() []byte {
	le := binary.LittleEndian
	names := []byte("\x00main.main\x00main.last\x00main.inner\x00")
	files := []byte("/main.go\x00/inner.go\x00")
	units := le.AppendUint32(le.AppendUint32(nil, 0), 9) // file 0, file 1
	pctab := []byte{0}
	values := func(pairs ...int) uint32 { // value, up to
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
	functions := [][]byte{describe(0, 1, file, line, 9, inlined, 0), describe(16, 11, lastFile, lastLine, 1<<31, 0, 1<<32-1)} // the last begins at no line
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

// goExample is a program with such a table.
func goExample(table []byte) *testELF {
	le := binary.LittleEndian
	e := new(testELF).code(".text", 0, make([]byte, 0x40))
	var tree []byte
	for _, word := range []uint32{0, 21, 3, 90} { // main.inner, called where 0x1003 is
		tree = le.AppendUint32(tree, word)
	}
	// The one segment begins at testBase and these are the first sections after the headers of 176 bytes.
	const text, calls, module = testBase + 176, testBase + 176 + 0x40, testBase + 176 + 0x40 + 16
	e.add(testSection{name: ".calls", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, data: tree})
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
	e.add(testSection{name: ".go.module", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_WRITE, data: data})
	return e.add(testSection{name: ".gopclntab", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, data: table})
}

func TestGoExample(t *testing.T) {
	table, err := readBytes(goExample(goExampleTable()).bytes())
	require.NoError(t, err)
	const text = testBase + 176
	outer := Symbol{Name: "main.main", File: "/main.go", Line: 10, StartLine: 9, Source: SourcePclntab}
	for off, want := range map[uint64]Symbol{
		0: outer, 3: outer,
		4:  {Name: "main.inner", File: "/inner.go", Line: 99, StartLine: 90, Source: SourcePclntab, Callers: []Symbol{outer}},
		8:  {Name: "main.main", File: "/main.go", Line: 12, StartLine: 9, Source: SourcePclntab},
		16: {Name: "main.last", File: "/main.go", Line: 20, Source: SourcePclntab}, 31: {Name: "main.last", File: "/main.go", Line: 20, Source: SourcePclntab},
		32: {},
	} {
		got, _ := table.Lookup(text + off)
		require.Equal(t, want, got, "%d", off)
	}
}

// Where reading fails, no function is taken for one without a name: it is asked for again.
func TestGoReadingFails(t *testing.T) {
	content := goExample(goExampleTable()).bytes()
	const text = testBase + 176
	o := Reading{Limits: small}
	size := int64(len(content))
	table, err := readTable(t.Context(), bytes.NewReader(content), size, o, nil)
	require.NoError(t, err)
	for after := 0; ; after++ {
		c := &cutting{bytes.NewReader(content), 0, after}
		more, err := table.with(t.Context(), c, size, o, []uint64{text, text + 16})
		if c.reads <= after {
			require.NoError(t, err)
			for _, addr := range []uint64{text, text + 16} {
				_, state := more.Lookup(addr)
				require.Equal(t, Named, state)
			}
			break
		}
		require.ErrorIs(t, err, io.EOF, "after %d reads", after)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = table.with(ctx, bytes.NewReader(content), size, o, []uint64{text})
	require.ErrorIs(t, err, ErrTooLarge)
}
