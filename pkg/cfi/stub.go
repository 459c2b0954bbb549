package cfi

import (
	"bytes"
	"debug/elf"
)

// stubs are jumps to functions of other files (a procedure linkage table) for which linkers write no rules: LLVM's, GNU's for
// arm64 and for what a static program picks at run time. They have nothing on the stack, until one that is bound
// late pushes its number on amd64.
type stubs struct {
	area
	pushed uint64 // from which byte of each 16 on there is a number on the stack; 0: never
}

// How sections of stubs begin. What is first in some is for those that are bound late, and pushes more.
var (
	amd64First = []byte{0xff, 0x35}             // push x(%rip)
	amd64Jump  = []byte{0xff, 0x25}             // jmp *x(%rip)
	arm64First = []byte{0xf0, 0x7b, 0xbf, 0xa9} // stp x16, x30, [sp, #-16]!
	arm64BTI   = []byte{0x5f, 0x24, 0x03, 0xd5} // bti c
)

// readStubs finds the stubs in the sections. A file may have none.
func (t *Table) readStubs(f *image) {
	for _, name := range []string{".plt", ".iplt", ".plt.got", ".plt.sec"} {
		where, ok := f.sectionNamed(name)
		if !ok {
			continue
		}
		begin, err := f.read(where.offset, min(where.size, 32))
		if err != nil {
			continue
		}
		if s, ok := stubsOf(t.arch.machine, where, begin); ok {
			t.stubs = append(t.stubs, s)
		}
	}
}

// stubsOf returns the stubs of a section that begins like that, and whether they are of a kind that is known.
func stubsOf(machine elf.Machine, where area, begin []byte) (stubs, bool) {
	from := func(n uint64) area {
		return area{addr: where.addr + n, size: where.size - min(where.size, n)}
	}
	jumpsAt := func(n int) bool { return len(begin) >= n && bytes.HasPrefix(begin[n:], amd64Jump) }
	switch {
	case machine == elf.EM_AARCH64 && bytes.HasPrefix(bytes.TrimPrefix(begin, arm64BTI), arm64First):
		return stubs{area: from(32)}, true
	case machine == elf.EM_AARCH64:
		return stubs{area: where}, true
	case bytes.HasPrefix(begin, amd64First) && jumpsAt(16):
		return stubs{area: from(16), pushed: 11}, true // a jump of 6 bytes, a push of 5
	case jumpsAt(0) && (len(begin) <= 8 || jumpsAt(8)):
		return stubs{area: where}, true
	case jumpsAt(0) && jumpsAt(16):
		return stubs{area: where, pushed: 11}, true
	}
	return stubs{}, false
}

// stubRow returns the rules in a stub, nil if there is none at the address.
func (t *Table) stubRow(address uint64) *row {
	for i := range t.stubs {
		s := &t.stubs[i]
		if !s.holds(address) {
			continue
		}
		r := &row{address: address, result: Caller, frame: rule{kind: register, reg: uint8(t.arch.sp)}}
		if t.arch.link >= 0 {
			r.ra = uint8(t.arch.link)
			return r
		}
		r.ra, r.frame.n = uint8(t.arch.ip), 8
		if s.pushed != 0 && (address-s.addr)%16 >= s.pushed {
			r.frame.n = 16
		}
		r.rules = []rule{{kind: offset, column: r.ra, n: -8}}
		return r
	}
	return nil
}
