package cfi

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The errors of reading a file.
var (
	// ErrNotELF says that the file is not a 64-bit ELF file of an architecture that is known.
	ErrNotELF = errors.New("not an ELF file of this architecture")
	// ErrNone says that the file has no unwind rules.
	ErrNone = errors.New("no unwind rules")
	// ErrMalformed says that the file contradicts itself.
	ErrMalformed = errors.New("the file contradicts itself")
	// ErrTooLarge says that the rules do not fit in the Limits.
	ErrTooLarge = errors.New("larger than the limits")
)

// Bounds of what is read of the headers. Real files have a dozen segments and a few dozen sections.
const (
	maxSegments = 256
	maxSections = 8192
	maxNames    = 1 << 20 // bytes, of the sections' names
)

// image is an ELF file: its headers, and a reader for the rest.
type image struct {
	r        io.ReaderAt
	size     uint64
	arch     *arch
	segments []area // that are mapped
	index    area   // .eh_frame_hdr; size 0: there is none
	sections []section
	names    area   // of the sections
	text     []byte // what is there, once it was read
}

// area is a part of a file that has an address.
type area struct{ offset, addr, size uint64 }

// holds tells whether an address is in the area.
func (a area) holds(addr uint64) bool { return addr-a.addr < a.size }

type section struct {
	area
	name uint32
	kind elf.SectionType
}

// read returns bytes of the file. The caller has bounded how many.
func (f *image) read(off, n uint64) ([]byte, error) {
	if off > f.size || n > f.size-off {
		return nil, fmt.Errorf("%w: what is at %#x goes past its end", ErrMalformed, off)
	}
	b := make([]byte, n)
	if _, err := f.r.ReadAt(b, int64(off)); err != nil {
		return nil, fmt.Errorf("reading at %#x: %w", off, err) // io.EOF where it was truncated
	}
	return b, nil
}

const headerSize, segmentSize, sectionSize = 64, 56, 64

func openELF(r io.ReaderAt, size int64) (*image, error) {
	f := &image{r: r, size: uint64(max(size, 0))}
	if f.size < headerSize {
		return nil, ErrNotELF
	}
	h, err := f.read(0, headerSize)
	if err != nil {
		return nil, err
	}
	if string(h[:4]) != elf.ELFMAG || elf.Class(h[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(h[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, ErrNotELF
	}
	le := binary.LittleEndian
	if f.arch = archOf(elf.Machine(le.Uint16(h[18:]))); f.arch == nil {
		return nil, ErrNotELF
	}
	if err := f.readSegments(le.Uint64(h[32:]), le.Uint16(h[56:]), le.Uint16(h[54:])); err != nil {
		return nil, err
	}
	// A file without its sections, or with damaged ones, runs as well.
	err = f.readSections(le.Uint64(h[40:]), le.Uint16(h[60:]), le.Uint16(h[58:]), le.Uint16(h[62:]))
	if err != nil && !errors.Is(err, ErrMalformed) {
		return nil, err
	}
	return f, nil
}

func (f *image) readSegments(off uint64, count, entry uint16) error {
	if count == 0 {
		return nil
	}
	if entry != segmentSize || count > maxSegments {
		return fmt.Errorf("%w: %d program headers of %d bytes", ErrMalformed, count, entry)
	}
	b, err := f.read(off, uint64(count)*segmentSize)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	for ; len(b) > 0; b = b[segmentSize:] {
		a := area{offset: le.Uint64(b[8:]), addr: le.Uint64(b[16:]), size: le.Uint64(b[32:])}
		if a.offset > f.size || a.size == 0 {
			continue
		}
		a.size = min(a.size, f.size-a.offset)
		switch elf.ProgType(le.Uint32(b)) {
		case elf.PT_LOAD:
			f.segments = append(f.segments, a)
		case elf.PT_GNU_EH_FRAME:
			f.index = a
		}
	}
	return nil
}

func (f *image) readSections(off uint64, count, entry, names uint16) error {
	if off == 0 || count == 0 {
		return nil
	}
	if entry != sectionSize || count > maxSections {
		return fmt.Errorf("%w: %d section headers of %d bytes", ErrMalformed, count, entry)
	}
	b, err := f.read(off, uint64(count)*sectionSize)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	for i := 0; len(b) > 0; i, b = i+1, b[sectionSize:] {
		s := section{
			area: area{offset: le.Uint64(b[24:]), addr: le.Uint64(b[16:]), size: le.Uint64(b[32:])},
			name: le.Uint32(b), kind: elf.SectionType(le.Uint32(b[4:])),
		}
		if s.kind == elf.SHT_NULL || s.kind == elf.SHT_NOBITS || s.offset > f.size {
			continue
		}
		s.size = min(s.size, f.size-s.offset)
		f.sections = append(f.sections, s)
		if i == int(names) {
			f.names = s.area
		}
	}
	return nil
}

// sectionAt returns the section that begins at an address, and whether there is one.
func (f *image) sectionAt(addr uint64) (area, bool) {
	for i := range f.sections {
		if s := &f.sections[i]; s.addr == addr && s.size > 0 {
			return s.area, true
		}
	}
	return area{}, false
}

// sectionNamed returns the section of a name, and whether there is one.
func (f *image) sectionNamed(name string) (area, bool) {
	if f.text == nil {
		text, err := f.read(f.names.offset, min(f.names.size, maxNames))
		if err != nil {
			return area{}, false
		}
		f.text = text
	}
	want := append([]byte(name), 0)
	for i := range f.sections {
		s := &f.sections[i]
		if uint64(s.name) < uint64(len(f.text)) && bytes.HasPrefix(f.text[s.name:], want) && s.size > 0 {
			return s.area, true
		}
	}
	return area{}, false
}

// mapped returns what the file maps from an address to the end of that segment, and whether there is something.
func (f *image) mapped(addr uint64) (area, bool) {
	for _, s := range f.segments {
		if s.holds(addr) {
			skip := addr - s.addr
			return area{offset: s.offset + skip, addr: addr, size: s.size - skip}, true
		}
	}
	return area{}, false
}
