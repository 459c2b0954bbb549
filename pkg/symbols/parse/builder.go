package parse

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// span is an address range that one symbol names.
type span struct {
	start, end uint64
	symbol     int
}

// flatten turns symbols into spans that do not overlap. Both are sorted by address. If symbols overlap, the one that starts last
// counts. If several start at the same address, the shortest counts, then the lowest rank. So a symbol inside a function, as in
// assembly, names its own bytes, and the function names the rest. Spans are generated on demand, because nested symbols produce
// up to twice as many spans.
func flatten(symbols []symbol) iter.Seq[span] {
	return func(yield func(span) bool) {
		var last span // the next span may extend it
		more := true
		add := func(start, end uint64, symbol int) {
			switch {
			case start >= end || !more:
			case last.symbol == symbol && last.end == start && last.start < last.end:
				last.end = end
			default:
				if last.start < last.end {
					more = yield(last)
				}
				last = span{start, end, symbol}
			}
		}
		var open []uint32 // symbols that cover the address at; the last one names it, and the others end later
		at := uint64(0)
		// advance moves at to the address to. It names each part of the range in between after the last open symbol that covers
		// the part.
		advance := func(to uint64) {
			for len(open) > 0 && at < to {
				top := open[len(open)-1]
				end := symbols[top].addr + symbols[top].size
				if end <= at {
					open = open[:len(open)-1]
					continue
				}
				add(at, min(end, to), int(top))
				at = min(end, to)
			}
			at = to
		}
		for i := 0; i < len(symbols) && more; {
			s := &symbols[i]
			advance(s.addr)
			// Symbols with the same start are sorted by descending size, so that the shortest is on top. Symbols of the same size
			// are sorted by rank, the lowest first.
			for j := i; j < len(symbols) && symbols[j].addr == s.addr; i, j = i+1, j+1 {
				c := &symbols[j]
				if c.size == 0 || c.addr+c.size < c.addr {
					continue
				}
				if n := len(open); n > 0 && symbols[open[n-1]].addr == c.addr && symbols[open[n-1]].size == c.size {
					continue // an alias with a higher rank
				}
				open = append(open, uint32(j))
			}
		}
		advance(1<<64 - 1)
		if more && last.start < last.end {
			yield(last)
		}
	}
}

// addSymbols adds layers with the symbols, which are sorted by address. The section strings contains their names.
func addSymbols(t *symtab.Table, f *elfFile, symbols []symbol, strings *section, source symtab.Source, limits symtab.Limits) error {
	if err := preferPlain(f, symbols, strings); err != nil {
		return err
	}
	// From here on, memory holds some numbers for each symbol, and the names.
	size := min(strings.size, uint64(limits.Names), uint64(f.size))
	if err := f.hold(5*4*int64(len(symbols)) + int64(size)); err != nil {
		return err
	}
	count := 0
	numbers := make([]uint32, len(symbols)) // by symbol: the number of its name, from 1; 0: none
	var order []uint32
	for s := range flatten(symbols) {
		if count%checkSymbols == 0 {
			if err := f.expired(); err != nil {
				return err
			}
		}
		if count++; numbers[s.symbol] == 0 {
			numbers[s.symbol] = 1
			order = append(order, uint32(s.symbol))
		}
	}
	if count == 0 {
		return nil
	}
	// Names are read in file order. So the file is read once from front to end. A name that several symbols share is read only
	// once.
	slices.SortFunc(order, func(a, b uint32) int { return cmp.Compare(symbols[a].name, symbols[b].name) })
	names := texts{b: make([]byte, 0, size)}
	window := window{f: f, offset: strings.offset, size: strings.size}
	if strings.kind == elf.SHT_NOBITS {
		window.size = 0
	}
	for i, n := range order {
		if i > 0 && symbols[order[i-1]].name == symbols[n].name {
			numbers[n] = numbers[order[i-1]]
			continue
		}
		numbers[n] = 0
		s, err := window.text(uint64(symbols[n].name))
		if err != nil {
			return err
		}
		if n := bytes.IndexByte(s, '@'); n > 0 {
			s = s[:n] // the version of a library's symbol: memcpy@@GLIBC_2.14
		}
		if len(s) == 0 {
			continue
		}
		if len(names.b)+len(s) > limits.Names {
			return fmt.Errorf("%w: more than %d bytes of names", symtab.ErrTooLarge, limits.Names)
		}
		if len(names.b)+len(s) > cap(names.b) { // names overlap
			if err := f.hold(2 * int64(cap(names.b))); err != nil {
				return err
			}
		}
		numbers[n] = names.add(s)
	}
	return addSpans(t, f.reader, flatten(symbols), count, source, &names, numbers)
}

