package symbols

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// testELF is an ELF file in the making: small ones, as no compiler makes them. One segment holds all of it, at
// testBase.
type testELF struct {
	machine  elf.Machine
	sections []testSection
	dynamic  []uint64 // tags and values
}

type testSection struct {
	name   string
	kind   elf.SectionType
	flags  elf.SectionFlag
	addr   uint64 // 0: where it lies in the file
	data   []byte
	link   string
	entry  uint64
	size   uint64 // 0: that of data
	offset uint64 // 0: where it is put
}

const testBase = 0x10000

func (e *testELF) add(s testSection) *testELF {
	e.sections = append(e.sections, s)
	return e
}

// code adds a section of code at an address.
func (e *testELF) code(name string, addr uint64, data []byte) *testELF {
	return e.add(testSection{name: name, kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, addr: addr, data: data})
}

type testSymbol struct {
	name       string
	kind       elf.SymType
	bind       elf.SymBind
	section    uint16 // 1 is the first that was added
	addr, size uint64
}

// symbols adds a table of symbols and its strings.
func (e *testELF) symbols(name string, kind elf.SectionType, all ...testSymbol) *testELF {
	text := []byte{0}
	var table bytes.Buffer
	for _, s := range append([]testSymbol{{}}, all...) {
		sym := elf.Sym64{Info: elf.ST_INFO(s.bind, s.kind), Shndx: s.section, Value: s.addr, Size: s.size}
		if s.name != "" {
			sym.Name = uint32(len(text))
			text = append(append(text, s.name...), 0)
		}
		_ = binary.Write(&table, binary.LittleEndian, &sym)
	}
	return e.add(testSection{name: name, kind: kind, flags: elf.SHF_ALLOC, data: table.Bytes(), link: name + ".strings", entry: 24}).
		add(testSection{name: name + ".strings", kind: elf.SHT_STRTAB, data: text})
}

// bytes lays the file out: headers, contents, section headers.
func (e *testELF) bytes() []byte {
	names := []byte{0}
	all := append([]testSection{{}}, e.sections...)
	all = append(all, testSection{name: ".shstrtab", kind: elf.SHT_STRTAB})
	headers := make([]elf.Section64, len(all))
	for i := range all {
		headers[i].Name = uint32(len(names))
		names = append(append(names, all[i].name...), 0)
	}
	all[len(all)-1].data = names
	headers[0].Name = 0
	out := make([]byte, 64+2*56)
	for i := range all {
		s := &all[i]
		for len(out)%8 != 0 {
			out = append(out, 0)
		}
		h := &headers[i]
		h.Type, h.Flags, h.Addr, h.Off, h.Size, h.Entsize, h.Addralign = uint32(s.kind), uint64(s.flags), s.addr, uint64(len(out)), uint64(len(s.data)), s.entry, 8
		if s.size != 0 {
			h.Size = s.size
		}
		if s.offset != 0 {
			h.Off = s.offset
		}
		if s.flags&elf.SHF_ALLOC != 0 && s.addr == 0 {
			h.Addr = testBase + h.Off
		}
		for j := range all {
			if s.link != "" && all[j].name == s.link {
				h.Link = uint32(j)
			}
		}
		out = append(out, s.data...)
	}
	dynamicAt := len(out)
	for _, word := range e.dynamic {
		out = binary.LittleEndian.AppendUint64(out, word)
	}
	dynamicSize := len(out) - dynamicAt
	sectionsAt := len(out)
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, headers)
	out = append(out, b.Bytes()...)
	b.Reset()
	machine := e.machine
	if machine == 0 {
		machine = elf.EM_X86_64
	}
	_ = binary.Write(&b, binary.LittleEndian, &elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Phoff: 64,
		Shoff: uint64(sectionsAt), Ehsize: 64, Phentsize: 56, Phnum: 2, Shentsize: 64, Shnum: uint16(len(all)), Shstrndx: uint16(len(all) - 1),
	})
	_ = binary.Write(&b, binary.LittleEndian, []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: 7, Vaddr: testBase, Filesz: uint64(len(out)), Memsz: 1 << 20},
		{Type: uint32(elf.PT_DYNAMIC), Off: uint64(dynamicAt), Vaddr: testBase + uint64(dynamicAt), Filesz: uint64(dynamicSize)},
	})
	copy(out, b.Bytes())
	return out
}
