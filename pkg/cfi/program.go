package cfi

// Instructions, by their numbers. The first three have an operand in their low six bits.
const (
	cfaAdvanceLoc           = 0x40
	cfaOffset               = 0x80
	cfaRestore              = 0xc0
	cfaNop                  = 0x00
	cfaSetLoc               = 0x01
	cfaAdvanceLoc1          = 0x02
	cfaAdvanceLoc2          = 0x03
	cfaAdvanceLoc4          = 0x04
	cfaOffsetExtended       = 0x05
	cfaRestoreExtended      = 0x06
	cfaUndefined            = 0x07
	cfaSameValue            = 0x08
	cfaRegister             = 0x09
	cfaRememberState        = 0x0a
	cfaRestoreState         = 0x0b
	cfaDefCFA               = 0x0c
	cfaDefCFARegister       = 0x0d
	cfaDefCFAOffset         = 0x0e
	cfaDefCFAExpression     = 0x0f
	cfaExpression           = 0x10
	cfaOffsetExtendedSF     = 0x11
	cfaDefCFASF             = 0x12
	cfaDefCFAOffsetSF       = 0x13
	cfaValOffset            = 0x14
	cfaValOffsetSF          = 0x15
	cfaValExpression        = 0x16
	cfaMIPSAdvanceLoc8      = 0x1d
	cfaNegateRAStateWithPC  = 0x2c
	cfaNegateRAState        = 0x2d // elsewhere GNU_window_save
	cfaGNUArgsSize          = 0x2e
	cfaGNUNegOffsetExtended = 0x2f
)

// Bounds of one execution. Most functions have some twenty instructions. The most that was seen is 5300, in clang.
const (
	maxInstructions = 1 << 14
	maxRemembered   = 16
	rememberCost    = 4 // how many other instructions remembering a state takes as long as
)

// state is what the instructions change: a row while it is being made.
type state struct {
	frame rule // kind unmentioned: not set yet
	rules [maxColumns]rule
}

// machine executes the instructions of one function up to an address.
type machine struct {
	t          *Table
	fde        *fde
	at, until  uint64
	now        state
	initial    *state // what the CIE's instructions have made; nil: these are being executed
	remembered []state
	steps      int
}

// execute makes the row of an address.
func (t *Table) execute(address uint64) *row {
	r := &row{address: address, result: NoRule}
	f, ok := t.find(address)
	if !ok {
		if signal := t.sigreturnRow(address); signal != nil {
			return signal
		}
		if stub := t.stubRow(address); stub != nil {
			return stub
		}
		return r
	}
	r.result, r.signal, r.ra = Bad, f.cie.signal, uint8(f.cie.ra)
	m := machine{t: t, fde: &f, at: f.begin, until: address}
	if !m.run(f.cie.program) {
		return r
	}
	initial := m.now
	m.at, m.initial, m.remembered = f.begin, &initial, m.remembered[:0]
	if !m.run(f.program) || m.now.frame.kind == unmentioned {
		return r
	}
	mentioned := 0
	for i := range m.now.rules {
		if m.now.rules[i].kind != unmentioned {
			mentioned++
		}
	}
	r.result, r.frame, r.rules = Caller, m.now.frame, make([]rule, 0, mentioned)
	for i, x := range m.now.rules {
		if x.kind != unmentioned {
			x.column = uint8(i)
			r.rules = append(r.rules, x)
		}
	}
	return r
}

// run executes instructions, until one that is for addresses behind the one that is asked for.
func (m *machine) run(s span) bool {
	c := cursor{b: m.t.frames[:s.to], at: int(s.from), base: m.t.addr}
	for c.more() {
		if m.steps++; m.steps > maxInstructions {
			return false
		}
		op := c.u8()
		var further bool
		switch op & 0xc0 {
		case cfaAdvanceLoc:
			further = m.advance(uint64(op & 0x3f))
		case cfaOffset:
			m.set(uint64(op&0x3f), rule{kind: offset, n: int64(c.uleb()) * m.fde.cie.data})
			further = true
		case cfaRestore:
			further = m.restore(uint64(op & 0x3f))
		default:
			done, ok := m.move(op, &c)
			if !done {
				ok = m.other(op, &c)
			}
			if !ok {
				return false
			}
			further = m.at <= m.until
		}
		if c.bad {
			return false
		}
		if !further {
			return m.at > m.until // else it was an instruction that is refused
		}
	}
	return !c.bad
}

