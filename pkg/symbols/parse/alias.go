package parse

import (
	"bytes"
	"cmp"
	"debug/elf"
	"slices"
)

// aliasName is the number of bytes of a name that are compared to choose one of several aliases.
const aliasName = 64

// alias is one of several names of a function. at is its index in the list of symbols, and name is its offset in the string
// table.
type alias struct {
	at, name uint32
	// Names with fewer leading underscores come first, then global before weak names, then shorter names. The underscore of a
	// mangled C++ name does not count.
	underscores, rank, length uint8
}

// preferPlain puts the best-known name first among the exported names of a function. It prefers malloc to __libc_malloc, free to
// cfree, and calloc to __libc_calloc, although calloc is weak. symbols are sorted by address. Local names stay as they are,
// because the programmer chose them.
func preferPlain(f *elfFile, symbols []symbol, strings *section) error {
	var all []alias
	var groups []int // start of each function's names in all
	for i := 0; i < len(symbols); {
		s := &symbols[i]
		j := i + 1
		for j < len(symbols) && symbols[j].addr == s.addr && symbols[j].size == s.size && exported(symbols[j].rank) && exported(s.rank) {
			j++
		}
		if j-i > 1 {
			groups = append(groups, len(all))
			for n := i; n < j; n++ {
				all = append(all, alias{at: uint32(n), name: symbols[n].name, rank: symbols[n].rank})
			}
		}
		i = j
	}
	if len(all) == 0 || strings.kind == elf.SHT_NOBITS {
		return nil
	}
	const each = 4 * 16 // memory per alias, including the garbage of growing lists
	if err := f.hold(each * int64(len(all))); err != nil {
		return err
	}
	// Names are read in file order, so that the file is read once from front to end.
	order := make([]uint32, len(all))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return cmp.Compare(all[a].name, all[b].name) })
	names := window{f: f, offset: strings.offset, size: strings.size}
	for n, i := range order {
		if n%checkSymbols == 0 {
			if err := f.expired(); err != nil {
				return err
			}
		}
		off := uint64(all[i].name)
		b, err := names.bytes(off, min(aliasName, names.size-min(off, names.size)))
		if err != nil {
			return err
		}
		all[i].describe(b)
	}
	groups = append(groups, len(all))
	for n, from := range groups[:len(groups)-1] {
		group := all[from:groups[n+1]]
		best := slices.MinFunc(group, func(a, b alias) int {
			return cmp.Or(cmp.Compare(a.underscores, b.underscores), cmp.Compare(a.rank, b.rank), cmp.Compare(a.length, b.length))
		})
		first := group[0].at
		symbols[first], symbols[best.at] = symbols[best.at], symbols[first]
	}
	return nil
}

// exported reports whether other files can call functions of a rank.
func exported(rank uint8) bool { return rank == rankGlobal || rank == rankWeak }

// describe rates a name, which ends at the first zero byte or at the @ of a symbol version.
func (a *alias) describe(name []byte) {
	if n := bytes.IndexAny(name, "\x00@"); n >= 0 {
		name = name[:n]
	}
	a.length, a.underscores = uint8(len(name)), aliasName
	if len(name) == 0 {
		return
	}
	a.underscores = uint8(len(name) - len(bytes.TrimLeft(name, "_")))
	mangled := a.underscores == 1 && len(name) > 1 && (name[1] == 'Z' || name[1] == 'R')
	if mangled || bytes.HasPrefix(name, []byte("__vdso_")) { // __vdso_ marks the kernel's function, not the C library's
		a.underscores = 0
	}
}
