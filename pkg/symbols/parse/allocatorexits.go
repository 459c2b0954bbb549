package parse

import (
	"debug/elf"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

const (
	// mostInstructions limits the followed instructions of a function, including the functions in which it ends.
	mostInstructions = 4096
	// mostRelocations limits the read relocations of a file.
	mostRelocations = 1 << 20
)

// exits returns where throwing functions return to their caller, by their offset in a file; nothing if that is unknown.
//
// A probe for the return of a function puts an address of the kernel's in place of the one that is returned to. An exception
// finds no way through it, and ends the program. So functions that throw have probes at the instructions that return.
//
// Functions that call another of the functions are left out of the rest, if these calls count: C++'s operators call malloc unless
// the allocator has its own.
func exits(f *elfFile, functions []allocators.Function, sizes map[uint64]uint64) (rest []allocators.Function, found map[uint64][]uint64) {
	found = map[uint64][]uint64{}
	w := way{code: codeReader{r: f.r}, slots: slots{f, mostRelocations}}
	for _, fn := range functions {
		if fn.Program == allocators.Throws {
			ok := w.follow(fn.Offset, sizes[fn.Offset])
			if slices.ContainsFunc(functions, func(other allocators.Function) bool {
				return other.Program != allocators.Throws && other.Program != allocators.Address && w.calls[other.Offset]
			}) {
				continue
			}
			if ok && len(w.exits) > 0 {
				found[fn.Offset] = slices.Clone(w.exits)
			}
		}
		rest = append(rest, fn)
	}
	return rest, found
}

// way is the way through a function, and the memory for it.
type way struct {
	code  codeReader
	slots slots
	exits []uint64        // where it returns to its caller, also by way of functions that it jumps to
	calls map[uint64]bool // what it calls itself
}

// follow follows the code of a function from an offset of the file on. The bytes after a call that does not return may belong to
// another function. Then more exits are found than it has, which does no harm. It returns false if it cannot tell how the
// function continues, and if instructions overlap. A probe in the middle of one would change what the program does.
func (w *way) follow(offset, size uint64) bool {
	w.exits, w.calls = w.exits[:0], map[uint64]bool{}
	seen, within := map[uint64]bool{}, map[uint64]bool{}
	for ahead := []uint64{offset}; len(ahead) > 0; {
		at := ahead[len(ahead)-1]
		ahead = ahead[:len(ahead)-1]
		for next := true; next && !seen[at]; {
			if len(seen) == mostInstructions {
				return false
			}
			seen[at] = true
			in := w.decode(at)
			if within[at] {
				return false
			}
			for n := at + 1; n < at+in.length; n++ {
				if within[n] = true; seen[n] {
					return false
				}
			}
			switch in.kind {
			case unknown:
				return false
			case returns:
				if w.exits = append(w.exits, at); len(w.exits) > allocators.MaxExits {
					return false
				}
			case branches:
				ahead = append(ahead, in.to)
			case calls:
				if at-offset >= size {
					break
				}
				// No code of the function follows, so it does not return.
				in.goesOn = at+in.length-offset < size
				w.calls[in.to] = true
				if stub := w.decode(in.to); stub.kind == branches && !stub.goesOn {
					w.calls[stub.to] = true
				}
			}
			next = in.goesOn
			at += in.length
		}
	}
	slices.Sort(w.exits)
	return true
}

// decode returns the kind of the first instruction at an offset.
func (w *way) decode(at uint64) instruction {
	in := decode(w.code.at(at), at)
	if in.kind != slot {
		return in
	}
	// Into the function there.
	address, ok := w.slots.f.codeAddress(at)
	if !ok {
		return instruction{}
	}
	to, known := w.slots.target(address + in.to - at)
	switch {
	case !known:
		return instruction{}
	case to == 0: // such as what throws
		in.kind = leaves
	default:
		in.kind, in.to = branches, to
	}
	return in
}

// slots maps places in a file to the functions whose addresses the dynamic linker writes there. A function that continues in
// an exported one
// jumps to the address in its slot.
type slots struct {
	f    *elfFile
	left int // relocations that may be read
}

// target returns the offset of the function with the address that the dynamic linker writes to a place in memory; 0 if it is in
// another file. It returns false if the file does not describe the place.
func (s *slots) target(address uint64) (uint64, bool) {
	for i := range s.f.sections {
		table := &s.f.sections[i]
		if table.kind != elf.SHT_RELA || int(table.link) >= len(s.f.sections) {
			continue
		}
		number, found := uint64(0), false
		r := relocations{f: s.f, parts: []place{{table.offset, table.size}}}
		err := r.each(func(at, info, _ uint64) bool {
			s.left--
			number, found = info>>32, at == address
			return !found && s.left > 0
		})
		if err != nil || !found {
			continue
		}
		symbols := window{f: s.f, offset: s.f.sections[table.link].offset, size: s.f.sections[table.link].size}
		b, err := symbols.bytes(number*symbolSize, symbolSize)
		if err != nil || b == nil || s.f.sections[table.link].kind != elf.SHT_DYNSYM {
			return 0, false
		}
		to, index, _ := s.f.symbol(b)
		if index == elf.SHN_UNDEF {
			return 0, true
		}
		return s.f.codeOffset(to.addr)
	}
	return 0, false
}
