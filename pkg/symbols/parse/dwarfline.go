package parse

import (
	"debug/elf"
	"encoding/binary"
	"path"
	"strings"
	"unsafe"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// Bounds of the tables of lines of one unit, and of a file.
const (
	maxUnitFiles = 64 << 10
	maxFolders   = 4 << 20 // bytes of the paths of a unit's folders
	maxSequence  = 1 << 20 // rows of a sequence, of 24 bytes each
	maxRows      = 16 << 20
	maxRowBytes  = 64 << 20 // bytes of all rows, as they are kept
)

// lineProgram is the header of a unit's table of lines (DWARF 5, 6.2.4).
type lineProgram struct {
	cursor                      // stands at the program
	version, address            uint64
	minLength, maxOps, lineSpan uint64
	lineBase                    int64
	opcodes                     []uint64 // by standard opcode, from 1 on: how many operands it has
	files                       []uint32 // by number of a file in this table: its number in positions.files
}

// fileNumber returns the number of a source file in positions.files, and adds the file if it is new; 0 if its name
// cannot be kept.
func (d *dwarfReader) fileNumber(dir, name string) uint32 {
	if name == "" {
		return 0
	}
	if d.late(len(dir)+len(name)) || len(dir)+1+len(name) > symtab.MaxPath {
		return 0
	}
	name = path.Clean(join(dir, name))
	n, ok := d.fileNumbers[name]
	if !ok {
		const entry = 64 // what an entry of the map takes, in bytes
		if d.fileBytes+entry+len(name) > d.limits.Names {
			return 0
		}
		d.fileBytes += entry + len(name)
		d.keep(entry + 2*len(name))
		d.files.Add([]byte(name))
		n = uint32(d.files.Count)
		d.fileNumbers[name] = n
	}
	return n
}

// lineHeader reads the header at an offset, nil if it is not one.
func (d *dwarfReader) lineHeader(off uint64, folder string, unit *unit) *lineProgram {
	p := &lineProgram{cursor: cursorAt(d.sections[".debug_line"], off, d.order), address: unit.address}
	length, width := p.length()
	if p.bad || length > uint64(len(p.b)-p.at) {
		return nil
	}
	p.b = p.b[:p.at+int(length)]
	if p.version = p.fixed(2); p.version < 2 || p.version > 5 {
		return nil
	}
	if p.version >= 5 {
		p.address = p.fixed(1)
		p.skip(1)
	}
	header := p.fixed(width)
	if p.bad || header > uint64(len(p.b)-p.at) {
		return nil
	}
	program := p.at + int(header)
	p.minLength, p.maxOps = p.fixed(1), 1
	if p.version >= 4 {
		p.maxOps = p.fixed(1)
	}
	p.skip(1)
	p.lineBase, p.lineSpan = int64(int8(p.fixed(1))), p.fixed(1)
	base := p.fixed(1)
	p.opcodes = make([]uint64, base)
	for i := 1; i < len(p.opcodes); i++ {
		p.opcodes[i] = p.fixed(1)
	}
	if p.bad || p.lineSpan == 0 || base == 0 || p.maxOps != 1 {
		return nil
	}
	if p.version >= 5 {
		d.lineFiles5(p, folder, width)
	} else {
		d.lineFiles(p, folder)
	}
	if p.bad {
		return nil
	}
	p.at = program
	return p
}

// lineFiles reads the lists of folders and files before DWARF 5: both count from 1, folder 0 is the unit's.
func (d *dwarfReader) lineFiles(p *lineProgram, folder string) {
	folders := []string{folder}
	left := maxFolders
	for len(folders) < maxUnitFiles && left > 0 {
		text := p.text(maxInline)
		if len(text) == 0 {
			break
		}
		in := d.folder(folder, text)
		left -= len(in)
		folders = append(folders, in)
	}
	p.files = []uint32{0}
	for len(p.files) < maxUnitFiles {
		name := p.text(maxInline)
		if len(name) == 0 || d.late(16+len(name)) {
			break
		}
		in := p.uleb()
		p.uleb()
		p.uleb()
		dir := ""
		if in < uint64(len(folders)) {
			dir = folders[in]
		}
		p.files = append(p.files, d.fileNumber(dir, string(name)))
	}
}

// folder returns the path of a folder in another one, "" for one that is too long.
func (d *dwarfReader) folder(in string, name []byte) string {
	if d.late(16+len(name)) || len(in)+1+len(name) > symtab.MaxPath {
		return ""
	}
	return join(in, string(name))
}

func join(dir, name string) string {
	if strings.HasPrefix(name, "/") || dir == "" {
		return name
	}
	return dir + "/" + name
}

// lineFiles5 reads the lists of DWARF 5, each with a description of its entries' format in front. They count from 0.
func (d *dwarfReader) lineFiles5(p *lineProgram, folder string, width uint64) {
	var folders []string
	left := maxFolders
	list := func(take func(name []byte, folder uint64)) {
		formats := make([][2]uint64, p.fixed(1))
		for i := range formats {
			formats[i] = [2]uint64{p.uleb(), p.uleb()}
		}
		count := p.uleb()
		if len(formats) == 0 && count > 0 || count > maxUnitFiles {
			p.bad = true
			return
		}
		u := &unit{width: width, address: p.address, version: 5}
		for range count {
			if p.bad || left <= 0 || d.late(16*len(formats)) {
				p.bad = true
				return
			}
			var name []byte
			in := uint64(0)
			for _, f := range formats {
				v := d.value(&p.cursor, f[1], u, 0)
				switch f[0] {
				case 1: // DW_LNCT_path
					name = d.text(v, u)
				case 2: // DW_LNCT_directory_index
					in = v.n
				}
			}
			take(name, in)
		}
	}
	list(func(name []byte, _ uint64) {
		in := folder
		switch {
		case len(folders) > 0:
			in = folders[0]
		case string(name) == folder: // the first one is the unit's
			in = ""
		}
		folders = append(folders, d.folder(in, name))
		left -= len(folders[len(folders)-1])
	})
	list(func(name []byte, in uint64) {
		dir := ""
		if in < uint64(len(folders)) {
			dir = folders[in]
		}
		if len(name) > symtab.MaxPath {
			name = nil
		}
		p.files = append(p.files, d.fileNumber(dir, string(name)))
	})
}

// lineRow is one row of a table of lines.
type lineRow struct {
	addr uint64
	file uint32
	line int64
}

// readLines runs a program and keeps the rows that it makes (DWARF 5, 6.2.5).
func (d *dwarfReader) readLines(p *lineProgram) {
	rows := d.sequence[:0]
	defer func() { d.sequence = rows[:0] }()
	start := lineRow{line: 1}
	state, file := start, uint64(1)
	emit := func() {
		row := state
		row.file = 0
		if file < uint64(len(p.files)) {
			row.file = p.files[file]
		}
		// Of rows at the same address the last one counts; a row of the same line as the one before adds nothing.
		switch n := len(rows); {
		case n > 0 && rows[n-1].addr == row.addr:
			rows[n-1] = row
		case n > 0 && rows[n-1].file == row.file && rows[n-1].line == row.line:
		default:
			if len(rows) == cap(rows) {
				d.keep(int(unsafe.Sizeof(row)) * len(rows))
			}
			rows = append(rows, row)
		}
	}
	for p.at < len(p.b) && !p.bad && len(rows) < maxSequence && d.rows+len(rows) < maxRows && len(d.out.Rows)+12*len(d.out.Pieces) < maxRowBytes && !d.late(8) {
		op := p.fixed(1)
		switch {
		case op >= uint64(len(p.opcodes)): // special
			op -= uint64(len(p.opcodes))
			state.addr += op / p.lineSpan * p.minLength
			state.line += p.lineBase + int64(op%p.lineSpan)
			emit()
		case op == 0:
			size := p.uleb()
			next := uint64(p.at) + size
			if p.bad || size == 0 || next > uint64(len(p.b)) || next < size {
				return
			}
			switch p.fixed(1) {
			case 1: // DW_LNE_end_sequence
				d.takeRows(rows, state.addr)
				rows, state, file = rows[:0], start, 1
			case 2: // DW_LNE_set_address
				state.addr = p.fixed(size - 1)
			}
			p.at = int(next)
		case op == 1: // DW_LNS_copy
			emit()
		case op == 2: // DW_LNS_advance_pc
			state.addr += p.uleb() * p.minLength
		case op == 3: // DW_LNS_advance_line
			state.line += p.sleb()
		case op == 4: // DW_LNS_set_file
			file = p.uleb()
		case op == 8: // DW_LNS_const_add_pc
			state.addr += (255 - uint64(len(p.opcodes))) / p.lineSpan * p.minLength
		case op == 9: // DW_LNS_fixed_advance_pc
			state.addr += p.fixed(2)
		default:
			for range p.opcodes[op] {
				p.uleb()
			}
		}
	}
}

// takeRows keeps a sequence of rows in order of their addresses, which ends before the address end. The sequence of a
// function that the linker has left out begins at 0, or somewhere else without code, and is dropped.
func (d *dwarfReader) takeRows(rows []lineRow, end uint64) {
	d.late(symtab.MaxSegments + 8*len(rows))
	if len(rows) == 0 || rows[0].addr < d.out.Base || end <= rows[0].addr || end-d.out.Base > 1<<32-1 || !d.isCode(elf.SHN_LORESERVE, rows[0].addr) {
		return
	}
	for i := 1; i < len(rows); i++ {
		if rows[i].addr < rows[i-1].addr || rows[i].addr > end {
			return
		}
	}
	d.rows += len(rows)
	o := &d.out
	before := len(o.Rows) + 12*len(o.Pieces)
	defer func() { d.keep(len(o.Rows) + 12*len(o.Pieces) - before) }()
	for i := 0; i < len(rows); i += symtab.PieceRows {
		part := rows[i:min(i+symtab.PieceRows, len(rows))]
		last := end
		if i+symtab.PieceRows < len(rows) {
			last = rows[i+symtab.PieceRows].addr
		}
		o.Pieces = append(o.Pieces, symtab.Piece{Start: uint32(part[0].addr - o.Base), End: uint32(last - o.Base), At: uint32(len(o.Rows))})
		before := lineRow{addr: part[0].addr}
		for _, r := range part {
			o.Rows = binary.AppendUvarint(o.Rows, r.addr-before.addr)
			o.Rows = binary.AppendVarint(o.Rows, int64(r.file)-int64(before.file))
			o.Rows = binary.AppendVarint(o.Rows, r.line-before.line)
			before = r
		}
		// A distance beyond every address ends the piece, for one that has less than pieceRows rows.
		o.Rows = binary.AppendUvarint(o.Rows, 1<<40)
	}
}
