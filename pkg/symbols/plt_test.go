package symbols

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func manyStubs(n int) []byte { return stubELF(n).bytes() }

// stubELF is a library with n stubs. The symbols that they call are in .dynsym in another order, and their names are in
// still another one.
func stubELF(n int) *testELF {
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
	order := random.Perm(n) // the number of the symbol that each stub calls
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
	e := new(testELF).code(".text", 0x1000, make([]byte, 0x100)).symbols(".symtab", elf.SHT_SYMTAB, function("own", 0x1000, 0x10))
	e.add(testSection{name: ".dynsym", kind: elf.SHT_DYNSYM, flags: elf.SHF_ALLOC, data: table, link: ".dynstr", entry: 24})
	e.add(testSection{name: ".dynstr", kind: elf.SHT_STRTAB, flags: elf.SHF_ALLOC, data: text})
	e.code(".plt", stubs, code)
	e.sections[len(e.sections)-1].entry = 16
	return e.add(testSection{name: ".rela.plt", kind: elf.SHT_RELA, flags: elf.SHF_ALLOC, data: rela, entry: 24})
}

// Naming the stubs reads each part of a library once.
func TestManyStubs(t *testing.T) {
	const n = 20_000
	content := manyStubs(n)
	limits := DefaultLimits()
	limits.Read = 2 * int64(len(content))
	table, err := ReadTable(t.Context(), bytes.NewReader(content), int64(len(content)), Reading{Limits: limits})
	require.NoError(t, err)
	for i := range n {
		got, _ := table.Lookup(0x100000 + 16*uint64(i))
		if want := fmt.Sprintf("function_%0100d@plt", i); got.Name != want {
			t.Fatalf("stub %d is %q", i, got.Name)
		}
	}
}

// Linkers lay stubs out in entries of two sizes, after this or that.
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

// Stubs that are too much to read do not cost a library its own names.
func TestStubsTooLarge(t *testing.T) {
	content := manyStubs(20_000)
	limits := DefaultLimits()
	limits.Read = 256 << 10 // less than the stubs alone
	table, err := ReadTable(t.Context(), bytes.NewReader(content), int64(len(content)), Reading{Limits: limits})
	require.NoError(t, err)
	got, _ := table.Lookup(0x1000)
	require.Equal(t, "own", got.Name)
	_, state := table.Lookup(0x100000)
	require.Equal(t, Outside, state)
}

// Stubs that contradict themselves do not cost a library its own names.
func TestStubsMalformed(t *testing.T) {
	for name, damage := range map[string]func(e *testELF){
		"code":        func(e *testELF) { e.named(".plt").size = 4 << 20 },
		"relocations": func(e *testELF) { e.named(".rela.plt").offset = 1 << 40 },
		"symbols":     func(e *testELF) { e.named(".dynsym").offset = 1 << 40 },
		"names":       func(e *testELF) { e.named(".dynstr").offset = 1 << 40 },
	} {
		t.Run(name, func(t *testing.T) {
			e := stubELF(100)
			damage(e)
			content := e.bytes()
			table, err := ReadTable(t.Context(), bytes.NewReader(content), int64(len(content)), Reading{Limits: DefaultLimits()})
			require.NoError(t, err)
			got, _ := table.Lookup(0x1000)
			require.Equal(t, "own", got.Name)
			_, state := table.Lookup(0x100000)
			require.Equal(t, Outside, state)
		})
	}
}

func (e *testELF) named(name string) *testSection {
	for i := range e.sections {
		if e.sections[i].name == name {
			return &e.sections[i]
		}
	}
	panic("no section " + name)
}
