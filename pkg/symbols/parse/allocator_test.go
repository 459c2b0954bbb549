package parse

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
)

// library opens a library on this machine, or skips the test.
func library(t *testing.T, pattern string) *os.File {
	t.Helper()
	for _, dir := range []string{"/lib/*-linux-gnu/", "/usr/lib/*-linux-gnu/", "/lib64/", "/usr/lib64/", "/usr/lib/"} {
		if found, _ := filepath.Glob(dir + pattern); len(found) > 0 {
			f, err := os.Open(found[0])
			require.NoError(t, err)
			t.Cleanup(func() { f.Close() })
			return f
		}
	}
	t.Skipf("this machine has no %s", pattern)
	return nil
}

// told returns the functions of a file according to debug/elf.
func told(t *testing.T, r io.ReaderAt) map[string]uint64 {
	t.Helper()
	f, err := elf.NewFile(r)
	require.NoError(t, err)
	ours, err := openELF(newReader(t.Context(), r, math.MaxInt64, allocatorLimits))
	require.NoError(t, err)
	all, _ := f.DynamicSymbols()
	local, _ := f.Symbols()
	out := map[string]uint64{}
	for _, s := range append(all, local...) {
		if offset, ok := ours.codeOffset(s.Value); ok && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			out[s.Name] = offset
		}
	}
	return out
}

// find is findAllocator for a file of unknown size.
func find(t *testing.T, r io.ReaderAt) ([]allocators.Function, map[uint64][]uint64, error) {
	return findAllocator(t.Context(), r, math.MaxInt64)
}

func TestFindLibc(t *testing.T) {
	f := library(t, "libc.so.6")
	offsets := told(t, f)
	found, _, err := find(t, f)
	require.NoError(t, err)
	for name, p := range map[string]allocators.Program{
		"malloc": allocators.SizeFirst, "valloc": allocators.SizeFirst, "pvalloc": allocators.SizeFirst, "memalign": allocators.SizeSecond, "aligned_alloc": allocators.SizeSecond,
		"posix_memalign": allocators.SizeThird, "calloc": allocators.CountSize, "realloc": allocators.AddressSize, "free": allocators.Address,
	} {
		require.Contains(t, offsets, name)
		require.Contains(t, found, allocators.Function{Program: p, Offset: offsets[name]}, name)
	}
	require.Less(t, len(found), 12)
	for i := range found[1:] {
		require.Less(t, found[i].Offset, found[i+1].Offset, "one probe at a place")
	}
}

func TestFindOthers(t *testing.T) {
	for _, tc := range []struct {
		pattern string
		want    []string
	}{
		{"libstdc++.so.6", nil}, // its operators call malloc
		{"libm.so.6", nil},
		{"libjemalloc.so.2", []string{"malloc", "free", "mallocx", "sdallocx", "_Znwm", "_ZdlPvm"}},
		{"libtcmalloc_minimal.so.4", []string{"malloc", "free", "tc_malloc", "_Znwm"}},
		{"libmimalloc.so.*", []string{"malloc", "free", "mi_malloc", "_Znwm"}},
	} {
		t.Run(tc.pattern, func(t *testing.T) {
			f := library(t, tc.pattern)
			offsets := told(t, f)
			found, _, err := find(t, f)
			require.NoError(t, err)
			for _, name := range tc.want {
				require.True(t, slices.ContainsFunc(found, func(f allocators.Function) bool { return f.Offset == offsets[name] }), name)
			}
			if tc.want == nil {
				require.Empty(t, found)
			}
		})
	}
}

// The functions of an allocator inside a program have a prefix.
func TestFindPrefixed(t *testing.T) {
	file := exampleFile{machine: machine, symbols: []exampleSymbol{
		fn("je_malloc", 0x1000), fn("_rjem_malloc", 0x1010), fn("_rjem_mallocx", 0x1020), fn("_rjem_rallocx", 0x1030), fn("_rjem_sdallocx", 0x1040),
		fn("mi_calloc", 0x1050), fn("my_malloc", 0x1060), fn("_rjem", 0x1070),
	}}
	var found []allocators.Program
	all, _, err := find(t, bytes.NewReader(file.bytes()))
	require.NoError(t, err)
	for _, f := range all {
		found = append(found, f.Program)
	}
	slices.Sort(found)
	require.Equal(t, []allocators.Program{allocators.SizeFirst, allocators.SizeFirst, allocators.SizeFirst, allocators.CountSize, allocators.AddressSize, allocators.Address}, found)
}

