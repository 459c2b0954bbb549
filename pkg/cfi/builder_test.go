package cfi

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// example is an ELF file with unwind rules, made by hand. All of it is mapped at its offset in the file plus
// exampleAddr.
type example struct {
	machine      elf.Machine
	augmentation string
	encodings    []byte // what the augmentation has
	common       []byte // the CIE's instructions
	functions    []exampleFunction
	noIndex      bool // .eh_frame_hdr without a table
	noSections   bool
	noSegments   bool
	padding      int // bytes behind the rules
}

type exampleFunction struct {
	begin, size uint64
	program     []byte
}

const (
	exampleAddr   = 0x400000
	exampleFrames = 0x1000 // offset
	exampleIndex  = 0x800  // offset
)

// amd64Example has the rules of gcc: one register of 8 bytes up, the return address below the frame's address.
func amd64Example(functions ...exampleFunction) example {
	return example{
		machine: elf.EM_X86_64, augmentation: "zR", encodings: []byte{pePCRel | peSData4},
		common: []byte{cfaDefCFA, 7, 8, cfaOffset | 16, 1}, functions: functions,
	}
}

func arm64Example(functions ...exampleFunction) example {
	return example{
		machine: elf.EM_AARCH64, augmentation: "zR", encodings: []byte{pePCRel | peSData4},
		common: []byte{cfaDefCFA, 31, 0}, functions: functions,
	}
}

func u32(v uint64) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(v)) }

// record puts a length in front and pads to eight bytes.
func record(b []byte) []byte {
	for len(b)%8 != 4 {
		b = append(b, cfaNop)
	}
	return append(u32(uint64(len(b))), b...)
}

// frames returns .eh_frame, and where the FDEs begin in it.
func (e example) frames() (b []byte, at []int) {
	ra, data := byte(16), byte(0x78) // -8
	if e.machine == elf.EM_AARCH64 {
		ra = 30
	}
	cie := append(append(u32(0), 1), e.augmentation...)
	cie = append(cie, 0, 1, data, ra)
	if e.augmentation != "" {
		cie = append(append(cie, byte(len(e.encodings))), e.encodings...)
	}
	b = record(append(cie, e.common...))
	for _, f := range e.functions {
		place := len(b)
		at = append(at, place)
		body := u32(uint64(place + 4))
		if e.augmentation == "" {
			body = binary.LittleEndian.AppendUint64(body, f.begin)
			body = binary.LittleEndian.AppendUint64(body, f.size)
		} else {
			body = append(body, u32(f.begin-(exampleAddr+exampleFrames+uint64(place)+8))...)
			body = append(append(body, u32(f.size)...), 0)
		}
		b = append(b, record(append(body, f.program...))...)
	}
	return append(b, 0, 0, 0, 0), at
}

func (e example) bytes() []byte {
	frames, at := e.frames()
	index := []byte{1, pePCRel | peSData4, peUData4, peDataRel | peSData4}
	index = append(index, u32(exampleFrames-exampleIndex-4)...)
	if e.noIndex {
		index[2], index[3] = peOmit, peOmit
	} else {
		index = append(index, u32(uint64(len(e.functions)))...)
		for i, f := range e.functions {
			index = append(index, u32(f.begin-exampleAddr-exampleIndex)...)
			index = append(index, u32(exampleFrames-exampleIndex+uint64(at[i]))...)
		}
	}
	file := make([]byte, exampleFrames)
	copy(file, elf.ELFMAG)
	file[elf.EI_CLASS], file[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	le := binary.LittleEndian
	le.PutUint16(file[18:], uint16(e.machine))
	copy(file[exampleIndex:], index)
	file = append(append(file, frames...), make([]byte, e.padding)...)
	for len(file)%8 != 0 {
		file = append(file, 0)
	}
	if !e.noSegments {
		le.PutUint64(file[32:], 64)
		le.PutUint16(file[54:], segmentSize)
		le.PutUint16(file[56:], 2)
		segment := func(at int, kind elf.ProgType, off, size uint64) {
			le.PutUint32(file[at:], uint32(kind))
			le.PutUint64(file[at+8:], off)
			le.PutUint64(file[at+16:], off+exampleAddr)
			le.PutUint64(file[at+32:], size)
		}
		segment(64, elf.PT_LOAD, 0, uint64(len(file)))
		segment(64+segmentSize, elf.PT_GNU_EH_FRAME, exampleIndex, uint64(len(index)))
	}
	if !e.noSections {
		names := "\x00.eh_frame\x00.shstrtab\x00"
		namesAt := len(file)
		file = append(file, names...)
		for len(file)%8 != 0 {
			file = append(file, 0)
		}
		le.PutUint64(file[40:], uint64(len(file)))
		le.PutUint16(file[58:], sectionSize)
		le.PutUint16(file[60:], 3)
		le.PutUint16(file[62:], 2)
		section := func(name uint32, kind elf.SectionType, addr, off, size uint64) {
			s := make([]byte, sectionSize)
			le.PutUint32(s, name)
			le.PutUint32(s[4:], uint32(kind))
			le.PutUint64(s[16:], addr)
			le.PutUint64(s[24:], off)
			le.PutUint64(s[32:], size)
			file = append(file, s...)
		}
		section(0, elf.SHT_NULL, 0, 0, 0)
		section(1, elf.SHT_PROGBITS, exampleAddr+exampleFrames, exampleFrames, uint64(len(frames)))
		section(11, elf.SHT_STRTAB, 0, uint64(namesAt), uint64(len(names)))
	}
	return file
}

func (e example) read(t testing.TB) *Table {
	t.Helper()
	table, err := readBytes(e.bytes(), Limits{})
	require.NoError(t, err)
	return table
}

func readBytes(b []byte, l Limits) (*Table, error) {
	return Read(bytes.NewReader(b), int64(len(b)), l)
}

// program joins instructions.
func program(parts ...[]byte) []byte { return slices.Concat(parts...) }

// stackOf returns a copy of a stack with these words.
func stackOf(base uint64, words ...uint64) Stack {
	s := Stack{Base: base}
	for _, w := range words {
		s.Bytes = binary.LittleEndian.AppendUint64(s.Bytes, w)
	}
	return s
}
