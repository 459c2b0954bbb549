package symbols

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// checkTable looks up around everything that a table says it has.
func checkTable(t *testing.T, table *Table) {
	t.Helper()
	table.Virtual(0)
	table.Bytes()
	look := func(addr uint64) {
		if s, state := table.Lookup(addr); state == Named {
			require.NotEmpty(t, s.Name)
		}
	}
	for i := range table.layers {
		l := &table.layers[i]
		end := uint64(0)
		for j, start := range l.starts {
			require.GreaterOrEqual(t, uint64(start), end, "in order and apart")
			end = uint64(start) + uint64(l.sizes[j])
			look(l.base + uint64(start))
			look(l.base + end - 1)
			look(l.base + end)
		}
	}
	if g := table.golang; g != nil {
		for _, start := range g.start {
			look(g.text + uint64(start) - 1)
			look(g.text + uint64(start))
			look(g.text + uint64(start) + 7)
		}
	}
}

var small = Limits{Symbols: 4096, Names: 1 << 20, Read: 16 << 20, Debug: 1 << 20, Memory: 64 << 20}

func readBytes(b []byte) (*Table, error) {
	return ReadTable(context.Background(), bytes.NewReader(b), int64(len(b)), Reading{Limits: small, Inlined: true, Lines: true})
}

// survive reads a file that may be anything.
func survive(t *testing.T, b []byte) {
	t.Helper()
	begin := time.Now()
	if table, err := readBytes(b); err == nil {
		checkTable(t, table)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Fatalf("reading %d bytes took %v", len(b), took)
	}
}

func function(name string, addr, size uint64) testSymbol {
	return testSymbol{name, elf.STT_FUNC, elf.STB_GLOBAL, 1, addr, size}
}

// example is a file with a bit of everything.
func example() *testELF {
	code := make([]byte, 0x100)
	copy(code[0x80:], []byte{0xff, 0x25, 0x10, 0, 0, 0}) // jmp *0x2096(%rip)
	relocation := binary.LittleEndian.AppendUint64(nil, 0x2096)
	relocation = binary.LittleEndian.AppendUint64(relocation, 1<<32|uint64(elf.R_X86_64_JMP_SLOT))
	relocation = binary.LittleEndian.AppendUint64(relocation, 0)
	mini, err := os.ReadFile("testdata/mini.xz")
	if err != nil {
		panic(err)
	}
	e := new(testELF).code(".text", 0x1000, code)
	e.symbols(".dynsym", elf.SHT_DYNSYM, testSymbol{name: "puts", kind: elf.STT_FUNC, bind: elf.STB_GLOBAL}, function("exported", 0x1000, 0x10))
	stub := make([]byte, 16)
	copy(stub, []byte{0xff, 0x25, 0x90, 0, 0, 0}) // jmp *0x2096(%rip), from 0x2000
	e.code(".plt", 0x2000, stub)
	e.sections[len(e.sections)-1].entry = 16
	e.add(testSection{name: ".rela.plt", kind: elf.SHT_RELA, flags: elf.SHF_ALLOC, data: relocation, entry: 24})
	e.add(testSection{name: ".gnu_debugdata", kind: elf.SHT_PROGBITS, data: mini})
	e.add(testSection{name: ".gnu_debuglink", kind: elf.SHT_PROGBITS, data: []byte("a.debug\x00\x01\x02\x03\x04")})
	return e
}

func TestExample(t *testing.T) {
	table, err := readBytes(example().bytes())
	require.NoError(t, err)
	for addr, want := range map[uint64]Symbol{
		0x1000: {Name: "exported", Source: SourceDynsym}, 0x100f: {Name: "exported", Source: SourceDynsym}, 0x1010: {},
		0x1020: {Name: "local", Source: SourceMiniDebug}, 0x2000: {Name: "puts@plt", Source: SourcePLT}, 0x200f: {Name: "puts@plt", Source: SourcePLT}, 0x2010: {},
	} {
		got, _ := table.Lookup(addr)
		require.Equal(t, want, got, "%#x", addr)
	}
}