// If a file has more functions than probes, the most frequently called functions get them, wherever they are in the file.
func TestFindMostCalled(t *testing.T) {
	var e exampleFile
	for i := range uint64(2 * allocators.MaxFunctions) {
		name := []string{"free", "valloc", "mi_free", "calloc"}[i%4]
		if i == allocators.MaxFunctions {
			name = "realloc"
		}
		e.symbols = append(e.symbols, fn(name, 0x1000+16*i))
	}
	last := 0x1000 + 16*uint64(2*allocators.MaxFunctions)
	e.symbols = append(e.symbols, fn("je_malloc", last), fn("malloc", last+16))
	found, _, err := find(t, bytes.NewReader(e.bytes()))
	require.NoError(t, err)
	require.Len(t, found, allocators.MaxFunctions)
	require.Equal(t, []allocators.Function{{Program: allocators.SizeFirst, Offset: last - 0x1000}, {Program: allocators.SizeFirst, Offset: last - 0x1000 + 16}}, found[:2])
	require.Contains(t, found, allocators.Function{Program: allocators.AddressSize, Offset: 16 * allocators.MaxFunctions})
	require.NotContains(t, found, allocators.Function{Program: allocators.Address, Offset: 0}, "what frees goes first")
}

// static compiles a static program.
func static(t *testing.T, compiler, name, source string) *os.File {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(source), 0o644))
	if out, err := exec.Command(compiler, "-static", "-O1", "-o", dir+"/main", filepath.Join(dir, name)).CombinedOutput(); err != nil {
		t.Skipf("no static programs here: %v: %s", err, out)
	}
	f, err := os.Open(dir + "/main")
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// A static program lists its allocator's functions only in its own symbol table.
func TestFindStatic(t *testing.T) {
	f := static(t, "cc", "main.c", "#include <stdlib.h>\nint main(int n, char **v) { free(calloc(n, 10)); return v[0] == malloc(n); }\n")
	found, _, err := find(t, f)
	require.NoError(t, err)
	require.Contains(t, found, allocators.Function{Program: allocators.SizeFirst, Offset: told(t, f)["malloc"]})
	require.Contains(t, found, allocators.Function{Program: allocators.Address, Offset: told(t, f)["free"]})
}

// exampleFile is an ELF file with one executable segment and symbols.
type exampleFile struct {
	machine elf.Machine
	symbols []exampleSymbol
	text    string                      // the names; each symbol adds one
	change  func(symbols, names []byte) // changes the section headers
	offset  uint64                      // of the segment
}

type exampleSymbol struct {
	name  string
	at    uint32 // in text, if name is ""
	value uint64
	info  byte
	index uint16
}

func fn(name string, value uint64) exampleSymbol {
	return exampleSymbol{name: name, value: value, info: byte(elf.STT_FUNC), index: 1}
}

func (e exampleFile) bytes() []byte {
	text, symbols := e.text+"\x00", slices.Clone(e.symbols)
	for i, s := range symbols {
		if s.name != "" {
			symbols[i].at = uint32(len(text))
			text += s.name + "\x00"
		}
	}
	file := (&elftest.TestELF{Machine: cmp.Or(e.machine, machine)}).RawSymbols(len(symbols), []byte(text), func(i int) elf.Sym64 {
		s := symbols[i]
		return elf.Sym64{Name: s.at, Info: s.info, Shndx: s.index, Value: s.value, Size: 16}
	})
	file.Named(".symtab").Kind = elf.SHT_DYNSYM
	b, le := file.Bytes(), binary.LittleEndian
	le.PutUint64(b[72:], e.offset)
	le.PutUint64(b[80:], 0x1000) // the segment's address
	le.PutUint64(b[96:], 0x1000) // its size
	if e.change != nil {
		at := le.Uint64(b[40:])
		e.change(b[at+64:], b[at+128:])
	}
	return b
}

