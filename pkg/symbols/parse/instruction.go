package parse

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"math"

	"golang.org/x/arch/x86/x86asm"
)

// codeWindow is the size of one read.
const codeWindow = 512

// codeReader reads the code of a file in chunks.
type codeReader struct {
	r    io.ReaderAt
	from uint64
	b    []byte
	buf  [codeWindow]byte
}

// at returns the bytes at an offset. They contain a whole instruction unless the file ends.
func (p *codeReader) at(offset uint64) []byte {
	const longest = 20 // four instructions on arm64
	if at := offset - p.from; offset < p.from || at+longest > uint64(len(p.b)) {
		n, _ := p.r.ReadAt(p.buf[:], int64(offset&math.MaxInt64))
		p.from, p.b = offset, p.buf[:n]
	}
	return p.b[offset-p.from:]
}

// instruction is the effect of an instruction on the control flow.
type instruction struct {
	kind   kind
	goesOn bool   // can continue with the next instruction
	to     uint64 // a file offset; for a slot, the offset is computed as if it were code
	length uint64
}

type kind uint8

const (
	unknown kind = iota // its target is unknown
	plain
	branches
	calls
	returns
	leaves // never returns
	slot   // jumps to the address stored in memory, relative to the instruction
)

// decode decodes an instruction for this machine.
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
	// to returns the target of a branch. The distance is a field of the given number of bits, from bit from on. Its unit is one
	// instruction.
	to := func(from, bits uint) uint64 {
		distance := int32(word>>from<<(32-bits)) >> (32 - bits)
		return at + uint64(int64(distance)*length)
	}
	if to, ok := linkage(code, at); ok {
		return instruction{kind: slot, to: to, length: length}
	}
	switch {
	case word == 0xd65f03c0, word == 0xd65f0bff, word == 0xd65f0fff: // ret, and its variants for a signed address
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
	case word&0xfe000000 == 0xd6000000: // br and its variants
		return instruction{}
	case word&0xffe00000 == 0xd4200000, word>>16 == 0: // brk, udf
		out.kind, out.goesOn = leaves, false
	}
	return out
}

// linkage returns the slot that an entry of arm64's procedure linkage table reads: adrp x16, page; ldr x17, [x16, #place]; add
// x16, x16, #place; br x17.
func linkage(code []byte, at uint64) (uint64, bool) {
	if len(code) < 16 || binary.LittleEndian.Uint32(code[12:]) != brX17 {
		return 0, false
	}
	return adrpSlot(code, at)
}

const brX17 = 0xd61f0220

// adrpSlot returns the slot that adrp x16, page; ldr x17, [x16, #place] read.
func adrpSlot(code []byte, at uint64) (uint64, bool) {
	adrp, ldr := binary.LittleEndian.Uint32(code), binary.LittleEndian.Uint32(code[4:])
	if adrp&0x9f00001f != 0x90000010 || ldr&0xffc003ff != 0xf9400211 {
		return 0, false
	}
	page := int64(int32((adrp>>5&0x7ffff)<<2|adrp>>29&3)<<11) >> 11 << 12
	return at&^0xfff + uint64(page) + uint64(ldr>>10&0xfff)*8, true
}
