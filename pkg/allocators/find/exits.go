package find

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"math"
	"slices"

	"golang.org/x/arch/x86/x86asm"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

const (
	// mostInstructions is how many instructions of a function are followed, with those of the functions that it ends in.
	mostInstructions = 4096
	// window is how much code is read at once.
	window = 512
)

// exits returns where those functions return to their caller that throw, by their offset in a file; nothing where that cannot be told.
//
// A probe for the return of a function puts an address of the kernel's in place of the one that is returned to. An exception
// finds no way through it, and ends the program. So functions that throw have probes at the instructions that return.
//
// Those that call another of the functions are left out of what is returned as the rest, where these calls count: C++'s operators
// call malloc unless the allocator has its own.
func exits(r io.ReaderAt, f *elf.File, functions []allocators.Function, sizes map[uint64]uint64) (rest []allocators.Function, found map[uint64][]uint64) {
	found = map[uint64][]uint64{}
	w := way{code: pieces{r: r}, slots: slots{r, f, mostRelocations}}
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
	code  pieces
	slots slots
	exits []uint64        // where it returns to its caller, also by way of functions that it jumps to
	calls map[uint64]bool // what it calls itself
}

// follow follows the code of a function from an offset of the file on. Behind a call that does not return can be what does not belong to
// it: then there are more exits than it has, which does no harm. It returns false where it cannot be told how it goes on, and where
// instructions are within others: a probe in the middle of one would change what the program does.
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
				// Nothing of the function is behind it, so it does not return.
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

// decode tells what the code at an offset begins with.
func (w *way) decode(at uint64) instruction {
	in := decode(w.code.at(at), at)
	if in.kind != slot {
		return in
	}
	// Into the function there.
	address, ok := w.slots.address(at)
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

// pieces reads a file in pieces that code is mostly within.
type pieces struct {
	r    io.ReaderAt
	from uint64
	b    []byte
	buf  [window]byte
}

// at returns what is at an offset: enough for an instruction, unless the file ends there.
func (p *pieces) at(offset uint64) []byte {
	const longest = 20 // four instructions on arm64
	if at := offset - p.from; offset < p.from || at+longest > uint64(len(p.b)) {
		n, _ := p.r.ReadAt(p.buf[:], int64(offset&math.MaxInt64))
		p.from, p.b = offset, p.buf[:n]
	}
	return p.b[offset-p.from:]
}

// instruction is what one does to the way through a function.
type instruction struct {
	kind   kind
	goesOn bool   // to the one behind it
	to     uint64 // an offset in the file, or, of a slot, where it would be if all of the file were mapped as its code is
	length uint64
}

type kind uint8

const (
	unknown kind = iota // it goes nobody knows where
	plain
	branches
	calls
	returns
	leaves // for good
	slot   // it jumps to what the memory says that is as far from it as the instruction says
)

// decode decodes an instruction of this machine.
func decode(code []byte, at uint64) instruction {
	switch machine {
	case elf.EM_X86_64:
		return decodeAMD64(code, at)
	case elf.EM_AARCH64:
		return decodeARM64(code, at)
	}
	return instruction{}
}

const endbr64 = "\xf3\x0f\x1e\xfa"

func decodeAMD64(code []byte, at uint64) instruction {
	if bytes.HasPrefix(code, []byte(endbr64)) {
		return instruction{kind: plain, goesOn: true, length: uint64(len(endbr64))}
	}
	in, err := x86asm.Decode(code, 64)
	if err != nil || in.Len == 0 {
		return instruction{}
	}
	out := instruction{kind: plain, goesOn: true, length: uint64(in.Len)}
	switch in.Op {
	case x86asm.RET:
		out.kind, out.goesOn = returns, false
		return out
	case x86asm.UD2, x86asm.HLT, x86asm.INT, x86asm.UD1:
		out.kind, out.goesOn = leaves, false
		return out
	case x86asm.CALL:
		if to, ok := in.Args[0].(x86asm.Rel); ok {
			out.kind, out.to = calls, at+out.length+uint64(int64(to))
		}
		return out
	case x86asm.LRET, x86asm.IRET, x86asm.IRETD, x86asm.IRETQ:
		return instruction{}
	case x86asm.JMP:
		out.goesOn = false
	}
	if to, ok := in.Args[0].(x86asm.Rel); ok {
		out.kind, out.to = branches, at+out.length+uint64(int64(to))
	} else if in.Op == x86asm.JMP {
		memory, ok := in.Args[0].(x86asm.Mem)
		if !ok || memory.Base != x86asm.RIP || memory.Index != 0 || memory.Segment != 0 {
			return instruction{}
		}
		out.kind, out.to = slot, at+out.length+uint64(memory.Disp)
	}
	return out
}

func decodeARM64(code []byte, at uint64) instruction {
	const length = 4
	if len(code) < length {
		return instruction{}
	}
	word := binary.LittleEndian.Uint32(code)
	out := instruction{kind: plain, goesOn: true, length: length}
	// to is where a branch goes whose distance in instructions has so many bits, from a bit on.
	to := func(from, bits uint) uint64 {
		distance := int32(word>>from<<(32-bits)) >> (32 - bits)
		return at + uint64(int64(distance)*length)
	}
	if to, ok := linkage(code, at); ok {
		return instruction{kind: slot, to: to, length: length}
	}
	switch {
	case word == 0xd65f03c0, word == 0xd65f0bff, word == 0xd65f0fff: // ret, and with an address that is signed
		out.kind, out.goesOn = returns, false
	case word&0xfc000000 == 0x14000000: // b
		out.kind, out.goesOn, out.to = branches, false, to(0, 26)
	case word&0xfc000000 == 0x94000000: // bl
		out.kind, out.to = calls, to(0, 26)
	case word&0xff000000 == 0x54000000, word&0x7e000000 == 0x34000000: // b.cond, cbz and cbnz
		out.kind, out.to = branches, to(5, 19)
	case word&0x7e000000 == 0x36000000: // tbz and tbnz
		out.kind, out.to = branches, to(5, 14)
	case word&0xfffffc1f == 0xd63f0000, word&0xfe000000 == 0xd6000000 && word>>21&0xf == 1, word&0xfefff800 == 0xd63f0800: // blr
	case word&0xfe000000 == 0xd6000000: // br and its like
		return instruction{}
	case word&0xffe00000 == 0xd4200000, word>>16 == 0: // brk, udf
		out.kind, out.goesOn = leaves, false
	}
	return out
}

// linkage returns the place that an entry of arm64's procedure linkage table jumps to what it says: adrp x16, page; ldr x17, [x16,
// #place]; add x16, x16, #place; br x17.
func linkage(code []byte, at uint64) (uint64, bool) {
	const page = 4096
	if len(code) < 16 {
		return 0, false
	}
	adrp, ldr, br := binary.LittleEndian.Uint32(code), binary.LittleEndian.Uint32(code[4:]), binary.LittleEndian.Uint32(code[12:])
	if adrp&0x9f00001f != 0x90000010 || ldr&0xffc003ff != 0xf9400211 || br != 0xd61f0220 {
		return 0, false
	}
	pages := int32(adrp>>5&0x7ffff<<2|adrp>>29&3) << 11 >> 11
	return at&^(page-1) + uint64(int64(pages)*page) + uint64(ldr>>10&0xfff)*8, true
}
