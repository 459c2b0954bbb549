package cfi

import "fmt"

// index is what .eh_frame_hdr says.
type index struct {
	frames uint64 // the address of .eh_frame; 0: it does not say
	pairs  []pair // the functions, mostly in order; none: there is no table of them
}

// pair is a function: its start, and the address of its FDE.
type pair struct{ start, fde uint64 }

// readIndex reads .eh_frame_hdr, by which the program itself finds its rules at run time. What it does not say is not an
// error: the sections say it, too.
func (f *image) readIndex(l Limits) (index, error) {
	const header = 4 + 2*8 // four bytes of encodings, two numbers
	var x index
	if f.index.size == 0 {
		return x, nil
	}
	if f.index.size > uint64(l.Entries)*16+header {
		return x, fmt.Errorf("%w: %d bytes of functions with unwind rules", ErrTooLarge, f.index.size)
	}
	b, err := f.read(f.index.offset, f.index.size)
	if err != nil {
		return x, err
	}
	c := cursor{b: b, base: f.index.addr}
	if version := c.u8(); version != 1 {
		return x, nil
	}
	frames, count, table := c.u8(), c.u8(), c.u8()
	if frames == peOmit {
		return x, nil
	}
	x.frames = c.pointer(frames, f.index.addr)
	if c.bad || count == peOmit || table == peOmit {
		return x, nil
	}
	n := c.pointer(count, f.index.addr)
	if c.bad || n == 0 || n > uint64(len(b)-c.at)/4 { // two numbers of two bytes at least
		return x, nil
	}
	if n > uint64(l.Entries) {
		return x, fmt.Errorf("%w: %d functions with unwind rules", ErrTooLarge, n)
	}
	pairs := make([]pair, n)
	for i := range pairs {
		pairs[i] = pair{start: c.pointer(table, f.index.addr), fde: c.pointer(table, f.index.addr)}
	}
	if c.bad {
		return x, nil
	}
	x.pairs = pairs
	return x, nil
}
