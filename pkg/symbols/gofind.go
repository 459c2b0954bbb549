package symbols

import (
	"bytes"
	"debug/elf"
)

// place is where something is in a file, and which address that has.
type place struct{ offset, addr uint64 }

// findGo returns where the function table of a Go program begins and how many bytes it has at most.
//
// Linkers that Go's own one calls (with cgo) can put it among other read-only data, and who strips a
// program can remove the list of sections: then it is looked for.
func (f *elfFile) findGo() (at place, size uint64, ok bool, err error) {
	for _, name := range []string{".gopclntab", ".data.rel.ro.gopclntab"} {
		if s := f.sectionNamed(name); s != nil {
			return place{s.offset, s.addr}, s.size, true, nil
		}
	}
	if len(f.sections) > 0 && f.sectionNamed(".go.buildinfo") == nil && f.sectionNamed(".note.go.buildid") == nil {
		return place{}, 0, false, nil
	}
	// It is in data that is not code, but for old linkers.
	for _, code := range []bool{false, true} {
		for _, s := range f.loads() {
			if s.flags&elf.PF_X != 0 != code {
				continue
			}
			if off, found, err := f.scanGo(s); err != nil || found {
				return place{s.offset + off, s.addr + off}, s.fileSize - off, found, err
			}
		}
	}
	return place{}, 0, false, nil
}

// scanGo returns where in a segment there is what looks like the header of a function table.
func (f *elfFile) scanGo(s segment) (uint64, bool, error) {
	// Bytes 1 to 5 of the table in little-endian order; big-endian machines are not looked for.
	pattern := []byte{0xff, 0xff, 0xff, 0, 0}
	buf := make([]byte, chunk+goHeaderSize)
	for off := uint64(0); off < s.fileSize; off += chunk {
		b := buf[:min(uint64(len(buf)), s.fileSize-off)]
		if err := f.at(b, s.offset+off); err != nil {
			return 0, false, err
		}
		for i := 0; ; i++ {
			n := bytes.Index(b[i:], pattern)
			if n < 0 {
				break
			}
			if i += n; i == 0 || (s.addr+off+uint64(i-1))%4 != 0 {
				continue
			}
			if h, ok := parseGoHeader(b[i-1:]); ok && h.program < s.fileSize-off {
				return off + uint64(i-1), true, nil
			}
		}
	}
	return 0, false, nil
}

// goModule is what is needed of runtime.firstmoduledata, 0 where it is not known.
type goModule struct {
	text uint64 // where the code begins that functions are relative to
	data uint64 // where the trees of inlined calls are relative to (go:func.*)
}

// inlined returns where in the file the trees of inlined calls are, and how many bytes they have at most.
func (m goModule) inlined(f *elfFile) (offset, size uint64, ok bool) {
	if m.data == 0 {
		return 0, 0, false
	}
	return f.fileRange(m.data)
}

// fileRange returns where in the file an address is, and how many bytes follow in the same segment.
func (f *elfFile) fileRange(addr uint64) (offset, size uint64, ok bool) {
	for _, s := range f.loads() {
		if addr >= s.addr && addr-s.addr < s.fileSize {
			return s.offset + addr - s.addr, s.fileSize - (addr - s.addr), true
		}
	}
	return 0, 0, false
}

// moduleWords is how many words of the structure are read.
const moduleWords = 41

// findModule looks for runtime.firstmoduledata, which begins with the address of the function table,
// followed by that of the functions' names. In a program that can be loaded anywhere the linker may
// have left these addresses to relocations.
func (f *elfFile) findModule(table uint64, h goHeader) (goModule, error) {
	relocations, err := f.relative()
	if err != nil {
		return goModule{}, err
	}
	var candidates []uint64
	const maxCandidates = 32
	err = relocations.each(func(at, value uint64) bool {
		if value == table {
			candidates = append(candidates, at)
		}
		return len(candidates) < maxCandidates
	})
	if err != nil {
		return goModule{}, err
	}
	for _, at := range candidates {
		words := make([]uint64, moduleWords)
		err := relocations.each(func(r, value uint64) bool {
			if i := (r - at) / h.pointer; r >= at && i < moduleWords {
				words[i] = value
			}
			return true
		})
		if err != nil {
			return goModule{}, err
		}
		if m, ok := f.module(words, table, h); ok {
			return m, nil
		}
	}
	buf := make([]byte, chunk+moduleWords*8)
	want := make([]byte, h.pointer)
	if h.pointer == 8 {
		h.endian.PutUint64(want, table)
	} else {
		h.endian.PutUint32(want, uint32(table))
	}
	for _, s := range f.loads() {
		if s.flags&elf.PF_W == 0 {
			continue
		}
		for off := uint64(0); off < s.fileSize; off += chunk {
			b := buf[:min(uint64(len(buf)), s.fileSize-off)]
			if err := f.at(b, s.offset+off); err != nil {
				return goModule{}, err
			}
			for i := 0; ; i++ {
				n := bytes.Index(b[i:], want)
				if n < 0 {
					break
				}
				i += n
				if uint64(len(b)-i) < moduleWords*h.pointer {
					break
				}
				words := make([]uint64, moduleWords)
				for j := range words {
					if p := b[i+j*int(h.pointer):]; h.pointer == 8 {
						words[j] = h.endian.Uint64(p)
					} else {
						words[j] = uint64(h.endian.Uint32(p))
					}
				}
				if m, ok := f.module(words, table, h); ok {
					return m, nil
				}
			}
		}
	}
	return goModule{}, nil
}