// texts stores texts one after the other. They are numbered from 1.
type texts struct {
	ends []uint32 // where each name ends in b
	b    []byte
}

func (t *texts) add(text []byte) uint32 {
	t.b = append(t.b, text...)
	t.ends = append(t.ends, uint32(len(t.b)))
	return uint32(len(t.ends))
}

func (t *texts) get(n uint32) []byte {
	if n == 1 {
		return t.b[:t.ends[0]]
	}
	return t.b[t.ends[n-2]:t.ends[n-1]]
}

// addSpans adds layers with the named spans, which are sorted by address. count is the maximum number of spans. numbers holds the
// number of each symbol's name, or 0. Each name is stored once. A layer covers less than 4 GiB.
func addSpans(t *symtab.Table, r *reader, spans iter.Seq[span], count int, source symtab.Source, all *texts, numbers []uint32) error {
	const ahead = 2 * binary.MaxVarintLen16 // per text in names
	room := len(all.b) + ahead*len(all.ends)
	if err := r.hold(3*4*int64(count) + 4*int64(len(all.ends)) + 2*int64(room)); err != nil {
		return err
	}
	names := symtab.Namer{Names: symtab.Names{Block: make([]byte, 0, room)}}
	kept := make([]uint32, len(all.ends)) // by number in all: the number in names, from 1
	l := symtab.Layer{Source: source, Names: &names.Names}
	starts, sizes, texts := make([]uint32, 0, count), make([]uint32, 0, count), make([]uint32, 0, count)
	before, first := len(t.Layers), 0 // first is the layer's first range
	end := func() error {
		n := len(starts)
		if first == n {
			return nil
		}
		if len(t.Layers) == symtab.MaxLayers {
			return fmt.Errorf("%w: too many ranges of code", symtab.ErrTooLarge)
		}
		l.Starts, l.Sizes, l.Texts = starts[first:n:n], sizes[first:n:n], texts[first:n:n]
		t.Layers = append(t.Layers, l)
		first = n
		return nil
	}
	add := func() error {
		at := 0
		for s := range spans {
			if at++; at%checkSymbols == 0 {
				if err := r.expired(); err != nil {
					return err
				}
			}
			n := numbers[s.symbol]
			if n == 0 || s.end-s.start > 1<<32-1 { // larger than any code
				continue
			}
			if s.end-l.Base > 1<<32-1 {
				if err := end(); err != nil {
					return err
				}
			}
			if first == len(starts) {
				l.Base = s.start
			}
			if kept[n-1] == 0 {
				names.Add(all.get(n))
				kept[n-1] = uint32(names.Count)
			}
			starts, sizes = append(starts, uint32(s.start-l.Base)), append(sizes, uint32(s.end-s.start))
			texts = append(texts, kept[n-1]-1)
		}
		return end()
	}
	err := add()
	whole := names.Finish()
	for i := range t.Layers[before:] {
		t.Layers[before+i].Names = whole
	}
	return err
}

// window reads a part of a file in chunks. It is efficient for increasing offsets, because a read outside the current chunk
// replaces the chunk.
type window struct {
	f            *elfFile
	offset, size uint64
	buf          []byte
	from         uint64 // the offset of buf within the part
}

// text returns the text at off, or nil if it is too long or missing. It is valid until the next call.
func (w *window) text(off uint64) ([]byte, error) {
	if off >= w.size {
		return nil, nil
	}
	for tried := false; ; tried = true {
		if o := off - w.from; off >= w.from && o < uint64(len(w.buf)) {
			b := w.buf[o:]
			if n := bytes.IndexByte(b, 0); n >= 0 && n <= symtab.MaxName {
				return b[:n], nil
			} else if n > symtab.MaxName || len(b) > symtab.MaxName || tried {
				return nil, nil
			}
		}
		if err := w.move(off); err != nil {
			return nil, err
		}
	}
}

// bytes returns n bytes at off, or nil if they are missing or more than a chunk. They are valid until the next call.
func (w *window) bytes(off, n uint64) ([]byte, error) {
	if off > w.size || n > w.size-off || n > symtab.Chunk {
		return nil, nil
	}
	if off < w.from || off+n > w.from+uint64(len(w.buf)) {
		if err := w.move(off); err != nil {
			return nil, err
		}
	}
	return w.buf[off-w.from:][:n], nil
}

// move fills buf with the chunk at off.
func (w *window) move(off uint64) error {
	if w.buf == nil {
		w.buf = make([]byte, min(symtab.Chunk, w.size))
	}
	w.from, w.buf = off, w.buf[:min(uint64(cap(w.buf)), w.size-off)]
	return w.f.at(w.buf, w.offset+off)
}
