package cfi

// Step turns registers into those of the caller. address is the ELF virtual address that regs.IP() is at in the file; of a
// caller it is the return address minus one, so that it lies in the call (see Signal for the exception).
func (t *Table) Step(address uint64, regs *Registers, stack Stack) Result {
	r := t.rowAt(address)
	if r.result != Caller {
		return r.result
	}
	a := t.arch
	frame, result := t.frameAddress(r, regs, stack)
	if result != Caller {
		return result
	}
	next := *regs
	next.Known &= a.kept
	next.Set(a.sp, frame)
	ip, found, stays := uint64(0), false, false
	for _, x := range r.rules {
		column := int(x.column)
		v, result := t.value(x, frame, regs, stack)
		if result == OutOfCopy && t.popped(x, frame, regs) {
			v, result = regs.Value[column], Caller
		}
		if column == int(r.ra) {
			if result != Caller {
				return result
			}
			ip, found, stays = v, true, a.lost(x)
			if column == a.ip {
				continue
			}
		}
		switch {
		case result == Caller:
			next.Set(column, v)
		case column == a.sp && result == OutOfCopy:
			return OutOfCopy
		case column == a.sp:
			return Bad
		default:
			next.Known &^= 1 << column
		}
	}
	if !found { // it still is where the call has left it
		if int(r.ra) != a.link {
			return Bad
		}
		if ip, found = regs.Get(a.link); !found {
			return Bad
		}
		stays = true
	}
	if ip &= a.code; ip == 0 {
		return Outermost
	}
	if !r.signal {
		// A function whose return address is in a register need not have anything on the stack.
		if sp := next.Value[a.sp]; sp < regs.Value[a.sp] || sp == regs.Value[a.sp] && !stays {
			return Bad
		}
		if a.link >= 0 { // the call itself has overwritten it
			next.Known &^= 1 << a.link
		}
	}
	next.Set(a.ip, ip)
	*regs = next
	return Caller
}

// lost tells whether a rule is to take a register that is not known any more afterwards, so that this cannot go on for ever.
func (a *arch) lost(x rule) bool {
	from := int(x.reg)
	if x.kind == same {
		from = int(x.column)
	}
	return (x.kind == same || x.kind == register) && from != a.ip && from != a.sp && a.kept>>from&1 == 0
}

// popped tells whether a register has its value again, although the rule still leads to the memory below the stack pointer
// that it was taken from: so it is among the last instructions of a function. It is asked where that memory is not in the copy.
// (Memory is better. Functions that call none may use 128 bytes there without moving the stack pointer, so a copy is best
// made from there on.)
func (t *Table) popped(x rule, frame uint64, regs *Registers) bool {
	a := t.arch
	return x.kind == offset && a.kept>>x.column&1 != 0 && regs.Known>>x.column&1 != 0 &&
		regs.Known>>a.sp&1 != 0 && frame+uint64(x.n) < regs.Value[a.sp]
}

// frameAddress returns the address of the frame, which the other rules refer to.
func (t *Table) frameAddress(r *row, regs *Registers, stack Stack) (uint64, Result) {
	if r.frame.kind == expression {
		return t.evaluate(r.frame.program(), regs, stack)
	}
	v, ok := regs.Get(int(r.frame.reg))
	if !ok {
		return 0, Bad
	}
	return v + uint64(r.frame.n), Caller
}

// value returns a register of the caller, and Caller; or another Result, which says why it is not known.
func (t *Table) value(x rule, frame uint64, regs *Registers, stack Stack) (uint64, Result) {
	from := int(x.column)
	switch x.kind {
	case undefined:
		return 0, Outermost
	case same, register:
		if x.kind == register {
			from = int(x.reg)
		}
		if v, ok := regs.Get(from); ok {
			return v, Caller
		}
		return 0, Bad
	case offset:
		return load(stack, frame+uint64(x.n))
	case valueOffset:
		return frame + uint64(x.n), Caller
	case expression:
		at, result := t.evaluate(x.program(), regs, stack, frame)
		if result != Caller {
			return 0, result
		}
		return load(stack, at)
	case valueOfExpression:
		return t.evaluate(x.program(), regs, stack, frame)
	}
	return 0, Bad
}

func load(stack Stack, at uint64) (uint64, Result) {
	if v, ok := stack.Word(at); ok {
		return v, Caller
	}
	return 0, OutOfCopy
}

// FramePointer does the same by the frame pointer, for code that has no rules and keeps one (what a JIT compiler makes). It
// is right in code that does, between a function's first instructions and its last. Whether code does cannot be seen: the
// caller's address may be anything, so look up whether there is code.
func FramePointer(regs *Registers, stack Stack) Result { return native.framePointer(regs, stack) }

func (a *arch) framePointer(regs *Registers, stack Stack) Result {
	fp, ok := regs.Get(a.fp)
	switch {
	case !ok:
		return Bad
	case fp == 0:
		return Outermost
	case fp%8 != 0 || fp < regs.Value[a.sp]:
		return Bad
	}
	before, ok1 := stack.Word(fp)
	ip, ok2 := stack.Word(fp + 8)
	if !ok1 || !ok2 {
		return OutOfCopy
	}
	if ip &= a.code; ip == 0 {
		return Outermost
	}
	next := *regs
	next.Known = 0
	next.Set(a.ip, ip)
	next.Set(a.fp, before)
	next.Set(a.sp, fp+16)
	if a.link >= 0 {
		// Where the caller's frame begins is not said: locals can be above the record. The number stays, unknown, so that
		// what comes next has to be above it.
		next.Known &^= 1 << a.sp
	}
	*regs = next
	return Caller
}