// module reads the structure. See type moduledata in src/runtime/symtab.go of each release of Go.
func (f *elfFile) module(words []uint64, table uint64, h goHeader) (m goModule, ok bool) {
	const (
		funcNames = 1
		text      = 22
		endText   = 23
	)
	if words[0] != table || words[funcNames] != table+h.funcNames || words[text] >= words[endText] {
		return m, false
	}
	code := false
	for _, s := range f.loads() {
		code = code || s.flags&elf.PF_X != 0 && words[text] >= s.addr && words[text]-s.addr < s.fileSize
	}
	if !code {
		return m, false
	}
	m.text = words[text]
	switch h.version {
	case go118:
		m.data = words[38]
	case go120:
		m.data = words[40]
	}
	return m, true
}

// relocations are those that say where an address of the file itself stands.
type relocations struct {
	f     *elfFile
	parts []place // where they are in the file; addr is how many bytes there are
}

// relative returns the relocations of the dynamic section, none if there are none.
func (f *elfFile) relative() (*relocations, error) {
	r := &relocations{f: f}
	if f.class != elf.ELFCLASS64 {
		return r, nil
	}
	dynamic, err := f.dynamic()
	if err != nil {
		return nil, err
	}
	if off, size, ok := f.fileRange(dynamic[elf.DT_RELA]); ok && dynamic[elf.DT_RELA] != 0 {
		r.parts = append(r.parts, place{off, min(size, dynamic[elf.DT_RELASZ])})
	}
	return r, nil
}

// dynamic returns the entries of the dynamic section.
func (f *elfFile) dynamic() (map[elf.DynTag]uint64, error) {
	tags := map[elf.DynTag]uint64{}
	const maxEntries = 512
	for _, s := range f.segments {
		if s.kind != elf.PT_DYNAMIC {
			continue
		}
		width := uint64(16)
		if f.class == elf.ELFCLASS32 {
			width = 8
		}
		b := make([]byte, min(s.fileSize, maxEntries*width)/width*width)
		if err := f.at(b, s.offset); err != nil {
			return nil, err
		}
		for ; len(b) > 0; b = b[width:] {
			tag, value := f.order.Uint64(b), uint64(0)
			if width == 16 {
				value = f.order.Uint64(b[8:])
			} else {
				tag, value = uint64(f.order.Uint32(b)), uint64(f.order.Uint32(b[4:]))
			}
			if elf.DynTag(tag) == elf.DT_NULL {
				break
			}
			if _, ok := tags[elf.DynTag(tag)]; !ok {
				tags[elf.DynTag(tag)] = value
			}
		}
		break
	}
	return tags, nil
}

// each calls visit with the address and the value of each relocation, until it returns false.
func (r *relocations) each(visit func(at, value uint64) bool) error {
	const width = 24
	var kind uint32
	switch r.f.machine {
	case elf.EM_X86_64:
		kind = uint32(elf.R_X86_64_RELATIVE)
	case elf.EM_AARCH64:
		kind = uint32(elf.R_AARCH64_RELATIVE)
	default:
		return nil
	}
	buf := make([]byte, chunk/width*width)
	for _, p := range r.parts {
		size := p.addr / width * width
		for off := uint64(0); off < size; off += uint64(len(buf)) {
			b := buf[:min(uint64(len(buf)), size-off)]
			if err := r.f.at(b, p.offset+off); err != nil {
				return err
			}
			for ; len(b) > 0; b = b[width:] {
				if uint32(r.f.order.Uint64(b[8:])) == kind && !visit(r.f.order.Uint64(b), r.f.order.Uint64(b[16:])) {
					return nil
				}
			}
		}
	}
	return nil
}
