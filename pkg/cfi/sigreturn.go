package cfi

import (
	"bytes"
	"debug/elf"
)

// On arm64 the kernel's frame of a signal has no rules: the kernel's own code, to which a handler returns, has had none since
// Linux 5.8. The code is known by its instructions, and what is on the stack there is part of the kernel's interface.
const (
	sigreturnSize = 8
	sigreturnMost = 64 << 10 // the kernel's code has some kilobytes: nothing larger is looked through
	contextX0     = 312      // where x0 is in the frame; the others up to x30, sp and pc follow
)

// mov x8, #139 (rt_sigreturn); svc #0
var sigreturnCode = []byte{0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4}

// readSigreturn finds the code that handlers return to.
func (t *Table) readSigreturn(f *image) {
	if t.arch.machine != elf.EM_AARCH64 || f.size > sigreturnMost {
		return
	}
	content, err := f.read(0, f.size)
	if err != nil {
		return
	}
	for _, s := range f.segments {
		part := content[s.offset : s.offset+s.size]
		if at := bytes.Index(part, sigreturnCode); at >= 0 {
			t.sigreturn = s.addr + uint64(at)
			return
		}
	}
}

// sigreturnRow returns the rules of the kernel's frame of a signal, nil if it is not one. The address is one less than where
// the handler returns to, or in the code itself.
func (t *Table) sigreturnRow(address uint64) *row {
	if t.sigreturn == 0 || address-(t.sigreturn-4) >= sigreturnSize+4 {
		return nil
	}
	a := t.arch
	r := &row{address: address, result: Caller, signal: true, ra: uint8(a.ip), frame: rule{kind: register, reg: uint8(a.sp)}}
	for i := range uint8(a.columns) {
		r.rules = append(r.rules, rule{kind: offset, column: i, n: contextX0 + 8*int64(i)})
	}
	return r
}
