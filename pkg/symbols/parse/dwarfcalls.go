package parse

import (
	"cmp"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// readUnit reads the lines of a unit and the inlined calls in it. lines are the tables of lines that were read
// already, by offset: units can share one.
func (d *dwarfReader) readUnit(u *unit, lines map[uint64]bool) {
	abbrevs := d.abbrevsAt(u.abbrevs)
	c := cursorAt(d.sections[".debug_info"], u.first, d.order)
	c.b = c.b[:u.end]
	var e description
	if !d.next(&c, u, abbrevs, &e) {
		return
	}
	u.strBase, u.addrBase, u.rangesBase = e.strBase, e.addrBase, e.rangesBase
	u.low = d.addr(e.low, u)
	var files []uint32
	if e.hasStmtList {
		if p := d.lineHeader(e.stmtList.n, string(d.text(e.dir, u)), u); p != nil {
			files = p.files
			if !lines[e.stmtList.n] && len(lines) < maxUnits {
				lines[e.stmtList.n] = true
				d.readLines(p)
			}
		}
	}
	if !e.abbrev.children {
		return
	}
	parents := []uint32{symtab.NoCall} // by level of nesting: the inlined call around the descriptions that are read
	for len(parents) > 0 && uint64(c.at) < u.end && !d.late(16) {
		if !d.next(&c, u, abbrevs, &e) {
			if c.bad {
				return
			}
			parents = parents[:len(parents)-1]
			continue
		}
		parent := parents[len(parents)-1]
		switch e.abbrev.tag {
		case tagSubprogram:
			parent = symtab.NoCall
		case tagInlined:
			parent = d.takeCall(&e, u, parent, files, len(parents))
		case 0x02, 0x04, 0x0f, 0x10, 0x13, 0x15, 0x17: // types: no code is in them
			if e.abbrev.children && e.sibling > uint64(c.at) && e.sibling < u.end {
				c.at = int(e.sibling)
				continue
			}
		}
		if e.abbrev.children {
			if len(parents) >= maxNesting {
				return
			}
			parents = append(parents, parent)
		}
	}
}

// takeCall adds an inlined call and returns its number; parent if the call is not of use or there are too many.
func (d *dwarfReader) takeCall(e *description, u *unit, parent uint32, files []uint32, depth int) uint32 {
	o := &d.out
	ranges := d.ranges(e, u)
	if len(ranges) == 0 || len(o.Inlined) >= d.limits.Symbols || len(d.found)+len(ranges) > d.limits.Symbols {
		return parent
	}
	name, ok := d.nameOf(d.reference(e.origin, u))
	if !ok {
		return parent
	}
	call := symtab.InlinedCall{Name: name, Parent: parent}
	if e.file < uint64(len(files)) && e.line < 1<<31 {
		call.File, call.Line = files[e.file], uint32(e.line)
	}
	number := uint32(len(o.Inlined))
	d.keep(16 + len(ranges)*2*24)
	o.Inlined = append(o.Inlined, call)
	rank := uint8(255 - min(depth, 255)) // of those with the same range the innermost counts
	for _, r := range ranges {
		if r[0] >= o.Base && r[1]-o.Base <= 1<<32-1 {
			d.found = append(d.found, symbol{addr: r[0], size: r[1] - r[0], name: number, rank: rank})
		}
	}
	return number
}

// nameOf returns the number in d.names of the name of the function that is described at an offset. ok is false if it
// has none.
func (d *dwarfReader) nameOf(off uint64) (uint32, bool) {
	if n, ok := d.nameNumbers[off]; ok {
		return n, n != symtab.NoCall
	}
	number := uint32(symtab.NoCall)
	if text := d.functionName(off); len(text) > 0 && len(text) <= symtab.MaxName && len(d.names.Block) < d.limits.Names {
		number = uint32(d.names.Count)
		d.names.Add(text)
		d.keep(len(text))
	}
	if number != symtab.NoCall || len(d.nameNumbers) < d.limits.Symbols {
		d.nameNumbers[off] = number
		d.keep(16) // as an entry of the map
	}
	return number, number != symtab.NoCall
}

// functionName returns the name of the function that is described at an offset, following references to the
// descriptions that have more of it. The linkage name is preferred, because symbol tables have that one, too.
func (d *dwarfReader) functionName(off uint64) []byte {
	var name []byte
	for range 8 {
		i, found := slices.BinarySearchFunc(d.units, off, func(u unit, off uint64) int { return cmp.Compare(u.start, off) })
		if !found {
			i--
		}
		if i < 0 || off < d.units[i].first || off >= d.units[i].end {
			break
		}
		u := &d.units[i]
		c := cursorAt(d.sections[".debug_info"], off, d.order)
		c.b = c.b[:u.end]
		var e description
		if !d.next(&c, u, d.abbrevsAt(u.abbrevs), &e) {
			break
		}
		if text := d.text(e.linkage, u); len(text) > 0 {
			return text
		}
		if text := d.text(e.name, u); len(text) > 0 && name == nil {
			name = text
		}
		if off = d.reference(e.origin, u); off == 0 {
			off = d.reference(e.spec, u)
		}
		if off == 0 {
			break
		}
	}
	return name
}

// ranges returns the address ranges of a description's code, each as its start and its end.
func (d *dwarfReader) ranges(e *description, u *unit) [][2]uint64 {
	if !e.hasRanges {
		if !e.hasHigh {
			return nil
		}
		low, high := d.addr(e.low, u), e.high.n
		if e.high.form == 0x01 || e.high.form == 0x1b || e.high.form >= 0x29 && e.high.form <= 0x2c {
			high = d.addr(e.high, u)
		} else {
			high += low
		}
		if low == 0 || high <= low {
			return nil
		}
		return [][2]uint64{{low, high}}
	}
	if u.version < 5 {
		return d.oldRanges(e.ranges.n, u)
	}
	off := e.ranges.n
	if e.ranges.form == 0x23 { // rnglistx
		if off > 1<<32 {
			return nil
		}
		c := cursorAt(d.sections[".debug_rnglists"], u.rangesBase+off*u.width, d.order)
		off = u.rangesBase + c.fixed(u.width)
	}
	return d.newRanges(off, u)
}

// oldRanges reads a list of .debug_ranges.
func (d *dwarfReader) oldRanges(off uint64, u *unit) (ranges [][2]uint64) {
	c := cursorAt(d.sections[".debug_ranges"], off, d.order)
	base := u.low
	for range maxRangesOf {
		if d.late(16) {
			return nil
		}
		begin, end := c.fixed(u.address), c.fixed(u.address)
		switch {
		case c.bad || begin == 0 && end == 0:
			return ranges
		case begin == 1<<(8*u.address)-1:
			base = end
		case begin < end:
			ranges = append(ranges, [2]uint64{base + begin, base + end})
		}
	}
	return ranges
}

// newRanges reads a list of .debug_rnglists (DWARF 5, 2.17.3).
func (d *dwarfReader) newRanges(off uint64, u *unit) (ranges [][2]uint64) {
	c := cursorAt(d.sections[".debug_rnglists"], off, d.order)
	base := u.low
	indexed := func() uint64 { return d.addr(attrValue{form: 0x1b, n: c.uleb()}, u) }
	for range maxRangesOf {
		if d.late(16) {
			return nil
		}
		var begin, end uint64
		switch kind := c.fixed(1); kind {
		case 0: // end_of_list
			return ranges
		case 1: // base_addressx
			base = indexed()
			continue
		case 2: // startx_endx
			begin, end = indexed(), indexed()
		case 3: // startx_length
			begin = indexed()
			end = begin + c.uleb()
		case 4: // offset_pair
			begin, end = base+c.uleb(), base+c.uleb()
		case 5: // base_address
			base = c.fixed(u.address)
			continue
		case 6: // start_end
			begin, end = c.fixed(u.address), c.fixed(u.address)
		case 7: // start_length
			begin = c.fixed(u.address)
			end = begin + c.uleb()
		default:
			return ranges
		}
		if c.bad {
			return ranges
		}
		if begin < end && begin != 0 {
			ranges = append(ranges, [2]uint64{begin, end})
		}
	}
	return ranges
}
