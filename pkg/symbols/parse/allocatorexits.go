package parse

import (
	"debug/elf"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

const (
	// mostInstructions limits the number of instructions to follow. It includes functions to which a function jumps.
	mostInstructions = 4096
	// mostRelocations limits the number of relocations to read from a file.
	mostRelocations = 1 << 20
)

// exits returns the file offsets of the return instructions of throwing functions, by the function's file offset. It omits
// functions whose control flow is unknown.
//
// A return probe replaces the return address with a kernel address. An exception cannot unwind through that address and
// terminates the program. So throwing functions get probes at their return instructions.
//
// rest omits throwing functions that call another counted function. C++ operators call malloc unless the allocator defines its
// own operators.
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

// way is the control flow of a function.
type way struct {
	code  codeReader
	slots slots
	exits []uint64        // offsets of return instructions, also in functions to which it jumps
	calls map[uint64]bool // the functions that it calls
}

// follow follows the code of a function from a file offset. The bytes after a call that does not return can belong to another
// function. The extra exits of that function do no harm. follow returns false if the control flow is unknown. It also returns
// false if instructions overlap, because a probe inside an instruction would change the program.
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
				// If no code of the function follows, the call does not return.
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

// decode decodes the instruction at an offset.
func (w *way) decode(at uint64) instruction {
	in := decode(w.code.at(at), at)
	if in.kind != slot {
		return in
	}
	// The slot holds the address of a function.
	address, ok := w.slots.f.codeAddress(at)
	if !ok {
		return instruction{}
	}
	to, known := w.slots.target(address + in.to - at)
	switch {
	case !known:
		return instruction{}
	case to == 0: // another file's function, such as one that throws
		in.kind = leaves
	default:
		in.kind, in.to = branches, to
	}
	return in
}

// slots resolves the slots into which the dynamic linker writes function addresses. A tail call to an exported function jumps to
// the address in that function's slot.
type slots struct {
	f    *elfFile
	left int // relocations that may be read
}

// target returns the file offset of the function whose address the dynamic linker writes into the slot at address. It returns 0
// if the function is in another file, and false if the file does not describe the slot.
func (s *slots) target(address uint64) (uint64, bool) {
	for i := range s.f.sections {
		table := &s.f.sections[i]
		if table.kind != elf.SHT_RELA || int(table.link) >= len(s.f.sections) {
			continue
		}
		number, found := uint64(0), false
		r := window{f: s.f, offset: table.offset, size: table.size}
		err := r.eachRelocation(func(at, info, _ uint64) bool {
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