func TestFindSymbols(t *testing.T) {
	for _, tc := range []struct {
		name string
		file exampleFile
		want []allocators.Function
	}{
		{"several names", exampleFile{symbols: []exampleSymbol{fn("malloc", 0x1100), fn("je_malloc", 0x1100), fn("free", 0x1040)}}, []allocators.Function{{Program: allocators.Address, Offset: 0x40}, {Program: allocators.SizeFirst, Offset: 0x100}}},
		{"names within others", exampleFile{text: "\x00my_je_malloc\x00not_free", symbols: []exampleSymbol{
			{at: 4, value: 0x1010, info: 2, index: 1}, {at: 7, value: 0x1020, info: 2, index: 1}, {at: 1, value: 0x1030, info: 2, index: 1}, {at: 18, value: 0x1040, info: 2, index: 1},
		}}, []allocators.Function{{Program: allocators.SizeFirst, Offset: 0x10}, {Program: allocators.SizeFirst, Offset: 0x20}, {Program: allocators.Address, Offset: 0x40}}},
		{"operators of a library without malloc", exampleFile{symbols: []exampleSymbol{fn("_Znwm", 0x1100), fn("malloc", 0)}}, nil},
		{"operators of an allocator", exampleFile{symbols: []exampleSymbol{fn("_Znwm", 0x1100), fn("malloc", 0x1200)}}, []allocators.Function{{Program: allocators.Throws, Offset: 0x100}, {Program: allocators.SizeFirst, Offset: 0x200}}},
		{"outside of code", exampleFile{symbols: []exampleSymbol{fn("malloc", 0xfff), fn("free", 0x2000), fn("calloc", math.MaxUint64)}}, nil},
		{"a segment behind all files", exampleFile{offset: math.MaxInt64 - 0x80, symbols: []exampleSymbol{fn("malloc", 0x1040), fn("free", 0x1100)}}, []allocators.Function{{Program: allocators.SizeFirst, Offset: math.MaxInt64 - 0x40}}},
		{"of another file", exampleFile{symbols: []exampleSymbol{{name: "malloc", value: 0x1100, info: 2}}}, nil},
		{"a variable", exampleFile{symbols: []exampleSymbol{{name: "malloc", value: 0x1100, info: 1, index: 1}}}, nil},
		{"other names", exampleFile{symbols: []exampleSymbol{fn("mallocs", 0x1100), fn("xmalloc", 0x1200), fn("je_", 0x1300)}}, nil},
		{"another machine", exampleFile{machine: elf.EM_RISCV, symbols: []exampleSymbol{fn("malloc", 0x1100)}}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found, _, err := find(t, bytes.NewReader(tc.file.bytes()))
			require.NoError(t, err)
			require.ElementsMatch(t, tc.want, found)
		})
	}
}

// Probes are added and removed in the order of the functions' call frequency.
func TestDearestFirst(t *testing.T) {
	file := exampleFile{symbols: []exampleSymbol{fn("pvalloc", 0x1010), fn("realloc", 0x1020), fn("_Znam", 0x1030), fn("_Znwm", 0x1040), fn("malloc", 0x1100), fn("free", 0x1200)}}
	found, _, err := find(t, bytes.NewReader(file.bytes()))
	require.NoError(t, err)
	require.Equal(t, []allocators.Function{{Program: allocators.Throws, Offset: 0x40}, {Program: allocators.SizeFirst, Offset: 0x100}, {Program: allocators.SizeFirst, Offset: 0x10}, {Program: allocators.AddressSize, Offset: 0x20}, {Program: allocators.Throws, Offset: 0x30}, {Program: allocators.Address, Offset: 0x200}}, found)
	require.Equal(t, []allocators.Function{{Program: allocators.Throws, Offset: 0x40}, {Program: allocators.SizeFirst, Offset: 0x100}, {Program: allocators.SizeFirst, Offset: 0x10}, {Program: allocators.Throws, Offset: 0x30}, {Program: allocators.AddressSize, Offset: 0x20}, {Program: allocators.Address, Offset: 0x200}}, allocators.ByRank(found))
}

