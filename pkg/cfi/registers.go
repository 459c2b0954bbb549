package cfi

import (
	"debug/elf"
	"encoding/binary"
	"runtime"
	"strconv"
)

// Registers are those of a thread by their DWARF numbers of this machine's architecture. amd64: 0 rax, 1 rdx, 2 rcx,
// 3 rbx, 4 rsi, 5 rdi, 6 rbp, 7 rsp, 8 to 15 r8 to r15, 16 rip. arm64: 0 to 30 x0 to x30, 31 sp, 32 pc.
type Registers struct {
	Value [maxColumns]uint64
	Known uint64 // bit n: Value[n] is known
}

// maxColumns is how many registers there are at most.
const maxColumns = 33

// Set sets a register, which is known then. A number that there is no register of does nothing.
func (r *Registers) Set(n int, v uint64) {
	if uint(n) < maxColumns {
		r.Value[n] = v
		r.Known |= 1 << n
	}
}

// Get returns a register, and whether it is known.
func (r *Registers) Get(n int) (uint64, bool) {
	if uint(n) >= maxColumns || r.Known>>n&1 == 0 {
		return 0, false
	}
	return r.Value[n], true
}

// IP is the address of the instruction: for a caller, the one that the call returns to.
func (r *Registers) IP() uint64 { return r.Value[native.ip] }

// SP is the stack pointer.
func (r *Registers) SP() uint64 { return r.Value[native.sp] }

// FP is the frame pointer, where code keeps one.
func (r *Registers) FP() uint64 { return r.Value[native.fp] }

// SetIP sets the address of the instruction.
func (r *Registers) SetIP(v uint64) { r.Set(native.ip, v) }

// SetSP sets the stack pointer.
func (r *Registers) SetSP(v uint64) { r.Set(native.sp, v) }

// SetFP sets the frame pointer.
func (r *Registers) SetFP(v uint64) { r.Set(native.fp, v) }

// Stack is a copy of the top of a stack: Bytes begin at address Base. That may be the stack pointer. Better is 128 bytes
// below it, because functions of amd64 that call none may keep registers there.
type Stack struct {
	Base  uint64
	Bytes []byte
}

// Word returns the eight bytes at an address, if they are within the copy.
func (s Stack) Word(addr uint64) (uint64, bool) {
	off := addr - s.Base
	if n := uint64(len(s.Bytes)); n < 8 || off > n-8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(s.Bytes[off:]), true
}

// sized is Word for 1, 2, 4 or 8 bytes.
func (s Stack) sized(addr, size uint64) (uint64, bool) {
	if size == 8 {
		return s.Word(addr)
	}
	off := addr - s.Base
	if n := uint64(len(s.Bytes)); n < size || off > n-size {
		return 0, false
	}
	switch size {
	case 1:
		return uint64(s.Bytes[off]), true
	case 2:
		return uint64(binary.LittleEndian.Uint16(s.Bytes[off:])), true
	case 4:
		return uint64(binary.LittleEndian.Uint32(s.Bytes[off:])), true
	}
	return 0, false
}

// arch is what differs between architectures.
type arch struct {
	machine        elf.Machine
	columns        uint64 // how many registers are followed; rules for those above are ignored: of vectors and flags
	ip, sp, fp     int
	link           int    // the register that holds the return address at a function's start; -1: it is on the stack
	kept           uint64 // bit n: register n is the caller's again when a function returns
	code           uint64 // the bits of an address of code; what else a return address holds is its signature
	registers      [maxColumns]string
	negatesRAState bool
}

var archAMD64 = &arch{
	machine: elf.EM_X86_64, columns: 17, ip: 16, sp: 7, fp: 6, link: -1,
	kept: 1<<3 | 1<<6 | 1<<12 | 1<<13 | 1<<14 | 1<<15,
	code: 1<<64 - 1,
	registers: [maxColumns]string{
		"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "ra",
	},
}

var archARM64 = func() *arch {
	a := &arch{
		machine: elf.EM_AARCH64, columns: 33, ip: 32, sp: 31, fp: 29, link: 30,
		kept:           1<<30 - 1<<19,
		code:           1<<48 - 1,
		negatesRAState: true,
	}
	for i := range 31 {
		a.registers[i] = "x" + strconv.Itoa(i)
	}
	a.registers[31], a.registers[32] = "sp", "pc"
	return a
}()

// native is that of this machine.
var native = func() *arch {
	if runtime.GOARCH == "arm64" {
		return archARM64
	}
	return archAMD64
}()

// archOf returns that of an ELF file, nil if it is not known.
func archOf(m elf.Machine) *arch {
	switch m {
	case elf.EM_X86_64:
		return archAMD64
	case elf.EM_AARCH64:
		return archARM64
	}
	return nil
}
