// Package elftest makes ELF files for tests.
package elftest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// TestELF builds an ELF file that is smaller than a compiler's output. Its only segment contains the whole file and begins at
// TestBase, or at 0 if AtZero is set.
type TestELF struct {
	Machine  elf.Machine
	Sections []TestSection
	Dynamic  []uint64 // tags and values
	AtZero   bool
}

// TestSection is a section of a TestELF.
type TestSection struct {
	Name   string
	Kind   elf.SectionType
	Flags  elf.SectionFlag
	Addr   uint64 // 0: its place in the file
	Data   []byte
	Link   string
	Entry  uint64
	Size   uint64 // 0: the size of its data
	Offset uint64 // 0: chosen by Bytes
}

// TestBase is the address of a TestELF's first segment.
const TestBase = 0x10000

// Add adds a section.
func (e *TestELF) Add(s TestSection) *TestELF {
	e.Sections = append(e.Sections, s)
	return e
}

// Code adds a section with code at an address.
func (e *TestELF) Code(name string, addr uint64, data []byte) *TestELF {
	return e.Add(TestSection{Name: name, Kind: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, Addr: addr, Data: data})
}

// TestSymbol is a symbol of a TestELF.
type TestSymbol struct {
	Name       string
	Kind       elf.SymType
	Bind       elf.SymBind
	Section    uint16 // 1 is the first added section
	Addr, Size uint64
}

// Symbols adds a symbol table and its strings.
func (e *TestELF) Symbols(name string, kind elf.SectionType, all ...TestSymbol) *TestELF {
	text := []byte{0}
	var table bytes.Buffer
	for _, s := range append([]TestSymbol{{}}, all...) {
		sym := elf.Sym64{Info: elf.ST_INFO(s.Bind, s.Kind), Shndx: s.Section, Value: s.Addr, Size: s.Size}
		if s.Name != "" {
			sym.Name = uint32(len(text))
			text = append(append(text, s.Name...), 0)
		}
		_ = binary.Write(&table, binary.LittleEndian, &sym)
	}
	return e.Add(TestSection{Name: name, Kind: kind, Flags: elf.SHF_ALLOC, Data: table.Bytes(), Link: name + ".strings", Entry: 24}).
		Add(TestSection{Name: name + ".strings", Kind: elf.SHT_STRTAB, Data: text})
}

// Bytes returns the file: headers, contents and section headers.
func (e *TestELF) Bytes() []byte {
	names := []byte{0}
	all := append([]TestSection{{}}, e.Sections...)
	all = append(all, TestSection{Name: ".shstrtab", Kind: elf.SHT_STRTAB})
	headers := make([]elf.Section64, len(all))
	for i := range all {
		headers[i].Name = uint32(len(names))
		names = append(append(names, all[i].Name...), 0)
	}
	all[len(all)-1].Data = names
	headers[0].Name = 0
	base := uint64(TestBase)
	if e.AtZero {
		base = 0
	}
	out := make([]byte, 64+2*56)
	for i := range all {
		s := &all[i]
		for len(out)%8 != 0 {
			out = append(out, 0)
		}
		h := &headers[i]
		h.Type, h.Flags, h.Addr, h.Off, h.Size, h.Entsize, h.Addralign = uint32(s.Kind), uint64(s.Flags), s.Addr, uint64(len(out)), uint64(len(s.Data)), s.Entry, 8
		if s.Size != 0 {
			h.Size = s.Size
		}
		if s.Offset != 0 {
			h.Off = s.Offset
		}
		if s.Flags&elf.SHF_ALLOC != 0 && s.Addr == 0 {
			h.Addr = base + h.Off
		}
		for j := range all {
			if s.Link != "" && all[j].Name == s.Link {
				h.Link = uint32(j)
			}
		}
		out = append(out, s.Data...)
	}
	dynamicAt := len(out)
	for _, word := range e.Dynamic {
		out = binary.LittleEndian.AppendUint64(out, word)
	}
	dynamicSize := len(out) - dynamicAt
	sectionsAt := len(out)
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, headers)
	out = append(out, b.Bytes()...)
	b.Reset()
	machine := e.Machine
	if machine == 0 {
		machine = elf.EM_X86_64
	}
	_ = binary.Write(&b, binary.LittleEndian, &elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Phoff: 64,
		Shoff: uint64(sectionsAt), Ehsize: 64, Phentsize: 56, Phnum: 2, Shentsize: 64, Shnum: uint16(len(all)), Shstrndx: uint16(len(all) - 1),
	})
	_ = binary.Write(&b, binary.LittleEndian, []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: 7, Vaddr: base, Filesz: uint64(len(out)), Memsz: 1 << 20},
		{Type: uint32(elf.PT_DYNAMIC), Off: uint64(dynamicAt), Vaddr: base + uint64(dynamicAt), Filesz: uint64(dynamicSize)},
	})
	copy(out, b.Bytes())
	return out
}

// Named returns the section with the given name.
func (e *TestELF) Named(name string) *TestSection {
	for i := range e.Sections {
		if e.Sections[i].Name == name {
			return &e.Sections[i]
		}
	}
	panic("no section " + name)
}

// RawSymbols adds a symbol table and its strings. at returns each of the n symbols.
func (e *TestELF) RawSymbols(n int, strings []byte, at func(i int) elf.Sym64) *TestELF {
	table := make([]byte, 0, 24*n)
	le := binary.LittleEndian
	for i := range n {
		s := at(i)
		table = append(le.AppendUint32(table, s.Name), s.Info, 0)
		table = le.AppendUint64(le.AppendUint64(le.AppendUint16(table, s.Shndx), s.Value), s.Size)
	}
	return e.Add(TestSection{Name: ".symtab", Kind: elf.SHT_SYMTAB, Data: table, Link: ".strings", Entry: 24}).
		Add(TestSection{Name: ".strings", Kind: elf.SHT_STRTAB, Data: strings})
}
