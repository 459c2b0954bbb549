package symbols

import (
	"bytes"
	"cmp"
	"debug/elf"
	"fmt"
	"slices"
)

// span is a part of the address space that one symbol names.
type span struct {
	start, end uint64
	symbol     int
}

// flatten turns symbols, sorted by address, into spans that do not overlap, sorted by address. Where
// symbols overlap, the one that starts last counts, and of those that start together the one of the
// lowest rank: symbols in a function's middle, as assembly has them, name what they cover, and the
// function the rest.
func flatten(symbols []symbol) []span {
	var spans []span
	add := func(start, end uint64, symbol int) {
		if start >= end {
			return
		}
		if n := len(spans); n > 0 && spans[n-1].symbol == symbol && spans[n-1].end == start {
			spans[n-1].end = end
			return
		}
		spans = append(spans, span{start, end, symbol})
	}
	var open []int // the last covers where we are, those before it cover more
	at := uint64(0)
	// advance names all up to there by what is open.
	advance := func(to uint64) {
		for len(open) > 0 && at < to {
			top := open[len(open)-1]
			end := symbols[top].addr + symbols[top].size
			if end <= at {
				open = open[:len(open)-1]
				continue
			}
			add(at, min(end, to), top)
			at = min(end, to)
		}
		at = to
	}
	for i := 0; i < len(symbols); {
		s := &symbols[i]
		advance(s.addr)
		// Those that start together: by size falling, so that the shortest is on top; of the same size the
		// lowest rank.
		for j := i; j < len(symbols) && symbols[j].addr == s.addr; i, j = i+1, j+1 {
			c := &symbols[j]
			if c.size == 0 || c.addr+c.size < c.addr {
				continue
			}
			if n := len(open); n > 0 && symbols[open[n-1]].addr == c.addr && symbols[open[n-1]].size == c.size {
				continue // an alias of a higher rank
			}
			open = append(open, j)
		}
	}
	advance(1<<64 - 1)
	return spans
}

// addSymbols adds the spans' symbols, whose names are in a table of strings.
func (t *Table) addSymbols(f *elfFile, symbols []symbol, strings *section, source Source, limits Limits) error {
	spans := flatten(symbols)
	if len(spans) == 0 {
		return nil
	}
	base := spans[0].start
	l := layer{source: source, base: base}
	// Names are taken in the order in which they are in the file, so that it is read once from front to end.
	type name struct {
		off  uint32
		span uint32
	}
	names := make([]name, 0, len(spans))
	for i, s := range spans {
		if s.end-base > 1<<32-1 {
			return fmt.Errorf("%w: code of more than 4 GiB", ErrTooLarge)
		}
		names = append(names, name{symbols[s.symbol].name, uint32(i)})
	}
	slices.SortFunc(names, func(a, b name) int { return cmp.Or(cmp.Compare(a.off, b.off), cmp.Compare(a.span, b.span)) })
	at := make([]uint32, len(spans)) // in block; 0: no name
	block := []byte{0}
	window := window{f: f, table: strings}
	for i, n := range names {
		if i > 0 && names[i-1].off == n.off {
			at[n.span] = at[names[i-1].span]
			continue
		}
		text, err := window.text(n.off)
		if err != nil {
			return err
		}
		if len(text) == 0 {
			continue
		}
		if len(block)+len(text)+1 > limits.Names {
			return fmt.Errorf("%w: more than %d bytes of names", ErrTooLarge, limits.Names)
		}
		at[n.span] = uint32(len(block))
		block = append(append(block, text...), 0)
	}
	l.starts, l.sizes, l.names = make([]uint32, 0, len(spans)), make([]uint32, 0, len(spans)), make([]uint32, 0, len(spans))
	for i, s := range spans {
		if at[i] != 0 {
			l.starts, l.sizes, l.names = append(l.starts, uint32(s.start-base)), append(l.sizes, uint32(s.end-s.start)), append(l.names, at[i])
		}
	}
	l.block = slices.Clip(bytes.Clone(block))
	t.layers = append(t.layers, l)
	return nil
}

// maxName is how long a name may be, in bytes. Those of C++ can have some kilobytes.
const maxName = 16 << 10

// window reads texts of a table of strings at offsets that rise.
type window struct {
	f     *elfFile
	table *section
	buf   []byte
	from  uint64 // where buf is in the table
}

// text returns the text at off, nil if it is too long or not in the table. It is valid until the next call.
func (w *window) text(off uint32) ([]byte, error) {
	if w.table.kind == elf.SHT_NOBITS || uint64(off) >= w.table.size {
		return nil, nil
	}
	for {
		if o := uint64(off) - w.from; uint64(off) >= w.from && o < uint64(len(w.buf)) {
			b := w.buf[o:]
			if n := bytes.IndexByte(b, 0); n >= 0 {
				return b[:min(n, maxName)], nil
			}
			if len(b) > maxName || w.from+uint64(len(w.buf)) >= w.table.size {
				return nil, nil
			}
		}
		if w.buf == nil {
			w.buf = make([]byte, min(chunk, w.table.size))
		}
		w.from = uint64(off)
		w.buf = w.buf[:min(uint64(cap(w.buf)), w.table.size-w.from)]
		if err := w.f.at(w.buf, w.table.offset+w.from); err != nil {
			return nil, err
		}
	}
}