// Of the symbols of a debug file those are of use that name a byte more than there are names for.
func TestMissing(t *testing.T) {
	table, err := readBytes(new(testELF).code(".text", 0x1000, make([]byte, 0x100)).symbols(".symtab", elf.SHT_SYMTAB, function("f", 0x1000, 0x20)).bytes())
	require.NoError(t, err)
	longer, before, open, other := symbol{addr: 0x1010, size: 0x20}, symbol{addr: 0xff8, size: 0x10}, symbol{addr: 0x1000}, symbol{addr: 0x1080, size: 8}
	require.Equal(t, []symbol{longer, before, open, other},
		table.missing([]symbol{{addr: 0x1000, size: 0x20}, longer, before, {addr: 0x101f, size: 1}, open, other}))
}

// A symbol that is not a function, not defined here, or not in the code gives no name.
func TestWhatCounts(t *testing.T) {
	e := new(testELF).code(".text", 0x1000, make([]byte, 0x1000)).add(testSection{name: ".data", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_WRITE, addr: 0x3000, data: make([]byte, 16)})
	symbol := func(name string, kind elf.SymType, bind elf.SymBind, section uint16, addr, size uint64) testSymbol {
		return testSymbol{name, kind, bind, section, addr, size}
	}
	e.symbols(".symtab", elf.SHT_SYMTAB,
		symbol("file.c", elf.STT_FILE, elf.STB_LOCAL, uint16(elf.SHN_ABS), 0, 0),
		symbol("undefined", elf.STT_FUNC, elf.STB_GLOBAL, 0, 0x1000, 0x100),
		symbol("data", elf.STT_OBJECT, elf.STB_GLOBAL, 2, 0x3000, 8),
		symbol("function in data", elf.STT_FUNC, elf.STB_GLOBAL, 2, 0x3000, 8),
		symbol("table in code", elf.STT_OBJECT, elf.STB_LOCAL, 1, 0x1f00, 0x10),
		symbol("outside its section", elf.STT_FUNC, elf.STB_GLOBAL, 1, 0x5000, 0x10),
		symbol("absolute", elf.STT_FUNC, elf.STB_GLOBAL, uint16(elf.SHN_ABS), 0x1000, 0x10),
		symbol("alias_local", elf.STT_FUNC, elf.STB_LOCAL, 1, 0x1100, 0x10),
		symbol("alias_weak", elf.STT_FUNC, elf.STB_WEAK, 1, 0x1100, 0x10),
		symbol("alias", elf.STT_FUNC, elf.STB_GLOBAL, 1, 0x1100, 0x10),
		symbol("untyped_alias", elf.STT_NOTYPE, elf.STB_GLOBAL, 1, 0x1100, 0x10),
		symbol("chooses", elf.STT_GNU_IFUNC, elf.STB_GLOBAL, 1, 0x1200, 0x10),
		symbol("assembly", elf.STT_FUNC, elf.STB_GLOBAL, 1, 0x1300, 0),
		symbol("versioned@@LIB_1.2", elf.STT_FUNC, elf.STB_GLOBAL, 1, 0x1400, 0x10),
		symbol("label", elf.STT_NOTYPE, elf.STB_LOCAL, 1, 0x1320, 0),
		symbol("assembly at the end", elf.STT_FUNC, elf.STB_GLOBAL, 1, 0x1ff0, 0),
	)
	table, err := readBytes(e.bytes())
	require.NoError(t, err)
	for addr, want := range map[uint64]string{
		0x1000: "", 0x1100: "alias", 0x110f: "alias", 0x1110: "", 0x1200: "chooses", 0x1300: "assembly", 0x131f: "assembly", 0x1320: "",
		0x1400: "versioned", 0x1f00: "", 0x1ff0: "assembly at the end", 0x1fff: "assembly at the end", 0x2000: "", 0x3000: "", 0x5000: "",
	} {
		got, _ := table.Lookup(addr)
		require.Equal(t, want, got.Name, "%#x", addr)
	}
}

