package symbols

import (
	"cmp"
	"debug/elf"
	"fmt"
	"slices"
)

// symbol is a function's entry in a symbol table.
type symbol struct {
	addr, size uint64
	name       uint32 // offset in the table of strings
	rank       uint8  // of several that start at the same address, the lowest counts
}

// The lower half of a rank.
const (
	rankGlobal = iota
	rankWeak
	rankLocal
	rankNoType = 4 // added to one of the above
)

// chunk is how many bytes of a table are read at once.
const chunk = 256 << 10

// readSymbols returns the symbols of functions in a section of that type, sorted by address.
//
// What counts: functions, and untyped symbols with a size, that are defined in a section with code. A
// function without a size, as those written in assembly are, covers all up to the next symbol of its
// section, if the table is one that has all symbols (sized).
func (f *elfFile) readSymbols(table *section, limits Limits) ([]symbol, error) {
	size := uint64(24)
	if f.class == elf.ELFCLASS32 {
		size = 16
	}
	if table.entry != size {
		return nil, fmt.Errorf("%w: symbols of %d bytes", ErrMalformed, table.entry)
	}
	var found []symbol
	var others []uint64 // where something starts that is no function
	unsized := false
	buf := make([]byte, min(chunk, table.size)/size*size)
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
				others = append(others, s.addr)
				if len(others) > limits.Symbols {
					return nil, fmt.Errorf("%w: more than %d symbols", ErrTooLarge, limits.Symbols)
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
				s.addr &^= 1 // the bit says which instruction set
			}
			unsized = unsized || s.size == 0
			found = append(found, s)
			if len(found) > limits.Symbols {
				return nil, fmt.Errorf("%w: more than %d symbols", ErrTooLarge, limits.Symbols)
			}
		}
	}
	slices.SortFunc(found, func(a, b symbol) int {
		return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(b.size, a.size), cmp.Compare(a.rank, b.rank), cmp.Compare(a.name, b.name))
	})
	if unsized && table.kind == elf.SHT_SYMTAB {
		f.sizeSymbols(found, others)
	}
	return found, nil
}

// symbol decodes an entry.
func (f *elfFile) symbol(b []byte) (s symbol, index elf.SectionIndex, info uint8) {
	o := f.order
	if f.class == elf.ELFCLASS64 {
		return symbol{name: o.Uint32(b), addr: o.Uint64(b[8:]), size: o.Uint64(b[16:])}, elf.SectionIndex(o.Uint16(b[6:])), b[4]
	}
	return symbol{name: o.Uint32(b), addr: uint64(o.Uint32(b[4:])), size: uint64(o.Uint32(b[8:]))}, elf.SectionIndex(o.Uint16(b[14:])), b[12]
}

// isCode reports whether an address is in a section, or without sections in a segment, with code.
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

// maxUnsized is how much a function without a size may cover. Functions in assembly are short.
const maxUnsized = 64 << 10

// sizeSymbols gives the functions that have no size all up to the next symbol or the end of their
// section.
func (f *elfFile) sizeSymbols(found []symbol, others []uint64) {
	slices.Sort(others)
	var code []*section
	for i := range f.sections {
		if s := &f.sections[i]; s.flags&elf.SHF_EXECINSTR != 0 {
			code = append(code, s)
		}
	}
	for i := range found {
		s := &found[i]
		if s.size != 0 {
			continue
		}
		end := s.addr // without sections nothing
		for _, c := range code {
			if s.addr-c.addr < c.size {
				end = c.end()
				break
			}
		}
		for j := i + 1; j < len(found); j++ {
			if found[j].addr > s.addr {
				end = min(end, found[j].addr)
				break
			}
		}
		if j, _ := slices.BinarySearch(others, s.addr+1); j < len(others) {
			end = min(end, others[j])
		}
		if end > s.addr && end-s.addr <= maxUnsized {
			s.size = end - s.addr
		}
	}
}
