package parse

import (
	"slices"
	"unsafe"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// Bounds of the descriptions of one file.
const (
	maxUnits      = 256 << 10
	maxAbbrevs    = 64 << 10 // of one unit
	maxAttributes = 128      // of one description
	maxTables     = 1024     // of abbreviations that are kept
	maxHeld       = 1 << 20  // attributes of the abbreviations that are kept, of 24 bytes each
	maxInline     = 64 << 10 // bytes of a text that is in a description itself
	maxNesting    = 512      // of descriptions
	maxRangesOf   = 16 << 10 // of one call
)

// The numbers of DWARF that are used here (DWARF 5, chapter 7).
const (
	tagInlined    = 0x1d
	tagSubprogram = 0x2e

	attrSibling, attrName, attrStmtList, attrLowPC, attrHighPC, attrCompDir = 0x01, 0x03, 0x10, 0x11, 0x12, 0x1b
	attrOrigin, attrSpecification, attrRanges, attrCallFile, attrCallLine   = 0x31, 0x47, 0x55, 0x58, 0x59
	attrLinkageName, attrStrBase, attrAddrBase, attrRangesBase              = 0x6e, 0x72, 0x73, 0x74
	attrMIPSLinkageName                                                     = 0x2007
)

// unit is the part of .debug_info that one compilation has made: a tree of descriptions (DIEs).
type unit struct {
	start, end, first       uint64 // in .debug_info: all of it; first is its root description
	version, width, address uint64
	abbrevs                 uint64
	low                     uint64
	strBase, addrBase       uint64
	rangesBase              uint64
}

// abbrev is an abbreviation: which attributes a kind of description has, and in which forms.
type abbrev struct {
	tag      uint64
	children bool
	attrs    []attribute
}

type attribute struct {
	name, form uint64
	implicit   int64
}

// attrValue is the value of an attribute: a number or an offset, or a text.
type attrValue struct {
	form uint64
	n    uint64
	b    []byte
}

// abbrevsAt returns the abbreviations at an offset, by their number.
func (d *dwarfReader) abbrevsAt(off uint64) map[uint64]abbrev {
	if all, ok := d.abbrevs[off]; ok {
		return all
	}
	all := map[uint64]abbrev{}
	held := 0
	c := cursorAt(d.sections[".debug_abbrev"], off, d.order)
	for len(all) < maxAbbrevs && held < maxHeld && !d.late(64) {
		code := c.uleb()
		if code == 0 || c.bad {
			break
		}
		a := abbrev{tag: c.uleb(), children: c.fixed(1) != 0}
		for {
			at := attribute{name: c.uleb(), form: c.uleb()}
			if at.form == 0x21 { // DW_FORM_implicit_const
				at.implicit = c.sleb()
			}
			if at.name == 0 && at.form == 0 || c.bad {
				break
			}
			if a.attrs = append(a.attrs, at); len(a.attrs) > maxAttributes {
				c.bad = true
				break
			}
		}
		if len(a.attrs) > maxAttributes {
			all = nil // without this one the others cannot be read in step
			break
		}
		a.attrs = slices.Clip(a.attrs)
		all[code] = a
		const itself = 4 // what the entry of the map takes, counted in attributes
		held += itself + cap(a.attrs)
		d.late(16 * len(a.attrs))
	}
	if len(d.abbrevs) >= maxTables || d.attributes+held > maxHeld {
		clear(d.abbrevs)
		d.attributes = 0
	}
	d.abbrevs[off] = all
	d.attributes += held
	return all
}

// readUnits reads the headers of all units, and then each unit: a description can refer to one in any other unit.
func (d *dwarfReader) readUnits() {
	info := d.sections[".debug_info"]
	for off := uint64(0); off < uint64(len(info)) && len(d.units) < maxUnits && !d.late(64); {
		c := cursorAt(info, off, d.order)
		u := unit{start: off}
		var length uint64
		length, u.width = c.length()
		if c.bad || length > uint64(len(info)-c.at) {
			break
		}
		u.end = uint64(c.at) + length
		u.version = c.fixed(2)
		kind := uint64(1) // DW_UT_compile
		if u.version >= 5 {
			kind, u.address = c.fixed(1), c.fixed(1)
			u.abbrevs = c.fixed(u.width)
		} else {
			u.abbrevs, u.address = c.fixed(u.width), c.fixed(1)
		}
		switch kind {
		case 4, 5: // of split units
			c.skip(8)
		case 2, 6: // of types
			c.skip(8 + u.width)
		}
		u.first = uint64(c.at)
		off = u.end
		if !c.bad && u.version >= 2 && u.version <= 5 && (u.address == 4 || u.address == 8) {
			d.keep(int(unsafe.Sizeof(u)))
			d.units = append(d.units, u)
		}
	}
	lines := map[uint64]bool{}
	for i := range d.units {
		if d.late(256) {
			return
		}
		d.readUnit(&d.units[i], lines)
	}
}

// description is a description's (DIE's) attributes, as far as they are of use here.
type description struct {
	offset             uint64
	abbrev             abbrev
	sibling            uint64
	low, high, ranges  attrValue
	name, linkage      attrValue
	origin, spec       attrValue
	file, line         uint64
	stmtList, dir      attrValue
	strBase, addrBase  uint64
	rangesBase         uint64
	hasStmtList        bool
	hasRanges, hasHigh bool
}

// next reads a description into out. It returns false at the end of a list of children, and where c is bad.
func (d *dwarfReader) next(c *cursor, u *unit, abbrevs map[uint64]abbrev, out *description) bool {
	*out = description{offset: uint64(c.at)}
	code := c.uleb()
	if code == 0 || c.bad {
		return false
	}
	a, ok := abbrevs[code]
	if !ok {
		c.bad = true
		return false
	}
	out.abbrev = a
	d.late(16 + 4*len(a.attrs))
	for _, at := range a.attrs {
		v := d.value(c, at.form, u, at.implicit)
		switch at.name {
		case attrSibling:
			out.sibling = d.reference(v, u)
		case attrName:
			out.name = v
		case attrLinkageName, attrMIPSLinkageName:
			out.linkage = v
		case attrLowPC:
			out.low = v
		case attrHighPC:
			out.high, out.hasHigh = v, true
		case attrRanges:
			out.ranges, out.hasRanges = v, true
		case attrOrigin:
			out.origin = v
		case attrSpecification:
			out.spec = v
		case attrCallFile:
			out.file = v.n
		case attrCallLine:
			out.line = v.n
		case attrStmtList:
			out.stmtList, out.hasStmtList = v, true
		case attrCompDir:
			out.dir = v
		case attrStrBase:
			out.strBase = v.n
		case attrAddrBase:
			out.addrBase = v.n
		case attrRangesBase:
			out.rangesBase = v.n
		}
	}
	return !c.bad
}

// value reads a value of a form (DWARF 5, 7.5.6).
func (d *dwarfReader) value(c *cursor, form uint64, u *unit, implicit int64) attrValue {
	v := attrValue{form: form}
	switch form {
	case 0x01: // addr
		v.n = c.fixed(u.address)
	case 0x0b, 0x0c, 0x11, 0x25, 0x29: // data1, flag, ref1, strx1, addrx1
		v.n = c.fixed(1)
	case 0x05, 0x12, 0x26, 0x2a: // data2, ref2, strx2, addrx2
		v.n = c.fixed(2)
	case 0x27, 0x2b: // strx3, addrx3
		v.n = c.fixed(3)
	case 0x06, 0x13, 0x28, 0x2c, 0x1c: // data4, ref4, strx4, addrx4, ref_sup4
		v.n = c.fixed(4)
	case 0x07, 0x14, 0x20, 0x24: // data8, ref8, ref_sig8, ref_sup8
		v.n = c.fixed(8)
	case 0x1e: // data16
		c.skip(16)
	case 0x0d: // sdata
		v.n = uint64(c.sleb())
	case 0x0f, 0x15, 0x1a, 0x1b, 0x22, 0x23, 0x1f01, 0x1f02: // udata, ref_udata, strx, addrx, loclistx, rnglistx, GNU_addr_index, GNU_str_index
		v.n = c.uleb()
	case 0x0e, 0x17, 0x1d, 0x1f, 0x1f20, 0x1f21: // strp, sec_offset, strp_sup, line_strp, GNU_ref_alt, GNU_strp_alt
		v.n = c.fixed(u.width)
	case 0x10: // ref_addr
		if u.version == 2 {
			v.n = c.fixed(u.address)
		} else {
			v.n = c.fixed(u.width)
		}
	case 0x08: // string
		v.b = c.text(maxInline)
		d.late(len(v.b))
	case 0x03: // block2
		c.skip(c.fixed(2))
	case 0x04: // block4
		c.skip(c.fixed(4))
	case 0x0a: // block1
		c.skip(c.fixed(1))
	case 0x09, 0x18: // block, exprloc
		c.skip(c.uleb())
	case 0x19: // flag_present
		v.n = 1
	case 0x21: // implicit_const
		v.n = uint64(implicit)
	case 0x16: // indirect
		if actual := c.uleb(); actual != 0x16 {
			return d.value(c, actual, u, 0)
		}
		c.bad = true
	default:
		c.bad = true
	}
	return v
}

// text returns the text of a value, nil if it is none, or longer than maxName.
func (d *dwarfReader) text(v attrValue, u *unit) []byte {
	var in string
	off := v.n
	switch v.form {
	case 0x08:
		if len(v.b) > symtab.MaxName {
			return nil
		}
		return v.b
	case 0x0e:
		in = ".debug_str"
	case 0x1f:
		in = ".debug_line_str"
	case 0x1a, 0x25, 0x26, 0x27, 0x28, 0x1f02:
		if v.n > 1<<32 {
			return nil
		}
		c := cursorAt(d.sections[".debug_str_offsets"], u.strBase+v.n*u.width, d.order)
		if in, off = ".debug_str", c.fixed(u.width); c.bad {
			return nil
		}
	default:
		return nil
	}
	c := cursorAt(d.sections[in], off, d.order)
	text := c.text(symtab.MaxName)
	if d.late(len(text)); c.bad {
		d.late(symtab.MaxName)
	}
	return text
}

// reference returns the offset in .debug_info that a value refers to, 0 if it is no reference.
func (d *dwarfReader) reference(v attrValue, u *unit) uint64 {
	switch v.form {
	case 0x11, 0x12, 0x13, 0x14, 0x15:
		return u.start + v.n
	case 0x10:
		return v.n
	}
	return 0
}

// addr returns the address that a value is.
func (d *dwarfReader) addr(v attrValue, u *unit) uint64 {
	switch v.form {
	case 0x1b, 0x29, 0x2a, 0x2b, 0x2c, 0x1f01:
		if v.n > 1<<32 {
			return 0
		}
		c := cursorAt(d.sections[".debug_addr"], u.addrBase+v.n*u.address, d.order)
		return c.fixed(u.address)
	}
	return v.n
}
