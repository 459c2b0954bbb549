package parse

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

func manyStubs(n int) []byte { return stubELF(n).Bytes() }

// stubELF returns a library with n stubs. .dynsym lists their symbols in another order, and the string table lists the names in a
// third order.
func stubELF(n int) *elftest.TestELF {
	le := binary.LittleEndian
	random := rand.New(rand.NewPCG(1, 2))
	const stubs, slots = 0x100000, 0x800000
	var code, rela, table []byte
	text := []byte{0}
	at := make([]uint32, n)
	for _, i := range random.Perm(n) {
		at[i] = uint32(len(text))
		text = append(append(text, fmt.Sprintf("function_%0100d", i)...), 0)
	}
	order := random.Perm(n) // the index of the symbol that each stub calls
	table = make([]byte, 24*(n+1))
	for i, number := range order {
		b := []byte{0xff, 0x25}
		b = le.AppendUint32(b, uint32(slots+8*i-(stubs+16*i+6)))
		code = append(append(code, b...), make([]byte, 10)...)
		rela = le.AppendUint64(rela, uint64(slots+8*i))
		rela = le.AppendUint64(rela, uint64(number+1)<<32|uint64(elf.R_X86_64_JMP_SLOT))
		rela = le.AppendUint64(rela, 0)
		le.PutUint32(table[24*(number+1):], at[i])
		table[24*(number+1)+4] = elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC)
	}
	e := new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x100)).Symbols(".symtab", elf.SHT_SYMTAB, elftest.Function("own", 0x1000, 0x10))
	e.Add(elftest.TestSection{Name: ".dynsym", Kind: elf.SHT_DYNSYM, Flags: elf.SHF_ALLOC, Data: table, Link: ".dynstr", Entry: 24})
	e.Add(elftest.TestSection{Name: ".dynstr", Kind: elf.SHT_STRTAB, Flags: elf.SHF_ALLOC, Data: text})
	e.Code(".plt", stubs, code)
	e.Sections[len(e.Sections)-1].Entry = 16
	return e.Add(elftest.TestSection{Name: ".rela.plt", Kind: elf.SHT_RELA, Flags: elf.SHF_ALLOC, Data: rela, Entry: 24})
}

// Naming stubs reads each part of a library once.
func TestManyStubs(t *testing.T) {
	const n = 20_000
	content := manyStubs(n)
	limits := symtab.DefaultLimits()
	limits.Read = 2 * int64(len(content))
	table, err := readTable(newReader(t.Context(), bytes.NewReader(content), int64(len(content)), limits), limits, nil)
	require.NoError(t, err)
	for i := range n {
		got, _ := table.Lookup(0x100000 + 16*uint64(i))
		if want := fmt.Sprintf("function_%0100d@plt", i); got.Name != want {
			t.Fatalf("stub %d is %q", i, got.Name)
		}
	}
}

// Linkers write stubs as entries of two sizes, with different instructions before the jump.
func TestStubsX86(t *testing.T) {
	jump := []byte{0xff, 0x25, 0x10, 0, 0, 0}
	pad := func(n int, parts ...[]byte) []byte {
		b := slices.Concat(parts...)
		return append(b, make([]byte, n-len(b))...)
	}
	for name, c := range map[string]struct {
		entry uint64
		code  []byte
		want  []stub
	}{
		"of 8":             {8, slices.Concat(pad(8, jump), pad(8, jump)), []stub{{0x1000, 0x1008, 0x1016}, {0x1008, 0x1010, 0x101e}}},
		"of 16":            {16, slices.Concat(pad(16, jump), pad(16, jump)), []stub{{0x1000, 0x1010, 0x1016}, {0x1010, 0x1020, 0x1026}}},
		"of no known size": {0, pad(16, jump), []stub{{0x1000, 0x1010, 0x1016}}},
		"after endbr64":    {16, pad(16, []byte{0xf3, 0x0f, 0x1e, 0xfa}, jump), []stub{{0x1000, 0x1010, 0x101a}}},
		"with bnd":         {16, pad(16, []byte{0xf3, 0x0f, 0x1e, 0xfa, 0xf2}, jump), []stub{{0x1000, 0x1010, 0x101b}}},
		"after mov":        {16, pad(16, []byte{0x41, 0xbb, 1, 2, 3, 4}, jump), []stub{{0x1000, 0x1010, 0x101c}}},
		"no jump":          {16, pad(32, []byte{0xff, 0x35}), nil},
		"cut":              {16, jump, nil},
	} {
		require.Equal(t, c.want, stubsX86(c.code, 0x1000, c.entry), name)
	}
}

// If there are too many stubs to read, a library keeps its own names.
func TestStubsTooLarge(t *testing.T) {
	content := manyStubs(20_000)
	limits := symtab.DefaultLimits()
	limits.Read = 256 << 10 // less than the size of the stubs
	table, err := readTable(newReader(t.Context(), bytes.NewReader(content), int64(len(content)), limits), limits, nil)
	require.NoError(t, err)
	got, _ := table.Lookup(0x1000)
	require.Equal(t, "own", got.Name)
	_, state := table.Lookup(0x100000)
	require.Equal(t, symtab.Outside, state)
}

// If stubs are inconsistent, a library keeps its own names.
func TestStubsMalformed(t *testing.T) {
	for name, damage := range map[string]func(e *elftest.TestELF){
		"code":        func(e *elftest.TestELF) { e.Named(".plt").Size = 4 << 20 },
		"relocations": func(e *elftest.TestELF) { e.Named(".rela.plt").Offset = 1 << 40 },
		"symbols":     func(e *elftest.TestELF) { e.Named(".dynsym").Offset = 1 << 40 },
		"names":       func(e *elftest.TestELF) { e.Named(".dynstr").Offset = 1 << 40 },
	} {
		t.Run(name, func(t *testing.T) {
			e := stubELF(100)
			damage(e)
			content, limits := e.Bytes(), symtab.DefaultLimits()
			table, err := readTable(newReader(t.Context(), bytes.NewReader(content), int64(len(content)), limits), limits, nil)
			require.NoError(t, err)
			got, _ := table.Lookup(0x1000)
			require.Equal(t, "own", got.Name)
			_, state := table.Lookup(0x100000)
			require.Equal(t, symtab.Outside, state)
		})
	}
}
