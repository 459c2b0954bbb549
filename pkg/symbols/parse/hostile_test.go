package parse

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// checkTable looks up addresses around all entries of a table.
func checkTable(t *testing.T, table *symtab.Table) {
	t.Helper()
	table.Bytes()
	look := func(addr uint64) {
		if s, state := table.Lookup(addr); state == symtab.Named {
			require.NotEmpty(t, s.Name)
		}
	}
	for i := range table.Layers {
		l := &table.Layers[i]
		end := uint64(0)
		for j, start := range l.Starts {
			require.GreaterOrEqual(t, uint64(start), end, "in order and apart")
			end = uint64(start) + uint64(l.Sizes[j])
			look(l.Base + uint64(start))
			look(l.Base + end - 1)
			look(l.Base + end)
		}
	}
	if g := table.Golang; g != nil {
		for _, start := range g.Start {
			look(g.Text + uint64(start) - 1)
			look(g.Text + uint64(start))
			look(g.Text + uint64(start) + 7)
		}
	}
}

func readBytes(b []byte) (*symtab.Table, error) {
	return readAll(bytes.NewReader(b), int64(len(b)), elftest.Small)
}

// readAll reads a file like the tasks of a Store. It also reads the lines, and all functions of a Go program.
func readAll(r io.ReaderAt, size int64, limits symtab.Limits) (*symtab.Table, error) {
	in := func() *reader { return newReader(context.Background(), r, size, limits) }
	t, err := readTable(in(), limits, nil)
	if err == nil && t.Cut {
		var lines *symtab.Table
		if lines, err = readLines(in(), limits, nil, t.Base()); err == nil {
			t.Lines, t.Cut = lines.Lines, false
		}
	}
	if err != nil || t.Golang == nil {
		return t, err
	}
	var wanted []symtab.GoRange
	for i, start := range t.Golang.Start[:len(t.Golang.Start)-1] {
		wanted = append(wanted, symtab.GoRange{Number: uint32(i), Size: t.Golang.Start[i+1] - start})
	}
	t.Golang, err = loadFunctions(t.Golang, in(), wanted, limits)
	return t, err
}

// survive reads any content as a file.
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

func TestExample(t *testing.T) {
	table, err := readBytes(elftest.Example().Bytes())
	require.NoError(t, err)
	for addr, want := range map[uint64]symtab.Symbol{
		0x1000: {Name: "exported", Source: symtab.SourceDynsym}, 0x100f: {Name: "exported", Source: symtab.SourceDynsym}, 0x1010: {},
		0x1020: {Name: "local", Source: symtab.SourceMiniDebug}, 0x2000: {Name: "puts@plt", Source: symtab.SourcePLT}, 0x200f: {Name: "puts@plt", Source: symtab.SourcePLT}, 0x2010: {},
	} {
		got, _ := table.Lookup(addr)
		require.Equal(t, want, got, "%#x", addr)
	}
}

// Symbols of a debug file are used if they name at least one byte without a name.
func TestMissing(t *testing.T) {
	table, err := readBytes(new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x100)).Symbols(".symtab", elf.SHT_SYMTAB, elftest.Function("f", 0x1000, 0x20)).Bytes())
	require.NoError(t, err)
	longer, before, open, other := symbol{addr: 0x1010, size: 0x20}, symbol{addr: 0xff8, size: 0x10}, symbol{addr: 0x1000}, symbol{addr: 0x1080, size: 8}
	require.Equal(t, []symbol{longer, before, open, other},
		missing(table, []symbol{{addr: 0x1000, size: 0x20}, longer, before, {addr: 0x101f, size: 1}, open, other}))
}

// Symbols are ignored if they are not functions, are undefined, or are outside of code.
func TestWhatCounts(t *testing.T) {
	e := new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x1000)).Add(elftest.TestSection{Name: ".data", Kind: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC | elf.SHF_WRITE, Addr: 0x3000, Data: make([]byte, 16)})
	symbol := func(name string, kind elf.SymType, bind elf.SymBind, section uint16, addr, size uint64) elftest.TestSymbol {
		return elftest.TestSymbol{Name: name, Kind: kind, Bind: bind, Section: section, Addr: addr, Size: size}
	}
	e.Symbols(".symtab", elf.SHT_SYMTAB,
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
	table, err := readBytes(e.Bytes())
	require.NoError(t, err)
	for addr, want := range map[uint64]string{
		0x1000: "", 0x1100: "alias", 0x110f: "alias", 0x1110: "", 0x1200: "chooses", 0x1300: "assembly", 0x131f: "assembly", 0x1320: "",
		0x1400: "versioned", 0x1f00: "", 0x1ff0: "assembly at the end", 0x1fff: "assembly at the end", 0x2000: "", 0x3000: "", 0x5000: "",
	} {
		got, _ := table.Lookup(addr)
		require.Equal(t, want, got.Name, "%#x", addr)
	}
}

