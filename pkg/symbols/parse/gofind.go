package parse

import (
	"bytes"
	"debug/elf"
	"encoding/binary"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// place is a file offset with its ELF virtual address.
type place struct{ offset, addr uint64 }

// findGo returns the place of a Go program's function table, and its maximum size.
//
// External linkers (with cgo) can put the table among other read-only data, and strip can remove the section headers. In both
// cases, findGo searches for the table.
func (f *elfFile) findGo() (at place, size uint64, ok bool, err error) {
	for _, name := range []string{".gopclntab", ".data.rel.ro.gopclntab"} {
		if s := f.sectionNamed(name); s != nil {
			return place{s.offset, s.addr}, s.size, true, nil
		}
	}
	if len(f.sections) > 0 && f.sectionNamed(".go.buildinfo") == nil {
		// llvm-strip mixes up the section names of older Go programs, but keeps their Go build ID. A file without a Go build ID
		// is not a Go program.
		var info buildid.Info
		if f.addIDs(&info); info.Go == "" {
			return place{}, 0, false, f.expired()
		}
	}
	// Segments without code come first, because only old linkers put the table into a segment with code.
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

// scanGo searches a segment for a function table's header and returns its offset in the segment.
func (f *elfFile) scanGo(s segment) (uint64, bool, error) {
	// The pattern is bytes 1 to 5 of a table.
	pattern := []byte{0xff, 0xff, 0xff, 0, 0}
	buf := make([]byte, symtab.Chunk+goHeaderSize)
	for off := uint64(0); off < s.fileSize; off += symtab.Chunk {
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
			if h, ok := parseGoHeader(b[i-1:]); ok && h.Program < s.fileSize-off {
				return off + uint64(i-1), true, nil
			}
		}
	}
	return 0, false, nil
}

// goModule is the needed part of runtime.firstmoduledata. Unknown values are 0.
type goModule struct {
	text uint64 // the address of the code, the base of functions' starts
	data uint64 // the address of go:func.*, the base of the inlining trees' offsets
}

// fileRange returns the file offset of an address, and the number of bytes after it in the same segment.
func (f *elfFile) fileRange(addr uint64) (offset, size uint64, ok bool) {
	for _, s := range f.loads() {
		if addr >= s.addr && addr-s.addr < s.fileSize {
			return s.offset + addr - s.addr, s.fileSize - (addr - s.addr), true
		}
	}
	return 0, 0, false
}

// moduleWords is the number of words to read from runtime.firstmoduledata.
const moduleWords = 41

// findModule searches for runtime.firstmoduledata, which begins with the addresses of the function table and of the functions'
// names. In a position-independent program, relocations may hold these addresses.
func (f *elfFile) findModule(table uint64, h symtab.GoHeader) (goModule, error) {
	relocations, err := f.relative()
	if err != nil {
		return goModule{}, err
	}
	var candidates []uint64
	const maxCandidates = 32
	err = relocations.eachAddress(func(at, value uint64) bool {
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
		err := relocations.eachAddress(func(r, value uint64) bool {
			if i := (r - at) / h.Pointer; r >= at && i < moduleWords {
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
	buf := make([]byte, symtab.Chunk+moduleWords*8)
	want := binary.LittleEndian.AppendUint64(nil, table)[:h.Pointer]
	for _, s := range f.loads() {
		if s.flags&elf.PF_W == 0 {
			continue
		}
		for off := uint64(0); off < s.fileSize; off += symtab.Chunk {
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
				if uint64(len(b)-i) < moduleWords*h.Pointer {
					break
				}
				words := make([]uint64, moduleWords)
				for j := range words {
					words[j] = number(b[i+j*int(h.Pointer):], h.Pointer)
				}
				if m, ok := f.module(words, table, h); ok {
					return m, nil
				}
			}
		}
	}
	return goModule{}, nil
}

// module decodes words as runtime.firstmoduledata if they match this function table. See type moduledata in src/runtime/symtab.go
// of each Go release.
func (f *elfFile) module(words []uint64, table uint64, h symtab.GoHeader) (m goModule, ok bool) {
	const (
		funcNames = 1
		text      = 22
		endText   = 23
	)
	if words[0] != table || words[funcNames] != table+h.FuncNames || words[text] >= words[endText] {
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
	switch h.Version {
	case symtab.Go118:
		m.data = words[38]
	case symtab.Go120:
		m.data = words[40]
	}
	return m, true
}
