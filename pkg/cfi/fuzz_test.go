package cfi

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// stepAnyhow walks from an address, with registers that lead somewhere.
func stepAnyhow(table *Table, address uint64) {
	stack := Stack{Base: 0x7000, Bytes: make([]byte, 256)}
	for i := range 32 {
		binary.LittleEndian.PutUint64(stack.Bytes[8*i:], 0x401000+uint64(i))
	}
	var regs Registers
	for i := range maxColumns {
		regs.Set(i, 0x7000+8*uint64(i%4))
	}
	for range 20 {
		if table.Step(address, &regs, stack) != Caller {
			return
		}
		address = regs.Value[table.arch.ip] - 1
	}
}

// FuzzRead reads whatever a file has in it.
func FuzzRead(f *testing.F) {
	f.Add(amd64Example(twoFunctions...).bytes())
	f.Add(arm64Example(twoFunctions...).bytes())
	for _, change := range []func(*example){
		func(e *example) { e.noIndex = true }, func(e *example) { e.noSections, e.noIndex = true, true }, func(e *example) { e.noSegments = true },
		func(e *example) { e.augmentation = "" },
	} {
		e := amd64Example(twoFunctions...)
		change(&e)
		f.Add(e.bytes())
	}
	if vdso, err := symbols.ReadVDSO(); err == nil {
		f.Add(vdso)
	}
	if self, err := os.ReadFile("/proc/self/exe"); err == nil {
		f.Add(self[:min(len(self), 4096)])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		limits := Limits{Bytes: 1 << 20, Entries: 1000}
		table, err := readBytes(b, limits)
		if err != nil {
			return
		}
		if table.Functions() == 0 && table.sigreturn == 0 || table.Functions() > limits.Entries || table.Bytes() > 2<<20 {
			t.Fatalf("%d functions, %d bytes", table.Functions(), table.Bytes())
		}
		for i, e := range table.entries {
			if i == 50 {
				break
			}
			for _, more := range []uint64{0, 1, 7, 100} {
				address := table.base + uint64(e.start) + more
				_ = table.Describe(address)
				stepAnyhow(table, address)
			}
		}
	})
}

// FuzzStep runs whatever instructions a function has, on whatever registers and stack.
func FuzzStep(f *testing.F) {
	f.Add([]byte{cfaDefCFA, 7, 16}, []byte{cfaOffset | 3, 2, cfaAdvanceLoc | 5, cfaRememberState, cfaUndefined, 16}, []byte{1, 2, 3, 4, 5, 6, 7, 8}, uint16(3), false)
	f.Add([]byte{}, []byte{cfaDefCFAExpression, 4, opBreg0 + 7, 8, opDeref, opDup, cfaRegister, 16, 3}, make([]byte, 64), uint16(0), false)
	f.Add([]byte{cfaDefCFA, 31, 0}, []byte{cfaNegateRAState, cfaExpression, 30, 2, opBreg0 + 29, 8, cfaRestore | 3}, make([]byte, 64), uint16(1), true)
	f.Add([]byte{cfaDefCFA, 7, 8}, []byte{cfaValExpression, 16, 6, opLit31, opBra, 0xfc, 0xff, opSwap, opRot, cfaRestoreState}, make([]byte, 64), uint16(9), false)
	f.Fuzz(func(t *testing.T, common, instructions, words []byte, at uint16, arm bool) {
		e := amd64Example(exampleFunction{0x401000, 0x10000, instructions})
		if arm {
			e = arm64Example(exampleFunction{0x401000, 0x10000, instructions})
		}
		if len(common) > 10_000 || len(instructions) > 100_000 {
			return
		}
		e.common = append(e.common, common...)
		table, err := readBytes(e.bytes(), Limits{})
		if err != nil {
			return // too long for its index
		}
		var regs Registers
		for i := 0; i+8 <= len(words) && i/8 < maxColumns; i += 8 {
			regs.Set(i/8, binary.LittleEndian.Uint64(words[i:]))
		}
		regs.Set(table.arch.sp, 0x7000)
		stack := Stack{Base: 0x7000, Bytes: words}
		address := 0x401000 + uint64(at)
		_ = table.Describe(address)
		for range 50 {
			before := regs
			if table.Step(address, &regs, stack) != Caller {
				if before != regs {
					t.Fatal("registers of nobody")
				}
				break
			}
			if regs.Value[table.arch.sp] < before.Value[table.arch.sp] {
				t.Fatal("the stack pointer goes down")
			}
		}
		for range 50 {
			if table.arch.framePointer(&regs, stack) != Caller {
				return
			}
		}
		if len(words) < 50*16 {
			t.Fatal("more frames than there is room for")
		}
	})
}
