package symtab

import "encoding/binary"

// Positions holds a file's source positions and inlined calls, from its debug information (https://dwarfstd.org). Package
// debug/dwarf trusts counts in the file, so a hostile file can exhaust the memory. So another process reads the debug
// information.
type Positions struct {
	Base  uint64
	Files Names
	// Pieces divides the rows of the line table, sorted by address.
	Pieces []Piece
	Rows   []byte
	// Starts, Sizes and Calls have one entry per range, sorted by address. Calls holds the number of the innermost inlined call
	// in the range.
	Starts, Sizes, Calls []uint32
	Inlined              []InlinedCall
	Names                Names // names of inlined functions
}

// Piece holds up to PieceRows rows, for the addresses from Start to End. Each row consists of three varints: the differences in
// address, file and line from the previous row. The first row's differences are from Start, 0 and 0.
type Piece struct {
	Start, End uint32
	At         uint32 // offset in Rows
}

// InlinedCall is an inlined call of the function Name, at File and Line in Parent.
type InlinedCall struct {
	Name, File, Line uint32
	Parent           uint32 // the call around this one; NoCall: the function itself
}

// NoCall means no inlined call.
const NoCall = 1<<32 - 1

// position returns the file and the line of an address, or "" and 0.
func (p *Positions) position(addr uint64) (file string, line int) {
	i, rel := lastFrom(addr, p.Base, len(p.Pieces), func(i int) uint32 { return p.Pieces[i].Start })
	if i < 0 || rel >= p.Pieces[i].End {
		return "", 0
	}
	b := p.Rows[p.Pieces[i].At:]
	at := p.Pieces[i].Start
	number, row := int64(0), int64(0)
	for range PieceRows {
		distance, n := binary.Uvarint(b)
		if n <= 0 || uint64(at)+distance > uint64(rel) {
			break
		}
		b = b[n:]
		at += uint32(distance)
		more, n := binary.Varint(b)
		if n <= 0 {
			break
		}
		number += more
		b = b[n:]
		if more, n = binary.Varint(b); n <= 0 {
			break
		}
		b = b[n:]
		row += more
	}
	return p.file(uint32(number)), int(max(row, 0))
}

// file returns the name of a file by its number. Numbers begin with 1; 0 means unknown.
func (p *Positions) file(number uint32) string {
	if number == 0 || int(number) > p.Files.Count {
		return ""
	}
	return p.Files.Get(int(number) - 1)
}

// expand adds the source position of an address to s, the function at the address. If functions are inlined there, it returns
// the innermost one, whose last caller is s.
func (p *Positions) expand(s Symbol, addr uint64) Symbol {
	file, line := p.position(addr)
	var chain []Symbol
	for call, depth := p.call(addr), 0; call != NoCall && depth < maxDepth; depth++ {
		c := &p.Inlined[call]
		chain = append(chain, Symbol{Name: p.Names.Get(int(c.Name)), File: file, Line: line, Source: SourceDWARF})
		file, line, call = p.file(c.File), int(c.Line), c.Parent
	}
	s.File, s.Line = file, line
	if file == "" {
		s.Line = 0
	}
	if len(chain) == 0 {
		return s
	}
	chain = append(chain, s)
	s = chain[0]
	s.Callers = chain[1:]
	return s
}

// call returns the innermost inlined call at an address, or NoCall.
func (p *Positions) call(addr uint64) uint32 {
	i, rel := lastFrom(addr, p.Base, len(p.Starts), func(i int) uint32 { return p.Starts[i] })
	if i < 0 || rel-p.Starts[i] >= p.Sizes[i] {
		return NoCall
	}
	return p.Calls[i]
}

func (p *Positions) bytes() int64 {
	return 256 + p.Files.bytes() + p.Names.bytes() + 12*int64(cap(p.Pieces)) + int64(cap(p.Rows)) +
		4*int64(cap(p.Starts)+cap(p.Sizes)+cap(p.Calls)) + 16*int64(cap(p.Inlined))
}

// PieceRows is the maximum number of rows in a piece.
const PieceRows = 64