// A file without section headers keeps its exported symbols.
func TestWithoutSectionHeaders(t *testing.T) {
	e := new(elftest.TestELF).Code(".text", 0, make([]byte, 0x100))
	e.Symbols(".dynsym", elf.SHT_DYNSYM, elftest.Function("exported", elftest.TestBase+0x100, 0x10), elftest.Function("another", elftest.TestBase+0x110, 0x10))
	e.Sections[2].Flags = elf.SHF_ALLOC
	e.Add(elftest.TestSection{Name: ".hash", Kind: elf.SHT_HASH, Flags: elf.SHF_ALLOC, Data: binary.LittleEndian.AppendUint32([]byte{1, 0, 0, 0}, 3)})
	b := e.Bytes()
	f, err := elf.NewFile(bytes.NewReader(b))
	require.NoError(t, err)
	e.Dynamic = []uint64{
		uint64(elf.DT_SYMTAB), f.Section(".dynsym").Addr, uint64(elf.DT_STRTAB), f.Section(".dynsym.strings").Addr, uint64(elf.DT_STRSZ), f.Section(".dynsym.strings").Size,
		uint64(elf.DT_HASH), f.Section(".hash").Addr, 0, 0,
	}
	b = e.Bytes()
	clear(b[0x28:0x30]) // e_shoff
	clear(b[0x3c:0x40]) // e_shnum, e_shstrndx
	table, err := readBytes(b)
	require.NoError(t, err)
	got, _ := table.Lookup(elftest.TestBase + 0x118)
	require.Equal(t, symtab.Symbol{Name: "another", Source: symtab.SourceDynsym}, got)
}

// Files whose headers are wrong are rejected or partly read, and this takes little time.
func TestHostile(t *testing.T) {
	text := func() *elftest.TestELF { return new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x100)) }
	many := make([]elftest.TestSymbol, elftest.Small.Symbols+1)
	for i := range many {
		many[i] = elftest.Function("f", 0x1000+uint64(i%0x100), 1)
	}
	set := func(e *elftest.TestELF, at int, value ...byte) []byte {
		b := e.Bytes()
		copy(b[at:], value)
		return b
	}
	huge := func(change func(s *elftest.TestSection)) []byte {
		e := text().Symbols(".symtab", elf.SHT_SYMTAB, elftest.Function("f", 0x1000, 0x10))
		change(&e.Sections[1])
		return e.Bytes()
	}
	for name, c := range map[string]struct {
		content []byte
		want    error
	}{
		"empty":                      {nil, symtab.ErrNotELF},
		"text":                       {[]byte("#!/bin/sh\necho something that is long enough\n"), symtab.ErrNotELF},
		"big-endian":                 {set(elftest.Example(), elf.EI_DATA, byte(elf.ELFDATA2MSB)), symtab.ErrNotELF},
		"cut in its header":          {elftest.Example().Bytes()[:40], symtab.ErrMalformed},
		"too many segments":          {set(elftest.Example(), 0x38, 0xff, 0xff), symtab.ErrMalformed},
		"segments of odd size":       {set(elftest.Example(), 0x36, 57), symtab.ErrMalformed},
		"segments outside":           {set(elftest.Example(), 0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), symtab.ErrMalformed},
		"sections outside":           {set(text(), 0x28, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), nil},
		"sections of odd size":       {set(text(), 0x3a, 65), nil},
		"too many symbols":           {text().Symbols(".symtab", elf.SHT_SYMTAB, many...).Bytes(), symtab.ErrTooLarge},
		"a table of all memory":      {huge(func(s *elftest.TestSection) { s.Size = 1<<64 - 24 }), symtab.ErrMalformed},
		"a table past the end":       {huge(func(s *elftest.TestSection) { s.Size = 1 << 20 }), symtab.ErrMalformed},
		"a table somewhere else":     {huge(func(s *elftest.TestSection) { s.Offset = 1 << 60 }), symtab.ErrMalformed},
		"symbols of no size":         {huge(func(s *elftest.TestSection) { s.Entry = 0 }), symtab.ErrMalformed},
		"names in itself":            {huge(func(s *elftest.TestSection) { s.Link = ".symtab" }), nil},
		"names in another section":   {huge(func(s *elftest.TestSection) { s.Link = ".text" }), nil},
		"a symbol of all memory":     {text().Symbols(".symtab", elf.SHT_SYMTAB, elftest.Function("f", 0x1000, 1<<64-1)).Bytes(), nil},
		"a symbol of much memory":    {text().Symbols(".symtab", elf.SHT_SYMTAB, elftest.Function("f", 0x1000, 1<<40)).Bytes(), nil},
		"a very long name":           {text().Symbols(".symtab", elf.SHT_SYMTAB, elftest.Function(strings.Repeat("x", symtab.MaxName+1), 0x1000, 0x10)).Bytes(), nil},
		"more names than allowed":    {text().Symbols(".symtab", elf.SHT_SYMTAB, longNames()...).Bytes(), symtab.ErrTooLarge},
		"not the end of its strings": {notTerminated(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readBytes(c.content)
			require.ErrorIs(t, err, c.want)
			survive(t, c.content)
		})
	}
	whole := elftest.Example().Bytes()
	for n := 0; n < len(whole); n += 13 {
		survive(t, whole[:n])
		changed := bytes.Clone(whole)
		changed[n] ^= 0xff
		survive(t, changed)
	}
	for i := range 64 + 2*56 { // every byte of the headers
		changed := bytes.Clone(whole)
		changed[i] ^= 0xff
		survive(t, changed)
	}
}

