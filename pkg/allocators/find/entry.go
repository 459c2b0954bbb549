package find

import (
	"bytes"
	"debug/elf"
	"io"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

// harmless are instructions that functions begin with and that change nothing which the gadget's programs look at: none of the first three
// arguments, and not the stack.
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

// withQuickEntries moves probes to where they are cheap, if that is behind instructions that are harmless. Linux does a push, a
// jump and a nop itself when it meets a probe there (arch/x86/kernel/uprobes.c). For most other instructions it has the program
// do a single step, which is a second trap: free of glibc, which begins with a test, took 10 microseconds in a virtual machine
// instead of one.
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

// quickEntry returns how far behind an offset the probe is cheap; 0 where it is cheap there, or nowhere near.
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

// quick tells whether Linux does an instruction itself.
func quick(code []byte) bool {
	if len(code) < 2 {
		return false
	}
	first, second := code[0], code[1]
	switch {
	case first >= 0x50 && first <= 0x57, first == 0x41 && second >= 0x50 && second <= 0x57: // push
		return true
	case first >= 0x70 && first <= 0x7f, first == 0x0f && second >= 0x80 && second <= 0x8f: // a jump on a condition
		return true
	}
	return first == 0x90 || first == 0xe9 || first == 0xeb // nop, a jump
}
