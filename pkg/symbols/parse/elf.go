// Package parse reads functions from workloads' files: ELF, debug information, Go's tables, perf maps, build IDs and allocators.
// The files are hostile. So only an unprivileged process with limited memory may use this package, and no daemon imports it.
package parse

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

const maxSections = 32 << 10

const maxNames = 4 << 20 // bytes, of the sections' names

// reader reads a file within bounds of bytes, memory and time.
type reader struct {
	ctx  context.Context
	r    io.ReaderAt
	size int64
	left *symtab.Budget // shared by all readers of one request
}

func newReader(ctx context.Context, r io.ReaderAt, size int64, limits symtab.Limits) *reader {
	left := limits.Budget()
	return &reader{ctx: ctx, r: r, size: size, left: &left}
}

// hold accounts for n bytes of memory before they are used. n comes from the file, so it can be wrong.
func (r *reader) hold(n int64) error {
	if n < 0 || n > r.left.Memory {
		return fmt.Errorf("%w: too much memory needed", symtab.ErrTooLarge)
	}
	r.left.Memory -= n
	return nil
}

// ReadAt implements io.ReaderAt with at, for callers that read a part of the file sequentially.
func (r *reader) ReadAt(b []byte, off int64) (int, error) {
	if err := r.at(b, uint64(off)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// stream reads a section sequentially.
func (r *reader) stream(s *section) io.Reader {
	return bufio.NewReaderSize(io.NewSectionReader(r, int64(s.offset), int64(s.size)), 64<<10)
}

// expired returns an error if the context has ended.
func (r *reader) expired() error {
	if r.ctx.Err() != nil {
		return symtab.ErrTooSlow
	}
	return nil
}

// at reads len(b) bytes at off into b.
func (r *reader) at(b []byte, off uint64) error {
	if err := r.expired(); err != nil {
		return err
	}
	if off > uint64(r.size) || uint64(len(b)) > uint64(r.size)-off {
		return fmt.Errorf("%w: the data at offset %#x extends beyond the end of the file", symtab.ErrMalformed, off)
	}
	if r.left.Read -= int64(len(b)); r.left.Read < 0 {
		return fmt.Errorf("%w: too much to read", symtab.ErrTooLarge)
	}
	if _, err := r.r.ReadAt(b, int64(off)); err != nil {
		return fmt.Errorf("reading at %#x: %w", off, err) // io.EOF if the file was truncated
	}
	return nil
}

// elfFile holds the headers of an ELF file, and a reader for the rest. The file is little-endian, like amd64 and arm64.
type elfFile struct {
	*reader
	class    elf.Class
	machine  elf.Machine
	kind     elf.Type
	segments []segment
	sections []section
}

type segment struct {
	kind                                elf.ProgType
	flags                               elf.ProgFlag
	offset, addr, fileSize, size, align uint64
}

type section struct {
	name               string
	kind               elf.SectionType
	flags              elf.SectionFlag
	addr, offset, size uint64
	link, info         uint32
	align, entry       uint64
}

// end returns the first address after the section.
func (s *section) end() uint64 { return s.addr + s.size }

func openELF(r *reader) (*elfFile, error) {
	var ident [elf.EI_NIDENT]byte
	if r.size < int64(len(ident)) {
		return nil, symtab.ErrNotELF
	}
	if err := r.at(ident[:], 0); err != nil {
		return nil, err
	}
	if string(ident[:4]) != elf.ELFMAG || elf.Data(ident[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, symtab.ErrNotELF
	}
	f := &elfFile{reader: r, class: elf.Class(ident[elf.EI_CLASS])}
	var h elf.Header64
	switch f.class {
	case elf.ELFCLASS64:
		if err := f.read(&h, 0); err != nil {
			return nil, err
		}
	case elf.ELFCLASS32:
		var s elf.Header32
		if err := f.read(&s, 0); err != nil {
			return nil, err
		}
		h = elf.Header64{
			Type: s.Type, Machine: s.Machine, Phoff: uint64(s.Phoff), Shoff: uint64(s.Shoff),
			Phentsize: s.Phentsize, Phnum: s.Phnum, Shentsize: s.Shentsize, Shnum: s.Shnum, Shstrndx: s.Shstrndx,
		}
	default:
		return nil, symtab.ErrNotELF
	}
	f.kind, f.machine = elf.Type(h.Type), elf.Machine(h.Machine)
	if err := f.readSegments(h.Phoff, h.Phnum, h.Phentsize); err != nil {
		return nil, err
	}
	// A program whose sections are missing or damaged can still run. Its symbols are then found through the segments.
	if err := f.readSections(h.Shoff, h.Shnum, h.Shentsize, h.Shstrndx); err != nil && !errors.Is(err, symtab.ErrMalformed) {
		return nil, err
	}
	return f, nil
}

// read decodes v from the bytes at off.
func (f *elfFile) read(v any, off uint64) error {
	b := make([]byte, binary.Size(v))
	if err := f.at(b, off); err != nil {
		return err
	}
	_, err := binary.Decode(b, binary.LittleEndian, v)
	return err
}

// width returns the number of bytes of an address in the file.
func (f *elfFile) width() uint64 {
	if f.class == elf.ELFCLASS64 {
		return 8
	}
	return 4
}

// number decodes a number of width bytes, which is 4 or 8.
func number(b []byte, width uint64) uint64 {
	if width == 8 {
		return binary.LittleEndian.Uint64(b)
	}
	return uint64(binary.LittleEndian.Uint32(b))
}

func (f *elfFile) readSegments(off uint64, count, entry uint16) error {
	if count == 0 {
		return nil
	}
	if uint64(entry) != 8+6*f.width() || count > symtab.MaxSegments {
		return fmt.Errorf("%w: %d program headers of %d bytes", symtab.ErrMalformed, count, entry)
	}
	b := make([]byte, int(count)*int(entry))
	if err := f.at(b, off); err != nil {
		return err
	}
	f.segments = make([]segment, count)
	for i := range f.segments {
		p, o := b[i*int(entry):], binary.LittleEndian
		if f.class == elf.ELFCLASS64 {
			f.segments[i] = segment{
				elf.ProgType(o.Uint32(p)), elf.ProgFlag(o.Uint32(p[4:])),
				o.Uint64(p[8:]), o.Uint64(p[16:]), o.Uint64(p[32:]), o.Uint64(p[40:]), o.Uint64(p[48:]),
			}
		} else {
			f.segments[i] = segment{
				elf.ProgType(o.Uint32(p)), elf.ProgFlag(o.Uint32(p[24:])),
				uint64(o.Uint32(p[4:])), uint64(o.Uint32(p[8:])), uint64(o.Uint32(p[16:])), uint64(o.Uint32(p[20:])), uint64(o.Uint32(p[28:])),
			}
		}
	}
	return nil
}

func (f *elfFile) readSections(off uint64, count16, entry, names uint16) error {
	if off == 0 {
		return nil
	}
	if uint64(entry) != 16+6*f.width() {
		return fmt.Errorf("%w: section headers of %d bytes", symtab.ErrMalformed, entry)
	}
	first := make([]byte, entry)
	if err := f.at(first, off); err != nil {
		return err
	}
	zero := f.section(first)
	count, nameSection := uint64(count16), uint32(names)
	if count == 0 { // too many for the header; the first section header contains the number
		count = zero.size
	}
	if nameSection == uint32(elf.SHN_XINDEX) {
		nameSection = zero.link
	}
	if count > maxSections {
		return fmt.Errorf("%w: %d sections", symtab.ErrMalformed, count)
	}
	b := make([]byte, int(count)*int(entry))
	if err := f.at(b, off); err != nil {
		return err
	}
	sections := make([]section, count)
	nameAt := make([]uint32, count)
	for i := range sections {
		header := b[i*int(entry):]
		sections[i], nameAt[i] = f.section(header), binary.LittleEndian.Uint32(header)
	}
	if uint64(nameSection) < count {
		s := &sections[nameSection]
		text := make([]byte, min(s.size, maxNames))
		if s.kind != elf.SHT_NOBITS && f.at(text, s.offset) == nil {
			for i := range sections {
				sections[i].name = cString(text, nameAt[i], 256)
			}
		}
	}
	f.sections = sections
	return nil
}

func (f *elfFile) section(b []byte) section {
	w, o := f.width(), binary.LittleEndian
	word := func(at uint64) uint64 { return number(b[at:], w) }
	return section{
		kind: elf.SectionType(o.Uint32(b[4:])), flags: elf.SectionFlag(word(8)), addr: word(8 + w), offset: word(8 + 2*w), size: word(8 + 3*w),
		link: o.Uint32(b[8+4*w:]), info: o.Uint32(b[12+4*w:]), align: word(16 + 4*w), entry: word(16 + 5*w),
	}
}

// cString returns the zero-terminated text at off, or "" if it is longer than limit.
func cString(b []byte, off uint32, limit int) string {
	if uint64(off) >= uint64(len(b)) {
		return ""
	}
	b = b[off:]
	n := bytes.IndexByte(b[:min(len(b), limit+1)], 0)
	if n < 0 {
		return ""
	}
	return string(b[:n])
}

// sectionOf returns the first section of a type, or nil.
func (f *elfFile) sectionOf(kind elf.SectionType) *section {
	for i := range f.sections {
		if f.sections[i].kind == kind {
			return &f.sections[i]
		}
	}
	return nil
}

// sectionNamed returns the first section that has the given name and content, or nil.
func (f *elfFile) sectionNamed(name string) *section {
	for i := range f.sections {
		if s := &f.sections[i]; s.name == name && s.kind != elf.SHT_NOBITS {
			return s
		}
	}
	return nil
}

// loads returns the segments that are loaded into memory.
func (f *elfFile) loads() []segment {
	var loads []segment
	for _, s := range f.segments {
		if s.kind == elf.PT_LOAD && s.fileSize > 0 {
			loads = append(loads, s)
		}
	}
	return loads
}
