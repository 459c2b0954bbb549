package cfi

// Operations of DWARF expressions. Those for addresses of the file, types, objects and calls are refused: a rule has no
// use for them.
const (
	opDeref      = 0x06
	opConst1u    = 0x08
	opConst1s    = 0x09
	opConst2u    = 0x0a
	opConst2s    = 0x0b
	opConst4u    = 0x0c
	opConst4s    = 0x0d
	opConst8u    = 0x0e
	opConst8s    = 0x0f
	opConstu     = 0x10
	opConsts     = 0x11
	opDup        = 0x12
	opDrop       = 0x13
	opOver       = 0x14
	opPick       = 0x15
	opSwap       = 0x16
	opRot        = 0x17
	opAbs        = 0x19
	opAnd        = 0x1a
	opMinus      = 0x1c
	opMul        = 0x1e
	opNeg        = 0x1f
	opNot        = 0x20
	opOr         = 0x21
	opPlus       = 0x22
	opPlusUconst = 0x23
	opShl        = 0x24
	opShr        = 0x25
	opShra       = 0x26
	opXor        = 0x27
	opBra        = 0x28
	opEq         = 0x29
	opGe         = 0x2a
	opGt         = 0x2b
	opLe         = 0x2c
	opLt         = 0x2d
	opNe         = 0x2e
	opSkip       = 0x2f
	opLit0       = 0x30
	opLit31      = 0x4f
	opBreg0      = 0x70
	opBreg31     = 0x8f
	opBregx      = 0x92
	opDerefSize  = 0x94
	opNop        = 0x96
)

// Bounds of one evaluation.
const (
	maxOperations = 64
	maxDepth      = 16
)

// evaluation is one of an expression.
type evaluation struct {
	c     cursor
	arch  *arch
	regs  *Registers
	copy  Stack
	stack [maxDepth]uint64
	depth int
	bad   bool // more was taken off than there was, or there is no room
	why   Result
}

// evaluate returns what a program says, and Caller; or another Result, which says why it says nothing. The stack of
// the program begins with the values that it is given.
func (t *Table) evaluate(s span, regs *Registers, stack Stack, begin ...uint64) (uint64, Result) {
	e := evaluation{c: cursor{b: t.frames[s.from:s.to]}, arch: t.arch, regs: regs, copy: stack, why: Bad}
	for _, v := range begin {
		e.push(v)
	}
	for steps := 0; e.c.more(); steps++ {
		if steps == maxOperations || !e.operation(e.c.u8()) || e.bad {
			return 0, e.why
		}
	}
	v := e.pop()
	if e.bad || e.c.bad {
		return 0, Bad
	}
	return v, Caller
}

func (e *evaluation) push(v uint64) {
	if e.depth == maxDepth {
		e.bad = true
		return
	}
	e.stack[e.depth] = v
	e.depth++
}

func (e *evaluation) pop() uint64 {
	if e.depth == 0 {
		e.bad = true
		return 0
	}
	e.depth--
	return e.stack[e.depth]
}

// pick returns the value that is n below the top.
func (e *evaluation) pick(n int) uint64 {
	if n >= e.depth {
		e.bad = true
		return 0
	}
	return e.stack[e.depth-1-n]
}

// operation does one operation. It returns false if there is no answer any more.
func (e *evaluation) operation(op uint8) bool {
	switch {
	case op >= opLit0 && op <= opLit31:
		e.push(uint64(op - opLit0))
		return true
	case op >= opBreg0 && op <= opBreg31:
		return e.register(uint64(op-opBreg0), e.c.sleb())
	case op >= opConst1u && op <= opConsts:
		e.push(e.constant(op))
		return !e.c.bad
	case op >= opEq && op <= opNe, op >= opAnd && op <= opXor && op != opNeg && op != opNot && op != opPlusUconst:
		b, a := e.pop(), e.pop()
		v, ok := binaryOperation(op, a, b)
		e.push(v)
		return ok
	}
	return e.other(op)
}

// other does an operation that is of no group.
func (e *evaluation) other(op uint8) bool {
	switch op {
	case opBregx:
		n := e.c.uleb()
		return e.register(n, e.c.sleb())
	case opDeref:
		return e.deref(8)
	case opDerefSize:
		return e.deref(uint64(e.c.u8()))
	case opDup:
		e.push(e.pick(0))
	case opDrop:
		e.pop()
	case opOver:
		e.push(e.pick(1))
	case opPick:
		e.push(e.pick(int(e.c.u8())))
	case opSwap:
		b, a := e.pop(), e.pop()
		e.push(b)
		e.push(a)
	case opRot: // the top goes below the two others
		c, b, a := e.pop(), e.pop(), e.pop()
		e.push(c)
		e.push(a)
		e.push(b)
	case opAbs:
		if v := e.pop(); int64(v) < 0 {
			e.push(-v)
		} else {
			e.push(v)
		}
	case opNeg:
		e.push(-e.pop())
	case opNot:
		e.push(^e.pop())
	case opPlusUconst:
		e.push(e.pop() + e.c.uleb())
	case opSkip:
		return e.jump(int16(e.c.u16()))
	case opBra:
		if by := int16(e.c.u16()); e.pop() != 0 {
			return e.jump(by)
		}
	case opNop:
	default:
		return false
	}
	return !e.c.bad
}

func (e *evaluation) register(n uint64, add int64) bool {
	if n >= e.arch.columns {
		return false
	}
	v, ok := e.regs.Get(int(n))
	e.push(v + uint64(add))
	return ok && !e.c.bad
}

func (e *evaluation) deref(size uint64) bool {
	at := e.pop()
	if e.bad || e.c.bad || size != 1 && size != 2 && size != 4 && size != 8 {
		return false
	}
	v, ok := e.copy.sized(at, size)
	if !ok {
		e.why = OutOfCopy
	}
	e.push(v)
	return ok
}

func (e *evaluation) jump(by int16) bool {
	to := e.c.at + int(by)
	if e.c.bad || to < 0 || to > len(e.c.b) {
		return false
	}
	e.c.at = to
	return true
}

func (e *evaluation) constant(op uint8) uint64 {
	switch op {
	case opConst1u:
		return uint64(e.c.u8())
	case opConst1s:
		return uint64(int8(e.c.u8()))
	case opConst2u:
		return uint64(e.c.u16())
	case opConst2s:
		return uint64(int16(e.c.u16()))
	case opConst4u:
		return uint64(e.c.u32())
	case opConst4s:
		return uint64(int32(e.c.u32()))
	case opConst8u, opConst8s:
		return e.c.u64()
	case opConstu:
		return e.c.uleb()
	}
	return uint64(e.c.sleb())
}

// binaryOperation does an operation of two values. Shifts by 64 and more leave nothing, as in DWARF.
func binaryOperation(op uint8, a, b uint64) (uint64, bool) {
	var is bool
	switch op {
	case opAnd:
		return a & b, true
	case opMinus:
		return a - b, true
	case opMul:
		return a * b, true
	case opOr:
		return a | b, true
	case opPlus:
		return a + b, true
	case opShl:
		return a << b, true
	case opShr:
		return a >> b, true
	case opShra:
		return uint64(int64(a) >> b), true
	case opXor:
		return a ^ b, true
	case opEq:
		is = a == b
	case opGe:
		is = int64(a) >= int64(b)
	case opGt:
		is = int64(a) > int64(b)
	case opLe:
		is = int64(a) <= int64(b)
	case opLt:
		is = int64(a) < int64(b)
	case opNe:
		is = a != b
	default: // divisions
		return 0, false
	}
	if is {
		return 1, true
	}
	return 0, true
}