// The exported symbols of a file without section headers.
func TestWithoutSectionHeaders(t *testing.T) {
	e := new(testELF).code(".text", 0, make([]byte, 0x100))
	e.symbols(".dynsym", elf.SHT_DYNSYM, function("exported", testBase+0x100, 0x10), function("another", testBase+0x110, 0x10))
	e.sections[2].flags = elf.SHF_ALLOC
	e.add(testSection{name: ".hash", kind: elf.SHT_HASH, flags: elf.SHF_ALLOC, data: binary.LittleEndian.AppendUint32([]byte{1, 0, 0, 0}, 3)})
	b := e.bytes()
	f, err := elf.NewFile(bytes.NewReader(b))
	require.NoError(t, err)
	e.dynamic = []uint64{
		uint64(elf.DT_SYMTAB), f.Section(".dynsym").Addr, uint64(elf.DT_STRTAB), f.Section(".dynsym.strings").Addr, uint64(elf.DT_STRSZ), f.Section(".dynsym.strings").Size,
		uint64(elf.DT_HASH), f.Section(".hash").Addr, 0, 0,
	}
	b = e.bytes()
	clear(b[0x28:0x30]) // e_shoff
	clear(b[0x3c:0x40]) // e_shnum, e_shstrndx
	table, err := readBytes(b)
	require.NoError(t, err)
	got, _ := table.Lookup(testBase + 0x118)
	require.Equal(t, Symbol{Name: "another", Source: SourceDynsym}, got)
}

// Files that lie about themselves are refused, or give what is there, and quickly.
func TestHostile(t *testing.T) {
	text := func() *testELF { return new(testELF).code(".text", 0x1000, make([]byte, 0x100)) }
	many := make([]testSymbol, small.Symbols+1)
	for i := range many {
		many[i] = function("f", 0x1000+uint64(i%0x100), 1)
	}
	set := func(e *testELF, at int, value ...byte) []byte {
		b := e.bytes()
		copy(b[at:], value)
		return b
	}
	huge := func(change func(s *testSection)) []byte {
		e := text().symbols(".symtab", elf.SHT_SYMTAB, function("f", 0x1000, 0x10))
		change(&e.sections[1])
		return e.bytes()
	}
	for name, c := range map[string]struct {
		content []byte
		want    error
	}{
		"empty":                      {nil, ErrNotELF},
		"text":                       {[]byte("#!/bin/sh\necho something that is long enough\n"), ErrNotELF},
		"cut in its header":          {example().bytes()[:40], ErrMalformed},
		"too many segments":          {set(example(), 0x38, 0xff, 0xff), ErrMalformed},
		"segments of odd size":       {set(example(), 0x36, 57), ErrMalformed},
		"segments outside":           {set(example(), 0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), ErrMalformed},
		"sections outside":           {set(text(), 0x28, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), nil},
		"sections of odd size":       {set(text(), 0x3a, 65), nil},
		"too many symbols":           {text().symbols(".symtab", elf.SHT_SYMTAB, many...).bytes(), ErrTooLarge},
		"a table of all memory":      {huge(func(s *testSection) { s.size = 1<<64 - 24 }), ErrMalformed},
		"a table past the end":       {huge(func(s *testSection) { s.size = 1 << 20 }), ErrMalformed},
		"a table somewhere else":     {huge(func(s *testSection) { s.offset = 1 << 60 }), ErrMalformed},
		"symbols of no size":         {huge(func(s *testSection) { s.entry = 0 }), ErrMalformed},
		"names in itself":            {huge(func(s *testSection) { s.link = ".symtab" }), nil},
		"names in another section":   {huge(func(s *testSection) { s.link = ".text" }), nil},
		"a symbol of all memory":     {text().symbols(".symtab", elf.SHT_SYMTAB, function("f", 0x1000, 1<<64-1)).bytes(), nil},
		"a symbol of much memory":    {text().symbols(".symtab", elf.SHT_SYMTAB, function("f", 0x1000, 1<<40)).bytes(), nil},
		"a very long name":           {text().symbols(".symtab", elf.SHT_SYMTAB, function(strings.Repeat("x", maxName+1), 0x1000, 0x10)).bytes(), nil},
		"more names than allowed":    {text().symbols(".symtab", elf.SHT_SYMTAB, longNames()...).bytes(), ErrTooLarge},
		"not the end of its strings": {notTerminated(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readBytes(c.content)
			require.ErrorIs(t, err, c.want)
			survive(t, c.content)
		})
	}
	whole := example().bytes()
	for n := 0; n < len(whole); n += 13 {
		survive(t, whole[:n])
		changed := bytes.Clone(whole)
		changed[n] ^= 0xff
		survive(t, changed)
	}
	for i := range 64 + 2*56 { // of the headers every byte
		changed := bytes.Clone(whole)
		changed[i] ^= 0xff
		survive(t, changed)
	}
}