// longNames returns symbols whose names exceed the limit of elftest.Small.
func longNames() []elftest.TestSymbol {
	var all []elftest.TestSymbol
	for i := range elftest.Small.Names/symtab.MaxName + 2 {
		all = append(all, elftest.Function(strings.Repeat(string(rune('a'+i%26)), symtab.MaxName-1), 0x1000+uint64(i), 1))
	}
	return all
}

func notTerminated() []byte {
	e := new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x100)).Symbols(".symtab", elf.SHT_SYMTAB, elftest.Function("f", 0x1000, 0x10))
	s := &e.Sections[2]
	s.Data = s.Data[:len(s.Data)-1]
	return e.Bytes()
}

// cutting is a file that is truncated during a read.
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
	content := elftest.Example().Bytes()
	for after := 0; ; after++ {
		c := &cutting{bytes.NewReader(content), 0, after}
		_, err := readTable(newReader(t.Context(), c, int64(len(content)), elftest.Small), elftest.Small, nil)
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
	content := elftest.Example().Bytes()
	_, err := readTable(newReader(ctx, bytes.NewReader(content), int64(len(content)), elftest.Small), elftest.Small, nil)
	require.ErrorIs(t, err, symtab.ErrTooLarge)
	few := symtab.Limits{Symbols: 10, Names: 100, Read: 200, Memory: 1 << 20}
	_, err = readTable(newReader(t.Context(), bytes.NewReader(content), int64(len(content)), few), few, nil)
	require.ErrorIs(t, err, symtab.ErrTooLarge)
}

func FuzzELF(f *testing.F) {
	f.Add(elftest.Example().Bytes())
	f.Add(elftest.GoExample(elftest.GoExampleTable()).Bytes())
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
		e := elftest.Example()
		if !x86 {
			e.Machine = elf.EM_AARCH64
		}
		e.Code(".plt.sec", 0x4000, code)
		survive(t, e.Bytes())
	})
}

func FuzzMiniDebug(f *testing.F) {
	f.Add(elftest.Mini)
	f.Fuzz(func(t *testing.T, packed []byte) {
		survive(t, new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x100)).Add(elftest.TestSection{Name: ".gnu_debugdata", Kind: elf.SHT_PROGBITS, Data: packed}).Bytes())
	})
}

func FuzzGo(f *testing.F) {
	f.Add(elftest.GoExampleTable())
	f.Fuzz(func(t *testing.T, table []byte) { survive(t, elftest.GoExample(table).Bytes()) })
}
