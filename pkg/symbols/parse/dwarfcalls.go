package parse

import (
	"debug/dwarf"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// maxNesting bounds the nesting of entries.
const maxNesting = 512

// attrMIPSLinkageName is the attribute of linkage names before DWARF 4.
const attrMIPSLinkageName = dwarf.Attr(0x2007)

// readEntries reads the lines and the inlined calls of all units.
func (d *dwarfReader) readEntries() {
	tables := map[int64]bool{} // tables that were read, by offset, because units can share one
	names := d.data.Reader()
	var files unitFiles
	var parents []uint32 // by level: the inlined call around the current entries
	for entries := d.data.Reader(); !d.late(); {
		e, err := entries.Next()
		if err != nil || e == nil {
			return
		}
		parent := uint32(symtab.NoCall)
		if len(parents) > 0 {
			parent = parents[len(parents)-1]
		}
		switch e.Tag {
		case 0: // the end of a list of children
			parents = parents[:max(len(parents)-1, 0)]
			continue
		case dwarf.TagCompileUnit, dwarf.TagPartialUnit, dwarf.TagTypeUnit, dwarf.TagSkeletonUnit:
			parents, files = parents[:0], unitFiles{}
			files.folder, _ = e.Val(dwarf.AttrCompDir).(string)
			files.main, _ = e.Val(dwarf.AttrName).(string)
			if table, err := d.data.LineReader(e); err == nil && table != nil {
				files.all = table.Files()
				if off, ok := e.Val(dwarf.AttrStmtList).(int64); ok && !tables[off] {
					tables[off] = true
					d.readLines(table, &files)
				}
			}
		case dwarf.TagSubprogram:
			parent = symtab.NoCall
		case dwarf.TagInlinedSubroutine:
			parent = d.takeCall(e, parent, names, &files, len(parents))
		case dwarf.TagArrayType, dwarf.TagClassType, dwarf.TagEnumerationType, dwarf.TagPointerType, dwarf.TagStructType, dwarf.TagSubroutineType, dwarf.TagUnionType:
			// Type units have no code.
			if next, ok := e.Val(dwarf.AttrSibling).(dwarf.Offset); ok && e.Children && next > e.Offset {
				entries.Seek(next)
				continue
			}
		}
		if e.Children {
			if len(parents) >= maxNesting {
				return
			}
			parents = append(parents, parent)
		}
	}
}

// takeCall adds an inlined call and returns its number. It returns parent if the call is useless or if there are too many calls.
func (d *dwarfReader) takeCall(e *dwarf.Entry, parent uint32, names *dwarf.Reader, files *unitFiles, depth int) uint32 {
	o := &d.out
	ranges, err := d.data.Ranges(e)
	ranges = slices.DeleteFunc(ranges, func(r [2]uint64) bool {
		return r[0] == 0 || r[0] < o.Base || r[1] <= r[0] || r[1]-o.Base > 1<<32-1 // code at 0 was removed by the linker
	})
	origin, ok := e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset)
	if err != nil || !ok || len(ranges) == 0 || len(o.Inlined) >= d.limits.Symbols || len(d.found)+len(ranges) > d.limits.Symbols {
		return parent
	}
	name, ok := d.nameOf(origin, names)
	if !ok {
		return parent
	}
	call := symtab.InlinedCall{Name: name, Parent: parent}
	file, _ := e.Val(dwarf.AttrCallFile).(int64)
	line, _ := e.Val(dwarf.AttrCallLine).(int64)
	if file >= 0 && file < int64(len(files.all)) && line >= 0 && line < 1<<31 {
		call.File, call.Line = d.fileNumber(files.all[file], files), uint32(line)
	}
	number := uint32(len(o.Inlined))
	d.keep(16 + len(ranges)*2*24)
	o.Inlined = append(o.Inlined, call)
	rank := uint8(255 - min(depth, 255)) // among equal ranges, the innermost call counts
	for _, r := range ranges {
		d.found = append(d.found, symbol{addr: r[0], size: r[1] - r[0], name: number, rank: rank})
	}
	return number
}

// nameOf returns the index in d.names of the function at offset off. ok is false if the function has no name.
func (d *dwarfReader) nameOf(off dwarf.Offset, entries *dwarf.Reader) (uint32, bool) {
	if n, ok := d.nameNumbers[off]; ok {
		return n, n != symtab.NoCall
	}
	number := uint32(symtab.NoCall)
	if text := functionName(off, entries); text != "" && len(text) <= symtab.MaxName && len(d.names.Block) < d.limits.Names {
		number = uint32(d.names.Count)
		d.names.Add([]byte(text))
		d.keep(len(text))
	}
	if number != symtab.NoCall || len(d.nameNumbers) < d.limits.Symbols {
		d.nameNumbers[off] = number
		d.keep(16) // for the entry of the map
	}
	return number, number != symtab.NoCall
}

// functionName returns the name of the function whose entry is at an offset. It follows references to other entries of the
// function. It prefers the linkage name, because symbol tables also contain linkage names.
func functionName(off dwarf.Offset, entries *dwarf.Reader) (name string) {
	for range 8 {
		entries.Seek(off)
		e, err := entries.Next()
		if err != nil || e == nil {
			break
		}
		for _, attr := range []dwarf.Attr{dwarf.AttrLinkageName, attrMIPSLinkageName} {
			if text, ok := e.Val(attr).(string); ok && text != "" {
				return text
			}
		}
		if text, ok := e.Val(dwarf.AttrName).(string); ok && name == "" {
			name = text
		}
		var ok bool
		if off, ok = e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset); !ok {
			if off, ok = e.Val(dwarf.AttrSpecification).(dwarf.Offset); !ok {
				break
			}
		}
	}
	return name
}