// advance goes on to a later address, and returns whether that is still at or before the one that is asked for.
func (m *machine) advance(delta uint64) bool {
	m.at += delta * m.fde.cie.code
	return m.at <= m.until
}

// move executes an instruction that goes on to another address. done is false if it is none.
func (m *machine) move(op uint8, c *cursor) (done, ok bool) {
	switch op {
	case cfaSetLoc:
		m.at = c.pointer(m.fde.cie.encoding, 0)
	case cfaAdvanceLoc1:
		m.advance(uint64(c.u8()))
	case cfaAdvanceLoc2:
		m.advance(uint64(c.u16()))
	case cfaAdvanceLoc4:
		m.advance(uint64(c.u32()))
	case cfaMIPSAdvanceLoc8:
		m.advance(c.u64())
	default:
		return false, false
	}
	return true, !c.bad
}

// other executes an instruction that sets rules.
func (m *machine) other(op uint8, c *cursor) bool {
	data := m.fde.cie.data
	switch op {
	case cfaNop:
	case cfaGNUArgsSize:
		c.uleb()
	case cfaNegateRAState, cfaNegateRAStateWithPC: // whether return addresses are signed, which is taken off anyway
		return m.t.arch.negatesRAState
	case cfaDefCFA:
		return m.frame(c.uleb(), int64(c.uleb()))
	case cfaDefCFASF:
		return m.frame(c.uleb(), c.sleb()*data)
	case cfaDefCFARegister:
		return m.now.frame.kind == register && m.frame(c.uleb(), m.now.frame.n)
	case cfaDefCFAOffset:
		return m.now.frame.kind == register && m.frame(uint64(m.now.frame.reg), int64(c.uleb()))
	case cfaDefCFAOffsetSF:
		return m.now.frame.kind == register && m.frame(uint64(m.now.frame.reg), c.sleb()*data)
	case cfaDefCFAExpression:
		m.now.frame = programRule(expression, block(c))
	case cfaUndefined:
		m.set(c.uleb(), rule{kind: undefined})
	case cfaSameValue:
		m.set(c.uleb(), rule{kind: same})
	case cfaOffsetExtended:
		m.set(c.uleb(), rule{kind: offset, n: int64(c.uleb()) * data})
	case cfaOffsetExtendedSF:
		m.set(c.uleb(), rule{kind: offset, n: c.sleb() * data})
	case cfaGNUNegOffsetExtended:
		m.set(c.uleb(), rule{kind: offset, n: -int64(c.uleb()) * data})
	case cfaValOffset:
		m.set(c.uleb(), rule{kind: valueOffset, n: int64(c.uleb()) * data})
	case cfaValOffsetSF:
		m.set(c.uleb(), rule{kind: valueOffset, n: c.sleb() * data})
	case cfaRegister:
		column, from := c.uleb(), c.uleb()
		if from >= m.t.arch.columns {
			m.set(column, rule{kind: undefined}) // a register that is not followed
			break
		}
		m.set(column, rule{kind: register, reg: uint8(from)})
	case cfaExpression:
		m.set(c.uleb(), programRule(expression, block(c)))
	case cfaValExpression:
		m.set(c.uleb(), programRule(valueOfExpression, block(c)))
	case cfaRestoreExtended:
		return m.restore(c.uleb())
	case cfaRememberState:
		m.steps += rememberCost
		m.remembered = append(m.remembered, m.now)
		return len(m.remembered) <= maxRemembered
	case cfaRestoreState:
		last := len(m.remembered) - 1
		if last < 0 {
			return false
		}
		m.now, m.remembered = m.remembered[last], m.remembered[:last]
	default:
		return false
	}
	return !c.bad
}

// frame sets the rule of the frame's address to a register and an offset.
func (m *machine) frame(reg uint64, n int64) bool {
	if reg >= m.t.arch.columns {
		return false
	}
	m.now.frame = rule{kind: register, reg: uint8(reg), n: n}
	return true
}

// set sets the rule of a register, if that is one that is followed.
func (m *machine) set(column uint64, r rule) {
	if column < m.t.arch.columns {
		m.now.rules[column] = r
	}
}

// restore sets the rule of a register to the one that it began with. The CIE's own instructions have none.
func (m *machine) restore(column uint64) bool {
	if m.initial == nil {
		return false
	}
	if column < m.t.arch.columns {
		m.now.rules[column] = m.initial.rules[column]
	}
	return true
}

// block skips bytes that have their length in front.
func block(c *cursor) span {
	n := c.uleb()
	from := c.at
	c.take(n)
	return span{uint32(from), uint32(c.at)}
}
