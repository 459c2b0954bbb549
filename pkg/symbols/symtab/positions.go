package symtab

import "encoding/binary"

// Positions are the source positions of a file, and which functions were inlined where, from its debug information
// (https://dwarfstd.org). Package debug/dwarf reads that in a process of its own. The files may be hostile, the package trusts
// their counts, and running out of memory ends the process.
type Positions struct {
	Base  uint64
	Files Names
	// Pieces are runs of rows of the table of lines, sorted by address.
	Pieces []Piece
	Rows   []byte
	// By range, sorted by address: its start, its size and the number of the innermost call that was inlined there.
	Starts, Sizes, Calls []uint32
	Inlined              []InlinedCall
	Names                Names // of inlined functions
}

// Piece is up to pieceRows rows, for the addresses from start to end. Each row is three varints: how much address,
// file and line differ from the row before; the first differs from start, 0 and 0.
type Piece struct {
	Start, End uint32
	At         uint32 // in rows
}

// InlinedCall is a call that was inlined: the function name is called at file and line, which are in parent.
type InlinedCall struct {
	Name, File, Line uint32
	Parent           uint32 // the call that this one is nested in; noCall: it stands in the function itself
}

// NoCall stands for none of the inlined calls.
const NoCall = 1<<32 - 1

// position returns the file and the line of an address, "" and 0 if they are not known.
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

// file returns the name of a file by its number. Numbers begin with 1; 0 stands for unknown.
func (p *Positions) file(number uint32) string {
	if number == 0 || int(number) > p.Files.Count {
		return ""
	}
	return p.Files.Get(int(number) - 1)
}

// expand adds the source position of an address to s, the function that the address is in. With inlined, the result
// is the function that is inlined there, with s last among its Callers.
func (p *Positions) expand(s Symbol, addr uint64, inlined bool) Symbol {
	file, line := p.position(addr)
	var chain []Symbol
	for call, depth := p.call(addr), 0; call != NoCall && depth < maxDepth; depth++ {
		c := &p.Inlined[call]
		if inlined {
			chain = append(chain, Symbol{Name: p.Names.Get(int(c.Name)), File: file, Line: line, Source: SourceDWARF})
		}
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

// call returns the innermost inlined call at an address, noCall if there is none.
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

// PieceRows is how many rows there are in a piece at most.
const PieceRows = 64
