package parse

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
)

// If a function has several names, the name that users know counts.
func TestAliases(t *testing.T) {
	const global, weak, local = elf.STB_GLOBAL, elf.STB_WEAK, elf.STB_LOCAL
	type name struct {
		name string
		bind elf.SymBind
	}
	for want, names := range map[string][]name{
		"malloc":        {{"__libc_malloc", global}, {"tc_malloc", global}, {"malloc", global}, {"__GI___libc_malloc", local}},
		"calloc":        {{"__libc_calloc", global}, {"calloc", weak}},
		"free":          {{"cfree@GLIBC_2.2.5", global}, {"free@@GLIBC_2.2.5", global}},
		"_Znwm":         {{"tc_new", global}, {"__new", global}, {"_Znwm", global}},
		"strong":        {{"weak", weak}, {"strong", global}},
		"__first":       {{"__first", global}, {"__other", global}},
		"exported_name": {{"plain", local}, {"exported_name", global}},
		"local_first":   {{"local_first", local}, {"local", local}},
		"__vdso_time":   {{"time", weak}, {"__vdso_time", global}},
		"_R3foo":        {{"_R3foo", global}, {"__rust", global}, {"___more", global}},
		"short":         {{"", global}, {"short", global}},
	} {
		for turn := range names {
			var all []elftest.TestSymbol
			if slices.Contains([]string{"__first", "local_first"}, want) && turn > 0 {
				continue // the first name in the file counts
			}
			for _, n := range append(slices.Clone(names[turn:]), names[:turn]...) {
				all = append(all, elftest.TestSymbol{Name: n.name, Kind: elf.STT_FUNC, Bind: n.bind, Section: 1, Addr: 0x1100, Size: 0x10})
			}
			all = append(all, elftest.Function("before", 0x1000, 0x10), elftest.Function("within", 0x1108, 0x4), elftest.Function("behind", 0x1200, 0x10))
			for _, kind := range []elf.SectionType{elf.SHT_SYMTAB, elf.SHT_DYNSYM} {
				table, err := readBytes(new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x1000)).Symbols(map[elf.SectionType]string{elf.SHT_SYMTAB: ".symtab", elf.SHT_DYNSYM: ".dynsym"}[kind], kind, all...).Bytes())
				require.NoError(t, err)
				for addr, want := range map[uint64]string{0x1000: "before", 0x1100: want, 0x1108: "within", 0x110f: want, 0x1200: "behind"} {
					got, _ := table.Lookup(addr)
					require.Equal(t, want, got.Name, "%v %#x", all, addr)
				}
			}
		}
	}
}

// A function has as many long names as a table can hold. Some names are past the end of the table.
func TestHostileAliases(t *testing.T) {
	var all []elftest.TestSymbol
	for i := range elftest.Small.Symbols {
		all = append(all, elftest.Function(fmt.Sprintf("%0200d", i), 0x1000, 0x10))
	}
	e := new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x100)).Symbols(".symtab", elf.SHT_SYMTAB, all...)
	survive(t, e.Bytes())
	e.Sections[2].Data = e.Sections[2].Data[:100]
	survive(t, e.Bytes())
}

func TestAliasesOfLibc(t *testing.T) {
	found, _ := filepath.Glob("/lib/*-linux-gnu/libc.so.6")
	if len(found) == 0 {
		t.Skip("no glibc")
	}
	file, err := os.Open(found[0])
	require.NoError(t, err)
	defer file.Close()
	table := tableOf(t, found[0])
	f, err := elf.NewFile(file)
	require.NoError(t, err)
	all, err := f.DynamicSymbols()
	require.NoError(t, err)
	for _, name := range []string{"malloc", "calloc", "realloc", "free", "puts", "pthread_mutex_lock", "fork"} {
		i := slices.IndexFunc(all, func(s elf.Symbol) bool { return s.Name == name })
		require.GreaterOrEqual(t, i, 0, name)
		got, _ := table.Lookup(all[i].Value)
		require.Equal(t, name, outermost(got).Name)
	}
}