// A program can map a file with any content.
func TestFindHostile(t *testing.T) {
	le := binary.LittleEndian
	size := func(n uint64) func(symbols, names []byte) {
		return func(symbols, names []byte) { le.PutUint64(symbols[32:], n); le.PutUint64(names[32:], n) }
	}
	malloc := []exampleSymbol{fn("malloc", 0x1100)}
	for name, tc := range map[string]exampleFile{
		"huge tables":          {symbols: malloc, change: size(uint64(allocatorLimits.Read))},
		"sizes that overflow":  {symbols: malloc, change: size(math.MaxUint64 / 2)},
		"the largest size":     {symbols: malloc, change: size(math.MaxUint64)},
		"no table of names":    {symbols: malloc, change: func(symbols, _ []byte) { le.PutUint32(symbols[40:], 99) }},
		"names that are none":  {symbols: malloc, change: func(symbols, _ []byte) { le.PutUint32(symbols[40:], 0) }},
		"compressed":           {symbols: malloc, change: func(symbols, _ []byte) { le.PutUint64(symbols[8:], uint64(elf.SHF_COMPRESSED)) }},
		"names somewhere else": {symbols: malloc, change: func(_, names []byte) { le.PutUint64(names[24:], 1<<62) }},
	} {
		found, _, _ := find(t, bytes.NewReader(tc.bytes()))
		require.Empty(t, found, name)
	}
	many := exampleFile{}
	for i := range uint64(3 * maxMeant) {
		many.symbols = append(many.symbols, fn("malloc", 0x1000+i))
	}
	found, _, err := find(t, bytes.NewReader(many.bytes()))
	require.NoError(t, err)
	require.Len(t, found, allocators.MaxFunctions)
	for _, b := range [][]byte{nil, []byte(elf.ELFMAG), bytes.Repeat([]byte{0x7f}, 4096)} {
		_, _, err := find(t, bytes.NewReader(b))
		require.Error(t, err)
	}
}

// endless is a sparse file of any size with a header.
type endless struct{ header []byte }

func (e endless) ReadAt(to []byte, at int64) (int, error) {
	clear(to)
	if at < int64(len(e.header)) {
		copy(to, e.header[at:])
	}
	return len(to), nil
}

// A file with the maximum number of sections needs no more memory than other files.
func TestFindMemory(t *testing.T) {
	le := binary.LittleEndian
	b := exampleFile{symbols: []exampleSymbol{fn("malloc", 0x1100)}}.bytes()
	at := int(le.Uint64(b[40:]))
	sections := slices.Clone(b)
	le.PutUint16(sections[60:], 0) // the first section's size field holds the number of sections
	le.PutUint64(sections[at+32:], 1<<30)
	names := slices.Clone(b)
	le.PutUint64(names[at+3*64+32:], 1<<40) // of the sections' names
	symbols := slices.Clone(b)
	le.PutUint64(symbols[at+64+32:], uint64(allocatorLimits.Read)/2)
	le.PutUint64(symbols[at+64+24:], 1<<20)
	for name, header := range map[string][]byte{"sections": sections, "their names": names, "symbols": symbols} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, _ = find(t, endless{header})
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20), name)
	}
}

// broken is a file that cannot be read behind an offset.
type broken struct {
	io.ReaderAt
	behind int64
}

var ErrBroken = errors.New("the disk is broken")

func (b broken) ReadAt(to []byte, at int64) (int, error) {
	if at > b.behind {
		return 0, ErrBroken
	}
	return b.ReaderAt.ReadAt(to, at)
}

func TestFindUnreadable(t *testing.T) {
	_, _, err := find(t, broken{bytes.NewReader(exampleFile{symbols: []exampleSymbol{fn("malloc", 0x1100)}}.bytes()), 64})
	require.ErrorIs(t, err, ErrBroken)
}

func FuzzAllocator(f *testing.F) {
	f.Add(exampleFile{symbols: []exampleSymbol{fn("malloc", 0x1100), fn("free", 0x1200)}}.bytes())
	f.Add(exampleFile{text: "\x00my_je_malloc", symbols: []exampleSymbol{{at: 4, value: 0x1010, info: 2, index: 1}}}.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		found, _, err := find(t, bytes.NewReader(b))
		if err == nil {
			require.LessOrEqual(t, len(found), allocators.MaxFunctions)
		}
		for _, fn := range found {
			require.True(t, fn.Program < allocators.Nothing || fn.Program == allocators.Throws)
			require.LessOrEqual(t, fn.Offset, uint64(math.MaxInt64))
		}
	})
}
