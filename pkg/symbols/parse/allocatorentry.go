package parse

import (
	"bytes"
	"debug/elf"
	"io"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

// harmless are instructions at the start of functions that change neither the first three arguments nor the stack. The gadget's
// programs read nothing else.
var harmless = []struct {
	code   []byte
	length uint64
}{
	{[]byte{0xf3, 0x0f, 0x1e, 0xfa}, 4}, // endbr64
	{[]byte{0x48, 0x85, 0xff}, 3},       // test %rdi,%rdi
	{[]byte{0x48, 0x85, 0xc0}, 3},       // test %rax,%rax
	{[]byte{0x48, 0x81, 0xff}, 7},       // cmp $number,%rdi
	{[]byte{0x48, 0x8b, 0x05}, 7},       // mov distance(%rip),%rax
	{[]byte{0x48, 0x89, 0xf9}, 3},       // mov %rdi,%rcx
	{[]byte{0x80, 0x3d}, 7},             // cmpb $number,distance(%rip)
}

// withQuickEntries moves probes past harmless instructions to a place where they are cheap. Linux emulates a push, a jump and a
// nop under a probe (arch/x86/kernel/uprobes.c). It single-steps most other instructions, which costs a second trap. glibc's free
// begins with a test instruction. In a virtual machine, its probe took 10 microseconds instead of one.
func withQuickEntries(r io.ReaderAt, found []allocators.Function, ends map[uint64][]uint64) {
	for i := range found {
		was := found[i].Offset
		if skip := quickEntry(r, was); skip > 0 {
			found[i].Offset += skip
			if e, ok := ends[was]; ok {
				delete(ends, was)
				ends[found[i].Offset] = e
			}
		}
	}
}

// quickEntry returns the distance from offset to a cheap place for the probe. It returns 0 if offset itself is cheap, or if no
// place nearby is cheap.
func quickEntry(r io.ReaderAt, offset uint64) uint64 {
	if machine != elf.EM_X86_64 {
		return 0
	}
	var code [32]byte
	n, _ := r.ReadAt(code[:], int64(offset))
	for at := uint64(0); at < uint64(n); {
		rest := code[at:n]
		if quick(rest) {
			return at
		}
		skip := uint64(0)
		for _, h := range harmless {
			if bytes.HasPrefix(rest, h.code) {
				skip = h.length
			}
		}
		if skip == 0 {
			return 0
		}
		at += skip
	}
	return 0
}

// quick reports whether Linux emulates an instruction.
func quick(code []byte) bool {
	if len(code) < 2 {
		return false
	}
	first, second := code[0], code[1]
	switch {
	case first >= 0x50 && first <= 0x57, first == 0x41 && second >= 0x50 && second <= 0x57: // push
		return true
	case first >= 0x70 && first <= 0x7f, first == 0x0f && second >= 0x80 && second <= 0x8f: // a conditional jump
		return true
	}
	return first == 0x90 || first == 0xe9 || first == 0xeb // nop, a jump
}

// isEmulated reports whether the kernel emulates the instruction at an offset. It recognizes only the instructions with which
// functions usually begin.
func isEmulated(r io.ReaderAt, offset uint64) bool {
	if machine != elf.EM_X86_64 {
		_, ok := jump(r, offset) // simulate-insn.c of Linux's arch/arm64/kernel/probes
		return ok
	}
	var code [4]byte
	n, _ := r.ReadAt(code[:], int64(offset))
	return quick(code[:n])
}

// withoutJumps removes functions that only jump to another function in found, because the probe there counts their calls. C++
// operators jump to another operator or to malloc and free, possibly through the procedure linkage table. operators contains the
// operators' offsets.
func withoutJumps(r io.ReaderAt, found []allocators.Function, operators map[uint64]bool) []allocators.Function {
	var out []allocators.Function
	for _, fn := range found {
		to, ok := jump(r, fn.Offset)
		if ok && (operators[fn.Offset] || slices.ContainsFunc(found, func(other allocators.Function) bool { return other.Offset == to })) {
			continue
		}
		out = append(out, fn)
	}
	return out
}

// landing is the instruction that compilers put at the start of functions that can be called indirectly.
var landing = map[elf.Machine][]byte{elf.EM_X86_64: []byte(endbr64), elf.EM_AARCH64: {0x5f, 0x24, 0x03, 0xd5}}[machine]

// jump returns the target of the jump at a file offset, or false if there is no jump. It ignores a landing instruction before the
// jump.
func jump(r io.ReaderAt, offset uint64) (to uint64, ok bool) {
	code := codeReader{r: r}
	if bytes.HasPrefix(code.at(offset), landing) {
		offset += uint64(len(landing))
	}
	in := decode(code.at(offset), offset)
	return in.to, in.kind == branches && !in.goesOn
}
