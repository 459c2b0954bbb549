package parse

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// These bound the reading of stubs.
const (
	maxStubs   = 256 << 10
	maxStubsOf = 8 << 20 // bytes of a section with stubs
)

// stub is code that jumps to the address in a slot of the global offset table.
type stub struct {
	start, end uint64
	slot       uint64
}

// addStubs names the stubs through which a file calls functions in other files. It reads the slot from the stub's code, because
// linkers use different layouts. The relocations show which function is in the slot.
func addStubs(t *symtab.Table, f *elfFile) error {
	if f.class != elf.ELFCLASS64 || f.machine != elf.EM_X86_64 && f.machine != elf.EM_AARCH64 {
		return nil
	}
	var stubs []stub
	for _, name := range []string{".plt", ".plt.sec", ".plt.got", ".iplt"} {
		s := f.sectionNamed(name)
		if s == nil || s.flags&elf.SHF_EXECINSTR == 0 || s.size > maxStubsOf {
			continue
		}
		code := make([]byte, s.size)
		if err := f.at(code, s.offset); err != nil {
			return err
		}
		if f.machine == elf.EM_X86_64 {
			stubs = append(stubs, stubsX86(code, s.addr, s.entry)...)
		} else {
			stubs = append(stubs, stubsARM(code, s.addr)...)
		}
	}
	if len(stubs) == 0 || len(stubs) > maxStubs {
		return nil
	}
	slices.SortFunc(stubs, func(a, b stub) int { return cmp.Compare(a.start, b.start) })
	names, err := slotNames(t, f, stubs)
	if err != nil {
		return err
	}
	var spans []span
	var numbers []uint32
	var texts texts
	for _, s := range stubs {
		if n := len(spans); n > 0 && s.start < spans[n-1].end {
			continue
		}
		if name := names[s.slot]; name != "" {
			numbers = append(numbers, texts.add([]byte(name+"@plt")))
			spans = append(spans, span{s.start, s.end, len(spans)})
		}
	}
	return addSpans(t, f.reader, slices.Values(spans), len(spans), symtab.SourcePLT, &texts, numbers)
}

// stubsX86 reads entries of 8 or 16 bytes. Each jumps through a slot: jmp *slot(%rip), possibly with the prefix bnd. endbr64 or
// mov $n, %r11d can precede the jump.
func stubsX86(code []byte, addr, entry uint64) []stub {
	if entry != 8 && entry != 16 {
		entry = 16
	}
	const before = 2 // maximum number of instructions
	var stubs []stub
	for i := uint64(0); i+entry <= uint64(len(code)); i += entry {
		for at, n := i, 0; n <= before; n++ {
			in := decodeAMD64(code[at:i+entry], addr+at)
			if in.kind == slot {
				stubs = append(stubs, stub{addr + i, addr + i + entry, in.to})
			}
			if in.kind != plain {
				break
			}
			at += in.length
		}
	}
	return stubs
}

// stubsARM finds sequences of adrp x16, page; ldr x17, [x16, #offset]; ...; br x17. The instruction bti c can precede them.
func stubsARM(code []byte, addr uint64) []stub {
	word := func(i int) uint32 {
		if i < 0 || i+4 > len(code) {
			return 0
		}
		return binary.LittleEndian.Uint32(code[i:])
	}
	const (
		btiC = 0xd503245f
		push = 0xa9bf7bf0 // stp x16, x30, [sp, #-16]!: the first entry, which calls the dynamic linker
	)
	var stubs []stub
	for i := 0; i+16 <= len(code); i += 4 {
		slot, ok := adrpSlot(code[i:], addr+uint64(i))
		if !ok || word(i-4) == push {
			continue
		}
		start, end := i, 0
		if word(i-4) == btiC {
			start -= 4
		}
		for j := i + 8; j <= i+16; j += 4 {
			if word(j) == brX17 {
				end = j + 4
			}
		}
		if end > 0 {
			stubs = append(stubs, stub{addr + uint64(start), addr + uint64(end), slot})
		}
	}
	return stubs
}

// slotNames returns the names of the functions that relocations put into the stubs' slots, by slot.
func slotNames(t *symtab.Table, f *elfFile, stubs []stub) (map[uint64]string, error) {
	wanted := make(map[uint64]bool, len(stubs))
	for _, s := range stubs {
		wanted[s.slot] = true
	}
	jump, data, indirect := uint32(elf.R_X86_64_JMP_SLOT), uint32(elf.R_X86_64_GLOB_DAT), uint32(elf.R_X86_64_IRELATIVE)
	if f.machine == elf.EM_AARCH64 {
		jump, data, indirect = uint32(elf.R_AARCH64_JUMP_SLOT), uint32(elf.R_AARCH64_GLOB_DAT), uint32(elf.R_AARCH64_IRELATIVE)
	}
	slots := map[uint64]uint32{} // by slot: the symbol's index in .dynsym
	names := map[uint64]string{}
	for i := range f.sections {
		s := &f.sections[i]
		if s.kind != elf.SHT_RELA || s.flags&elf.SHF_ALLOC == 0 {
			continue
		}
		r := window{f: f, offset: s.offset, size: s.size}
		err := r.eachRelocation(func(at uint64, info, addend uint64) bool {
			switch kind := uint32(info); {
			case !wanted[at]:
			case kind == jump || kind == data:
				slots[at] = uint32(info >> 32)
			case kind == indirect: // a function of this file that chooses an implementation
				if s, ok := t.Lookup(addend); ok == symtab.Named {
					names[at] = s.Name
				}
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	table := f.sectionOf(elf.SHT_DYNSYM)
	if table == nil || table.entry != 24 || int(table.link) >= len(f.sections) || f.sections[table.link].kind == elf.SHT_NOBITS {
		return names, nil
	}
	return names, f.addSlotNames(names, slots, table, &f.sections[table.link])
}

// addSlotNames adds the names of the symbols whose indices in table are in slots. It reads the table and its strings in file
// order, so that it reads each part once.
func (f *elfFile) addSlotNames(names map[uint64]string, slots map[uint64]uint32, table, strings *section) error {
	type named struct {
		slot         uint64
		number, text uint32
	}
	all := make([]named, 0, len(slots))
	for slot, number := range slots {
		if number != 0 {
			all = append(all, named{slot: slot, number: number})
		}
	}
	slices.SortFunc(all, func(a, b named) int { return cmp.Compare(a.number, b.number) })
	numbers := window{f: f, offset: table.offset, size: table.size}
	for i := range all {
		b, err := numbers.bytes(24*uint64(all[i].number), 24)
		if err != nil {
			return err
		}
		if b == nil { // this index and all later ones are past the end of the table
			all = all[:i]
			break
		}
		all[i].text = binary.LittleEndian.Uint32(b)
	}
	slices.SortFunc(all, func(a, b named) int { return cmp.Compare(a.text, b.text) })
	texts := window{f: f, offset: strings.offset, size: strings.size}
	for _, s := range all {
		name, err := texts.text(uint64(s.text))
		if err != nil {
			return err
		}
		names[s.slot] = string(name)
	}
	return nil
}
