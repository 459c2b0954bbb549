package parse

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// symbol is a function's entry in a symbol table.
type symbol struct {
	addr, size uint64
	name       uint32 // offset in the string table
	rank       uint8  // of several symbols at one address, the lowest counts
}

// These are the parts of a rank.
const (
	rankGlobal = iota
	rankWeak
	rankLocal
	rankNoType = 4 // added to one of the above
)

// readSymbols returns a symbol table's functions, sorted by address.
//
// It returns functions, and untyped symbols with a size, in sections with code. In .symtab, a function without a size, as in
// assembly, extends to the next symbol of its section. In .dynsym, it does not, because .dynsym lacks some symbols.
func (f *elfFile) readSymbols(table *section, limits symtab.Limits) ([]symbol, error) {
	size := f.symbolSize()
	if table.entry != size {
		return nil, fmt.Errorf("%w: symbols of %d bytes", symtab.ErrMalformed, table.entry)
	}
	count := min(int64(min(table.size, uint64(f.size))/size), int64(limits.Symbols)+1)
	if err := f.hold(int64(unsafe.Sizeof(symbol{})) * count); err != nil {
		return nil, err
	}
	found := make([]symbol, 0, count)
	var others []uint64 // addresses in code of symbols that are not functions
	unsized := false
	buf := make([]byte, min(symtab.Chunk, table.size)/size*size)
	for off := uint64(0); off < table.size/size*size; off += uint64(len(buf)) {
		b := buf[:min(uint64(len(buf)), table.size/size*size-off)]
		if err := f.at(b, table.offset+off); err != nil {
			return nil, err
		}
		for ; len(b) > 0; b = b[size:] {
			s, index, info := f.symbol(b)
			kind, bind := elf.ST_TYPE(info), elf.ST_BIND(info)
			if index == elf.SHN_UNDEF || index >= elf.SHN_LORESERVE || kind == elf.STT_TLS || kind == elf.STT_FILE {
				continue
			}
			if !f.isCode(index, s.addr) {
				continue
			}
			switch {
			case kind == elf.STT_FUNC || kind == elf.STT_GNU_IFUNC:
			case kind == elf.STT_NOTYPE && s.size > 0:
				s.rank = rankNoType
			default:
				if len(others) == cap(others) {
					if err := f.hold(8 * 2 * int64(cap(others))); err != nil {
						return nil, err
					}
				}
				others = append(others, s.addr)
				if len(others) > limits.Symbols {
					return nil, fmt.Errorf("%w: more than %d symbols", symtab.ErrTooLarge, limits.Symbols)
				}
				continue
			}
			switch bind {
			case elf.STB_GLOBAL:
			case elf.STB_WEAK:
				s.rank |= rankWeak
			default:
				s.rank |= rankLocal
			}
			if f.machine == elf.EM_ARM {
				s.addr &^= 1 // the bit selects the instruction set
			}
			unsized = unsized || s.size == 0
			found = append(found, s)
			if len(found) > limits.Symbols {
				return nil, fmt.Errorf("%w: more than %d symbols", symtab.ErrTooLarge, limits.Symbols)
			}
		}
	}
	slices.SortFunc(found, func(a, b symbol) int {
		return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(b.size, a.size), cmp.Compare(a.rank, b.rank), cmp.Compare(a.name, b.name))
	})
	if unsized && table.kind == elf.SHT_SYMTAB {
		if err := f.sizeSymbols(found, others); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// symbolSize returns the number of bytes of an entry.
func (f *elfFile) symbolSize() uint64 { return 8 + 2*f.width() }

// symbol decodes an entry.
func (f *elfFile) symbol(b []byte) (s symbol, index elf.SectionIndex, info uint8) {
	o := binary.LittleEndian
	if f.class == elf.ELFCLASS64 {
		return symbol{name: o.Uint32(b), addr: o.Uint64(b[8:]), size: o.Uint64(b[16:])}, elf.SectionIndex(o.Uint16(b[6:])), b[4]
	}
	return symbol{name: o.Uint32(b), addr: uint64(o.Uint32(b[4:])), size: uint64(o.Uint32(b[8:]))}, elf.SectionIndex(o.Uint16(b[14:])), b[12]
}

// isCode reports whether an address is in a section with code. If the section is missing, it searches for a segment with code.
func (f *elfFile) isCode(index elf.SectionIndex, addr uint64) bool {
	if int(index) < len(f.sections) {
		s := &f.sections[index]
		return s.flags&elf.SHF_EXECINSTR != 0 && addr-s.addr < s.size
	}
	for i := range f.segments {
		if s := &f.segments[i]; s.kind == elf.PT_LOAD && s.flags&elf.PF_X != 0 && addr-s.addr < s.size {
			return true
		}
	}
	return false
}

// maxUnsized limits the size of a function without a size. Functions in assembly are short.
const maxUnsized = 64 << 10

// sizeSymbols extends functions without a size to the next symbol or the end of their section. found is sorted by address. It
// goes through each list once, from the back, because a file can contain millions of functions without a size at one address. The
// only error is a timeout.
func (f *elfFile) sizeSymbols(found []symbol, others []uint64) error {
	slices.Sort(others)
	var code []*section
	for i := range f.sections {
		if s := &f.sections[i]; s.flags&elf.SHF_EXECINSTR != 0 && s.size > 0 {
			code = append(code, s)
		}
	}
	slices.SortFunc(code, func(a, b *section) int { return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(a.size, b.size)) })
	next := uint64(1<<64 - 1) // the next function or other symbol
	for i := len(found) - 1; i >= 0; i-- {
		if i%checkSymbols == 0 {
			if err := f.expired(); err != nil {
				return err
			}
		}
		s := &found[i]
		if i+1 < len(found) && found[i+1].addr > s.addr {
			next = found[i+1].addr
		}
		for n := len(others); n > 0 && others[n-1] > s.addr; n-- {
			next, others = others[n-1], others[:n-1] // no function is between it and this one
		}
		for n := len(code); n > 0 && code[n-1].addr > s.addr; n-- {
			code = code[:n-1]
		}
		if s.size != 0 || len(code) == 0 {
			continue // without a section, its end is unknown
		}
		c := code[len(code)-1]
		if end := min(c.end(), next); s.addr-c.addr < c.size && end > s.addr && end-s.addr <= maxUnsized {
			s.size = end - s.addr
		}
	}
	return nil
}

// checkSymbols is the number of symbols between two timeout checks.
const checkSymbols = 4096
