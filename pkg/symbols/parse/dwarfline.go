package parse

import (
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"path"
	"strings"
	"unsafe"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// These bound the line tables of a file.
const (
	maxSequence = 1 << 20 // rows of a sequence, 24 bytes each
	maxRows     = 16 << 20
	maxRowBytes = 64 << 20 // bytes of all stored rows
)

// unitFiles are the source files of a unit.
type unitFiles struct {
	folder string // the compilation folder
	main   string // the path of the unit's own file
	all    []*dwarf.LineFile
}

// path returns a file's path. Package dwarf leaves DWARF 5 paths relative to the unit's folder. It also prepends the folder to
// the path of the unit's own file, even if that path is absolute, as clang writes it.
func (u *unitFiles) path(f *dwarf.LineFile) string {
	switch {
	case u.folder == "":
	case strings.HasPrefix(u.main, "/") && f.Name == path.Join(u.folder, u.main):
		return path.Clean(u.main)
	case f.Name[0] != '/' && !strings.HasPrefix(f.Name, u.folder+"/"):
		return path.Join(u.folder, f.Name)
	}
	return path.Clean(f.Name)
}

// fileNumber returns the number of a source file in Positions.Files, and adds new files. It returns 0 if the name cannot be
// stored.
func (d *dwarfReader) fileNumber(f *dwarf.LineFile, of *unitFiles) uint32 {
	if f == nil || f.Name == "" || len(of.folder)+1+max(len(f.Name), len(of.main)) > symtab.MaxPath {
		return 0
	}
	name := of.path(f)
	n, ok := d.fileNumbers[name]
	if !ok {
		const entry = 64 // bytes of an entry of the map
		if d.fileBytes += entry + len(name); d.fileBytes > d.limits.Names {
			return 0
		}
		d.keep(entry + 2*len(name))
		d.files.Add([]byte(name))
		n = uint32(d.files.Count)
		d.fileNumbers[name] = n
	}
	return n
}

// lineRow is a row of a line table.
type lineRow struct {
	addr uint64
	file uint32
	line int64
}

// readLines stores the line table of a unit.
func (d *dwarfReader) readLines(table *dwarf.LineReader, files *unitFiles) {
	rows := d.sequence[:0]
	defer func() { d.sequence = rows[:0] }()
	var e dwarf.LineEntry
	var file *dwarf.LineFile
	number := uint32(0)
	for len(rows) < maxSequence && d.rows+len(rows) < maxRows && len(d.out.Rows)+12*len(d.out.Pieces) < maxRowBytes && !d.late() {
		if table.Next(&e) != nil {
			return
		}
		if e.EndSequence {
			d.takeRows(rows, e.Address)
			rows = rows[:0]
			continue
		}
		if e.File != file {
			file, number = e.File, d.fileNumber(e.File, files)
		}
		row := lineRow{addr: e.Address, file: number, line: int64(e.Line)}
		// Of several rows with the same address, the last one counts. A row with the same line as the previous row adds nothing.
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
}

// takeRows stores a sequence of rows, sorted by address, that ends before the address end. The linker leaves sequences of removed
// functions at 0, or at other addresses without code. takeRows drops these sequences.
func (d *dwarfReader) takeRows(rows []lineRow, end uint64) {
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
		// In a piece with fewer than PieceRows rows, a distance beyond every address marks the end.
		o.Rows = binary.AppendUvarint(o.Rows, 1<<40)
	}
}
