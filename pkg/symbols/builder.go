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
	var open []int // symbols that cover the address at: the last one names it, those before it reach further
	at := uint64(0)
	// advance moves at forward and names the addresses in between, each by the last open symbol that covers it.
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

// addSymbols adds layers with the symbols, sorted by address. Their names are in the section strings.
func (t *Table) addSymbols(f *elfFile, symbols []symbol, strings *section, source Source, limits Limits) error {
	if err := preferPlain(f, symbols, strings); err != nil {
		return err
	}
	spans := flatten(symbols)
	if len(spans) == 0 {
		return nil
	}
	// Names are read in the order in which they are in the file, so that it is read once from front to end.
	order := make([]uint32, len(spans))
	for i := range order {
		order[i] = uint32(i)
	}
	name := func(i uint32) uint32 { return symbols[spans[i].symbol].name }
	slices.SortFunc(order, func(a, b uint32) int { return cmp.Compare(name(a), name(b)) })
	at := make([]uint32, len(spans)) // by span: where its name begins in text
	text := []byte{0}
	window := window{f: f, offset: strings.offset, size: strings.size}
	if strings.kind == elf.SHT_NOBITS {
		window.size = 0
	}
	for i, n := range order {
		if i > 0 && name(order[i-1]) == name(n) {
			at[n] = at[order[i-1]]
			continue
		}
		s, err := window.text(uint64(name(n)))
		if err != nil {
			return err
		}
		if n := bytes.IndexByte(s, '@'); n > 0 {
			s = s[:n] // the version of a library's symbol: memcpy@@GLIBC_2.14
		}
		if len(s) == 0 {
			continue
		}
		if len(text)+len(s)+1 > limits.Names {
			return fmt.Errorf("%w: more than %d bytes of names", ErrTooLarge, limits.Names)
		}
		at[n] = uint32(len(text))
		text = append(append(text, s...), 0)
	}
	return t.addSpans(spans, source, func(i int) []byte {
		s := text[at[i]:]
		return s[:bytes.IndexByte(s, 0)]
	})
}

// addSpans adds layers with those of the spans, sorted by address, that have a name. A layer covers less than 4 GiB.
func (t *Table) addSpans(spans []span, source Source, name func(i int) []byte) error {
	for i := 0; i < len(spans); {
		if len(t.layers) == maxLayers {
			return fmt.Errorf("%w: code in too many places", ErrTooLarge)
		}
		l := layer{source: source, base: spans[i].start}
		var n namer
		for ; i < len(spans) && spans[i].end-l.base <= 1<<32-1; i++ {
			if text := name(i); len(text) > 0 {
				l.starts, l.sizes = append(l.starts, uint32(spans[i].start-l.base)), append(l.sizes, uint32(spans[i].end-spans[i].start))
				n.add(text)
			}
		}
		switch {
		case n.count > 0:
			l.starts, l.sizes, l.names = append([]uint32(nil), l.starts...), append([]uint32(nil), l.sizes...), n.finish()
			t.layers = append(t.layers, l)
		case i < len(spans) && spans[i].end-spans[i].start > 1<<32-1:
			i++ // larger than any code: left out
		}
	}
	return nil
}

// maxLayers is how many layers a Table may have. Only the code of a JIT compiler is further apart than 4 GiB.
const maxLayers = 64

// maxName is how long a name may be, in bytes. Those of C++ can have some kilobytes.
const maxName = 16 << 10

// window reads a part of a file in chunks. It is for offsets that mostly rise: a read outside of the present chunk
// replaces it.
type window struct {
	f            *elfFile
	offset, size uint64
	buf          []byte
	from         uint64 // the offset of buf in the part
}

// text returns the text at off, nil if it is too long or not there. It is valid until the next call.
func (w *window) text(off uint64) ([]byte, error) {
	if off >= w.size {
		return nil, nil
	}
	for tried := false; ; tried = true {
		if o := off - w.from; off >= w.from && o < uint64(len(w.buf)) {
			b := w.buf[o:]
			if n := bytes.IndexByte(b, 0); n >= 0 && n <= maxName {
				return b[:n], nil
			} else if n > maxName || len(b) > maxName || tried {
				return nil, nil
			}
		}
		if err := w.move(off); err != nil {
			return nil, err
		}
	}
}

// bytes returns n bytes at off, n no more than chunk, and nil where they are not there. They are valid
// until the next call.
func (w *window) bytes(off, n uint64) ([]byte, error) {
	if off > w.size || n > w.size-off || n > chunk {
		return nil, nil
	}
	if off < w.from || off+n > w.from+uint64(len(w.buf)) {
		if err := w.move(off); err != nil {
			return nil, err
		}
	}
	return w.buf[off-w.from:][:n], nil
}

// move fills buf with a chunk of the part from off on.
func (w *window) move(off uint64) error {
	if w.buf == nil {
		w.buf = make([]byte, min(chunk, w.size))
	}
	w.from, w.buf = off, w.buf[:min(uint64(cap(w.buf)), w.size-off)]
	return w.f.at(w.buf, w.offset+off)
}
