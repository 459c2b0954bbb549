package find

import (
	"debug/elf"
	"io"
)

// isEmulated tells whether the kernel emulates the instruction at an offset, as far as functions begin with it.
func isEmulated(r io.ReaderAt, offset uint64) bool {
	if machine != elf.EM_X86_64 {
		_, ok := jump(r, offset) // simulate-insn.c of Linux's arch/arm64/kernel/probes
		return ok
	}
	var code [4]byte
	n, _ := r.ReadAt(code[:], int64(offset))
	return quick(code[:n])
}
