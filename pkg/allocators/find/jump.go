package find

import (
	"bytes"
	"debug/elf"
	"io"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

// withoutJumps leaves out the functions that are nothing but a jump to another one, where their calls count. C++'s operators jump to
// another operator, or to malloc and free, if only by way of the procedure linkage table. operators has the offsets of those.
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

// landing is what functions begin with that are called by address, where the compiler marks them.
var landing = map[elf.Machine][]byte{elf.EM_X86_64: []byte(endbr64), elf.EM_AARCH64: {0x5f, 0x24, 0x03, 0xd5}}[machine]

// jump returns where the code at an offset of a file of this machine jumps to, if it begins with that.
func jump(r io.ReaderAt, offset uint64) (to uint64, ok bool) {
	code := pieces{r: r}
	if bytes.HasPrefix(code.at(offset), landing) {
		offset += uint64(len(landing))
	}
	in := decode(code.at(offset), offset)
	return in.to, in.kind == branches && !in.goesOn
}
