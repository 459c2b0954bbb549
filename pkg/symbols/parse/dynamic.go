package parse

import (
	"debug/elf"
	"encoding/binary"
)

// relative returns the relocations of DT_RELA in the dynamic section. They describe which values the dynamic linker writes to
// which addresses.
func (f *elfFile) relative() (*window, error) {
	w := &window{f: f}
	if f.class != elf.ELFCLASS64 {
		return w, nil
	}
	dynamic, err := f.dynamic()
	if err != nil {
		return nil, err
	}
	if off, size, ok := f.fileRange(dynamic[elf.DT_RELA]); ok && dynamic[elf.DT_RELA] != 0 {
		w.offset, w.size = off, min(size, dynamic[elf.DT_RELASZ])
	}
	return w, nil
}

// dynamic returns the entries of the dynamic section.
func (f *elfFile) dynamic() (map[elf.DynTag]uint64, error) {
	tags := map[elf.DynTag]uint64{}
	const maxEntries = 512
	for _, s := range f.segments {
		if s.kind != elf.PT_DYNAMIC {
			continue
		}
		width := f.width()
		b := make([]byte, min(s.fileSize/(2*width), maxEntries)*2*width)
		if err := f.at(b, s.offset); err != nil {
			return nil, err
		}
		for ; len(b) > 0; b = b[2*width:] {
			tag := elf.DynTag(number(b, width))
			if tag == elf.DT_NULL {
				break
			}
			if _, ok := tags[tag]; !ok {
				tags[tag] = number(b[width:], width)
			}
		}
		break
	}
	return tags, nil
}

// eachRelocation calls visit for each relocation until visit returns false. at is the address that the dynamic linker changes.
// The lower half of info is the kind, and the upper half is the symbol's index.
func (w *window) eachRelocation(visit func(at, info, addend uint64) bool) error {
	const width = 24
	for off := uint64(0); ; off += width {
		b, err := w.bytes(off, width)
		if err != nil || b == nil {
			return err
		}
		if o := binary.LittleEndian; !visit(o.Uint64(b), o.Uint64(b[8:]), o.Uint64(b[16:])) {
			return nil
		}
	}
}

// eachAddress is like eachRelocation, but visits only relative relocations, whose value is an address in this file.
func (w *window) eachAddress(visit func(at, value uint64) bool) error {
	var kind uint32
	switch w.f.machine {
	case elf.EM_X86_64:
		kind = uint32(elf.R_X86_64_RELATIVE)
	case elf.EM_AARCH64:
		kind = uint32(elf.R_AARCH64_RELATIVE)
	default:
		return nil
	}
	return w.eachRelocation(func(at, info, addend uint64) bool { return uint32(info) != kind || visit(at, addend) })
}

// dynamicSymbols returns the symbol table of the dynamic section and its strings, for a file without section headers. Both are
// nil if there is no symbol table.
func (f *elfFile) dynamicSymbols() (table, strings *section, err error) {
	tags, err := f.dynamic()
	if err != nil {
		return nil, nil, err
	}
	width := f.symbolSize()
	off, size, ok := f.fileRange(tags[elf.DT_SYMTAB])
	text, textSize, okText := f.fileRange(tags[elf.DT_STRTAB])
	if !ok || !okText || tags[elf.DT_SYMTAB] == 0 || tags[elf.DT_STRTAB] == 0 {
		return nil, nil, nil
	}
	count, err := f.hashed(tags)
	if err != nil || count == 0 || count > size/width {
		return nil, nil, err
	}
	return &section{kind: elf.SHT_DYNSYM, offset: off, size: count * width, entry: width},
		&section{kind: elf.SHT_STRTAB, offset: text, size: min(textSize, tags[elf.DT_STRSZ])}, nil
}

// hashed returns the number of symbols, which only the hash tables show. The second word of DT_HASH is this number. The last
// chain of DT_GNU_HASH ends with the last symbol (https://flapenguin.me/elf-dt-gnu-hash).
func (f *elfFile) hashed(tags map[elf.DynTag]uint64) (uint64, error) {
	if off, _, ok := f.fileRange(tags[elf.DT_HASH]); ok && tags[elf.DT_HASH] != 0 {
		var b [8]byte
		err := f.at(b[:], off)
		return number(b[4:], 4), err
	}
	off, size, ok := f.fileRange(tags[elf.DT_GNU_HASH])
	if !ok || tags[elf.DT_GNU_HASH] == 0 {
		return 0, nil
	}
	w := window{f: f, offset: off, size: size}
	head, err := w.bytes(0, 16)
	if err != nil || head == nil {
		return 0, err
	}
	buckets, first, bloom := number(head, 4), number(head[4:], 4), number(head[8:], 4)
	at := 16 + bloom*f.width()
	last := uint64(0)
	for i := range buckets {
		b, err := w.bytes(at+4*i, 4)
		if err != nil || b == nil {
			return 0, err
		}
		last = max(last, number(b, 4))
	}
	if last < first {
		return first, nil
	}
	for chains := at + 4*buckets; ; last++ {
		b, err := w.bytes(chains+4*(last-first), 4)
		if err != nil || b == nil {
			return 0, err
		}
		if number(b, 4)&1 != 0 {
			return last + 1, nil
		}
	}
}
