package cfi

// cie is what a number of functions have in common (a Common Information Entry).
type cie struct {
	code, ra  uint64 // the factor of addresses; the column of the return address
	data      int64  // the factor of offsets
	encoding  uint8  // of addresses
	augmented bool   // each FDE says how much there is that this package has no use for
	signal    bool   // the frame is one that the kernel makes for a signal
	program   span   // the instructions that come before those of a function
}

// fde are the rules of one function (a Frame Description Entry).
type fde struct {
	begin, size uint64 // ELF virtual addresses
	cie         cie
	program     span
}

// span is a part of Table.frames.
type span struct{ from, to uint32 }

// record returns what is in the record at an offset in .eh_frame, and the offset of the next one. The first four bytes say
// what it is. ok is false at the end, and where the record goes past it.
func (t *Table) record(off uint64) (c cursor, next uint64, ok bool) {
	n := uint64(len(t.frames))
	if off > n || n-off < 8 {
		return cursor{}, 0, false
	}
	c = cursor{b: t.frames, at: int(off), base: t.addr}
	length := uint64(c.u32())
	if length < 4 || length > n-uint64(c.at) { // also the records of 64-bit DWARF, which nobody makes: 0xffffffff
		return cursor{}, 0, false
	}
	next = uint64(c.at) + length
	c.b = c.b[:next]
	return c, next, true
}

// cieAt decodes a CIE.
func (t *Table) cieAt(off uint64) (e cie, ok bool) {
	c, _, ok := t.record(off)
	if !ok || c.u32() != 0 {
		return cie{}, false
	}
	version := c.u8()
	begin := c.at
	for c.u8() != 0 { // bad, which ends it, is also a 0
	}
	if c.bad {
		return cie{}, false
	}
	augmentation := c.b[begin : c.at-1]
	switch version {
	case 1, 3:
	case 4:
		if address, segment := c.u8(), c.u8(); address != 8 || segment != 0 {
			return cie{}, false
		}
	default:
		return cie{}, false
	}
	e.code, e.data = c.uleb(), c.sleb()
	if version == 1 {
		e.ra = uint64(c.u8())
	} else {
		e.ra = c.uleb()
	}
	if len(augmentation) > 0 && !e.augment(&c, augmentation) {
		return cie{}, false
	}
	e.program = span{uint32(c.at), uint32(len(c.b))}
	return e, !c.bad && e.ra < t.arch.columns
}

// augment decodes what a CIE has in addition.
func (e *cie) augment(c *cursor, letters []byte) bool {
	if letters[0] != 'z' {
		return false
	}
	e.augmented = true
	extra := cursor{b: c.take(c.uleb())}
	for _, letter := range letters[1:] {
		switch letter {
		case 'R':
			e.encoding = extra.u8()
		case 'S':
			e.signal = true
		case 'L':
			extra.u8()
		case 'P': // its place, which may have to be aligned in a way that is refused, is followed by nothing but its size
			extra.number(extra.u8())
		case 'B', 'G': // how arm64 signs return addresses and tags stacks
		default:
			return false
		}
	}
	return !c.bad && !extra.bad
}

// fdeAt decodes an FDE.
func (t *Table) fdeAt(off uint64) (f fde, ok bool) {
	c, _, ok := t.record(off)
	if !ok {
		return fde{}, false
	}
	place := uint64(c.at)
	back := uint64(c.u32())
	if back == 0 || back > place { // 0: it is a CIE
		return fde{}, false
	}
	if f.cie, ok = t.cieAt(place - back); !ok {
		return fde{}, false
	}
	return f, f.decode(&c)
}

// decode decodes an FDE, of which the CIE is known, from its address on.
func (f *fde) decode(c *cursor) bool {
	f.begin = c.pointer(f.cie.encoding, 0)
	f.size = c.number(f.cie.encoding)
	if f.cie.augmented {
		c.take(c.uleb())
	}
	f.program = span{uint32(c.at), uint32(len(c.b))}
	return !c.bad
}
