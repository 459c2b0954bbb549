package allocator

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"slices"
)

// withoutJumps leaves out the functions that are nothing but a jump to another one, where their calls count. C++'s operators jump to
// another operator, or to malloc and free, if only by way of the procedure linkage table. operators has the offsets of those.
func withoutJumps(r io.ReaderAt, found []function, operators map[uint64]bool) []function {
	var out []function
	for _, fn := range found {
		to, ok := jump(r, fn.offset)
		if ok && (operators[fn.offset] || slices.ContainsFunc(found, func(other function) bool { return other.offset == to })) {
			continue
		}
		out = append(out, fn)
	}
	return out
}

// jump returns where the code at an offset of a file of this machine jumps to, if it begins with that.
func jump(r io.ReaderAt, offset uint64) (to uint64, ok bool) {
	var code [9]byte
	if n, err := r.ReadAt(code[:], int64(offset)); n < len(code) && err != nil {
		return 0, false
	}
	switch machine {
	case elf.EM_X86_64:
		const jmp, long = 0xe9, 5
		at := 0
		if bytes.Equal(code[:4], []byte{0xf3, 0x0f, 0x1e, 0xfa}) { // endbr64
			at = 4
		}
		if code[at] != jmp {
			return 0, false
		}
		distance := int32(binary.LittleEndian.Uint32(code[at+1:]))
		return offset + uint64(at) + long + uint64(int64(distance)), true
	case elf.EM_AARCH64:
		const branch, mask, bti = 0x14000000, 0xfc000000, 0xd503245f
		at := 0
		if binary.LittleEndian.Uint32(code[:]) == bti {
			at = 4
		}
		word := binary.LittleEndian.Uint32(code[at:])
		if word&mask != branch {
			return 0, false
		}
		distance := int32(word<<6) >> 4
		return offset + uint64(at) + uint64(int64(distance)), true
	}
	return 0, false
}
