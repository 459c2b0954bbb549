package cfi

import (
	"fmt"
	"strings"
)

// ruleKind says how a register of the caller is found.
type ruleKind uint8

const (
	unmentioned       ruleKind = iota // by the calling convention
	undefined                         // it is lost
	same                              // it still has its value
	offset                            // it is in memory, n bytes from the frame's address
	valueOffset                       // it is the frame's address and n
	register                          // it is in another register; for the frame's address: and n
	expression                        // it is in memory, where a program says
	valueOfExpression                 // it is what a program says
)

// rule is how one register of the caller is found, or the frame's address (the canonical frame address: the caller's stack
// pointer, mostly).
type rule struct {
	kind   ruleKind
	column uint8 // of which register this is the rule
	reg    uint8
	n      int64 // the offset, or the span of a program
}

func programRule(kind ruleKind, s span) rule {
	return rule{kind: kind, n: int64(s.from)<<32 | int64(s.to)}
}

// program returns the span of a rule's program.
func (r rule) program() span { return span{uint32(r.n >> 32), uint32(r.n)} }

// row has the rules at one address. It does not change any more.
type row struct {
	address uint64
	result  Result // Caller: there are rules; else why not
	signal  bool   // the frame is one that the kernel makes for a signal
	ra      uint8  // the column of the return address
	frame   rule
	rules   []rule // of those registers that are mentioned
}

// keptRules is how many rules a row has at most that is kept. Those that have more are of signals' frames.
const keptRules = 13

// rowAt returns the rules at an address. It is never nil.
func (t *Table) rowAt(address uint64) *row {
	slot := &t.recent[address*0x9e3779b97f4a7c15>>32&uint64(len(t.recent)-1)]
	if r := slot.Load(); r != nil && r.address == address {
		return r
	}
	r := t.execute(address)
	if len(r.rules) <= keptRules {
		slot.Store(r)
	}
	return r
}

// Signal tells whether the frame at an address is one that the kernel makes for a signal. What it interrupts has not made a
// call: the address of the next frame is that of an instruction itself, so Step wants it as it is, and not one less.
func (t *Table) Signal(address uint64) bool { return t.rowAt(address).signal }

// Describe says what the rules are at an address, for messages: the frame's address, then each register that the rules
// mention. "c-16" is the word 16 bytes below the frame's address, "v+8" that address and 8, "u" a lost register, "s" one that
// still has its value; "exp" and "vexp" are programs. It is "" where there are no rules.
func (t *Table) Describe(address uint64) string {
	r := t.rowAt(address)
	if r.result != Caller {
		return ""
	}
	var b strings.Builder
	b.WriteString("cfa=")
	if r.frame.kind == register {
		fmt.Fprintf(&b, "%s%+d", t.arch.registers[r.frame.reg], r.frame.n)
	} else {
		b.WriteString("exp")
	}
	for _, x := range r.rules {
		name := t.arch.registers[x.column]
		if x.column == r.ra {
			name = "ra"
		}
		fmt.Fprintf(&b, " %s=", name)
		switch x.kind {
		case undefined:
			b.WriteString("u")
		case same:
			b.WriteString("s")
		case offset:
			fmt.Fprintf(&b, "c%+d", x.n)
		case valueOffset:
			fmt.Fprintf(&b, "v%+d", x.n)
		case register:
			b.WriteString(t.arch.registers[x.reg])
		case expression:
			b.WriteString("exp")
		case valueOfExpression:
			b.WriteString("vexp")
		}
	}
	return b.String()
}
