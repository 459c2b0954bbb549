package find

import (
	"bufio"
	"debug/elf"
	"encoding/binary"
	"io"
	"math"
)

// mostRelocations is how many of a file's relocations are read.
const mostRelocations = 1 << 20

// slots knows which function of a file the dynamic linker writes where: a function that goes on in one that is exported jumps to where it
// says.
type slots struct {
	r    io.ReaderAt
	f    *elf.File
	left int // relocations that may be read
}

// target returns the offset of the function whose address the dynamic linker writes to a place in memory; 0 if it is in another file. It
// returns false where nothing is said of the place.
func (s *slots) target(place uint64) (uint64, bool) {
	le := binary.LittleEndian
	for _, section := range s.f.Sections {
		if section.Type != elf.SHT_RELA || uint64(section.Link) >= uint64(len(s.f.Sections)) || section.Offset > math.MaxInt64 || section.Size > math.MaxInt64-section.Offset {
			continue
		}
		entries := bufio.NewReaderSize(io.NewSectionReader(s.r, int64(section.Offset), int64(section.Size)), readAtOnce)
		var b [24]byte
		for ; s.left > 0; s.left-- {
			if _, err := io.ReadFull(entries, b[:]); err != nil {
				break
			}
			if le.Uint64(b[:]) != place {
				continue
			}
			symbols := s.f.Sections[section.Link]
			at := uint64(le.Uint32(b[12:])) * symbolSize
			if symbols.Type != elf.SHT_DYNSYM || symbols.Size < symbolSize || at > symbols.Size-symbolSize || symbols.Offset > math.MaxInt64-at {
				return 0, false
			}
			var entry [symbolSize]byte
			if _, err := s.r.ReadAt(entry[:], int64(symbols.Offset+at)); err != nil {
				return 0, false
			}
			if elf.SectionIndex(le.Uint16(entry[6:])) == elf.SHN_UNDEF {
				return 0, true
			}
			return offsetOf(s.f, le.Uint64(entry[8:]))
		}
	}
	return 0, false
}

// address returns where in memory what is at an offset of the file is, if that is code.
func (s *slots) address(offset uint64) (uint64, bool) {
	for _, p := range s.f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && offset >= p.Off && offset-p.Off < p.Filesz {
			return offset - p.Off + p.Vaddr, true
		}
	}
	return 0, false
}