// longNames are more bytes of names than small allows.
func longNames() []testSymbol {
	var all []testSymbol
	for i := range small.Names/maxName + 2 {
		all = append(all, function(strings.Repeat(string(rune('a'+i%26)), maxName-1), 0x1000+uint64(i), 1))
	}
	return all
}

func notTerminated() []byte {
	e := new(testELF).code(".text", 0x1000, make([]byte, 0x100)).symbols(".symtab", elf.SHT_SYMTAB, function("f", 0x1000, 0x10))
	s := &e.sections[2]
	s.data = s.data[:len(s.data)-1]
	return e.bytes()
}

// cutting is a file that is truncated while it is read.
type cutting struct {
	io.ReaderAt
	reads, after int
}

func (c *cutting) ReadAt(b []byte, off int64) (int, error) {
	if c.reads++; c.reads > c.after {
		return 0, io.EOF
	}
	return c.ReaderAt.ReadAt(b, off)
}

func TestTruncatedWhileRead(t *testing.T) {
	content := example().bytes()
	for after := 0; ; after++ {
		c := &cutting{bytes.NewReader(content), 0, after}
		_, err := ReadTable(t.Context(), c, int64(len(content)), Reading{Limits: small})
		if c.reads <= after {
			require.NoError(t, err)
			return
		}
		if err != nil {
			require.True(t, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
		}
	}
}

func TestTooLong(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	content := example().bytes()
	_, err := ReadTable(ctx, bytes.NewReader(content), int64(len(content)), Reading{Limits: small})
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = ReadTable(t.Context(), bytes.NewReader(content), int64(len(content)), Reading{Limits: Limits{Symbols: 10, Names: 100, Read: 200, Memory: 1 << 20}})
	require.ErrorIs(t, err, ErrTooLarge)
}

func FuzzELF(f *testing.F) {
	f.Add(example().bytes())
	f.Add(goExample(goExampleTable()).bytes())
	f.Fuzz(survive)
}

func FuzzStubs(f *testing.F) {
	f.Add([]byte{0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0}, true)
	f.Add([]byte{0x5f, 0x24, 0x03, 0xd5, 0x10, 0, 0, 0x90, 0x11, 0x02, 0x40, 0xf9, 0x10, 0x02, 0, 0x91, 0x20, 0x02, 0x1f, 0xd6}, false)
	f.Fuzz(func(t *testing.T, code []byte, x86 bool) {
		stubs := stubsARM(code, 0x1000)
		if x86 {
			stubs = stubsX86(code, 0x1000, 16)
		}
		for _, s := range stubs {
			require.Less(t, s.start, s.end)
			require.LessOrEqual(t, s.end, 0x1000+uint64(len(code)))
		}
		e := example()
		if !x86 {
			e.machine = elf.EM_AARCH64
		}
		e.code(".plt.sec", 0x4000, code)
		survive(t, e.bytes())
	})
}

func FuzzMiniDebug(f *testing.F) {
	b, err := os.ReadFile("testdata/mini.xz")
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, packed []byte) {
		survive(t, new(testELF).code(".text", 0x1000, make([]byte, 0x100)).add(testSection{name: ".gnu_debugdata", kind: elf.SHT_PROGBITS, data: packed}).bytes())
	})
}

func FuzzGo(f *testing.F) {
	f.Add(goExampleTable())
	f.Fuzz(func(t *testing.T, table []byte) { survive(t, goExample(table).bytes()) })
}
