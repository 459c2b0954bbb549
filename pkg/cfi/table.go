package cfi

import (
	"cmp"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"sort"
	"sync/atomic"
	"unsafe"
)

// Limits bound what is read of one file. The zero value means DefaultLimits.
type Limits struct {
	// Bytes is how large the rules are at most, which are kept as the file has them.
	Bytes int64
	// Entries is how many functions have rules at most.
	Entries int
}

// DefaultLimits are enough for programs of some hundred megabytes.
func DefaultLimits() Limits { return Limits{Bytes: 32 << 20, Entries: 1 << 20} }

// maxLimit is what offsets in 32 bits allow.
const maxLimit = 1 << 31

// Table has the rules of one file. Its methods may be called by any number of goroutines.
//
// It keeps .eh_frame as it is, with the functions in order beside it, and runs what describes a function when that
// is asked for. The same addresses come again and again, so what came out last is kept.
type Table struct {
	arch      *arch
	addr      uint64 // of frames
	frames    []byte // .eh_frame
	base      uint64 // what entry.start is relative to
	entries   []entry
	stubs     []stubs
	sigreturn uint64                // where handlers of signals return to, on arm64; 0: not in this file
	recent    []atomic.Pointer[row] // by a hash of the address; their number is a power of two
}

// entry is a function that has rules: its start, and where its FDE is in Table.frames.
type entry struct{ start, fde uint32 }

// How many rows are kept: one for every few functions.
const (
	leastRows, mostRows = 16, 1024
	functionsPerRow     = 4
)

// Read reads the rules of an ELF file. Its errors wrap ErrNotELF, ErrNone, ErrMalformed or ErrTooLarge, or are those of
// r. The file may be of another architecture than this machine.
func Read(r io.ReaderAt, size int64, l Limits) (*Table, error) {
	if l == (Limits{}) {
		l = DefaultLimits()
	}
	l.Bytes, l.Entries = min(l.Bytes, maxLimit), min(l.Entries, maxLimit/8)
	f, err := openELF(r, size)
	if err != nil {
		return nil, err
	}
	t := &Table{arch: f.arch}
	x, err := f.readIndex(l)
	if err != nil {
		return nil, err
	}
	if err := t.readFrames(f, x, l); err != nil {
		return nil, err
	}
	if len(x.pairs) > 0 {
		err = t.take(x.pairs)
	} else {
		err = t.scan(l)
	}
	if err != nil {
		return nil, err
	}
	t.readSigreturn(f)
	if len(t.entries) == 0 && t.sigreturn == 0 {
		return nil, ErrNone
	}
	t.readStubs(f)
	rows := max(leastRows, min(mostRows, len(t.entries)/functionsPerRow))
	t.recent = make([]atomic.Pointer[row], 1<<(bits.Len(uint(rows))-1))
	return t, nil
}

// readFrames reads .eh_frame. Where nothing says where it ends, it ends behind the last function that is known of it, and
// without any at its terminator.
func (t *Table) readFrames(f *image, x index, l Limits) error {
	var where area
	var ok bool
	if x.frames != 0 {
		where, ok = f.sectionAt(x.frames)
	} else {
		where, ok = f.sectionNamed(".eh_frame")
	}
	certain := ok
	if !ok && x.frames != 0 {
		where, ok = f.mapped(x.frames)
	}
	if !ok {
		return ErrNone
	}
	if !certain && len(x.pairs) > 0 {
		last := uint64(0)
		for _, p := range x.pairs {
			if where.holds(p.fde) {
				last = max(last, p.fde-where.addr)
			}
		}
		b, err := f.read(where.offset+last, min(4, where.size-last))
		if err != nil {
			return err
		}
		c := cursor{b: b}
		where.size = min(where.size, last+4+uint64(c.u32()))
	} else if !certain {
		where.size = min(where.size, uint64(l.Bytes))
	}
	if where.size > uint64(l.Bytes) {
		return fmt.Errorf("%w: %d bytes of unwind rules", ErrTooLarge, where.size)
	}
	b, err := f.read(where.offset, where.size)
	if err != nil {
		return err
	}
	t.addr, t.frames = where.addr, b
	if !certain && len(x.pairs) == 0 {
		t.frames = slices.Clone(b[:t.end()])
	}
	return nil
}

// end returns the offset behind the last record.
func (t *Table) end() (off uint64) {
	for {
		_, next, ok := t.record(off)
		if !ok {
			return off
		}
		off = next
	}
}

// scan finds the functions in .eh_frame itself.
func (t *Table) scan(l Limits) error {
	var pairs []pair
	var last cie // most functions follow the CIE that they have in common
	lastAt, known := uint64(0), false
	for off := uint64(0); ; {
		c, next, ok := t.record(off)
		if !ok {
			return t.take(pairs)
		}
		place := uint64(c.at)
		if back := uint64(c.u32()); back != 0 && back <= place {
			if at := place - back; !known || lastAt != at {
				last, known = t.cieAt(at)
				lastAt = at
			}
			if f := (fde{cie: last}); known && f.decode(&c) && f.size > 0 {
				if len(pairs) == l.Entries {
					return fmt.Errorf("%w: more than %d functions with unwind rules", ErrTooLarge, l.Entries)
				}
				pairs = append(pairs, pair{f.begin, t.addr + off})
			}
		}
		off = next
	}
}

// take keeps functions, in order.
func (t *Table) take(pairs []pair) error {
	if len(pairs) == 0 {
		return nil
	}
	order := func(a, b pair) int { return cmp.Compare(a.start, b.start) }
	if !slices.IsSortedFunc(pairs, order) {
		slices.SortFunc(pairs, order)
	}
	t.base = pairs[0].start
	t.entries = make([]entry, 0, len(pairs))
	for _, p := range pairs {
		start, off := p.start-t.base, p.fde-t.addr
		if start >= 1<<32 {
			return fmt.Errorf("%w: its functions are %#x bytes apart", ErrMalformed, start)
		}
		if off < uint64(len(t.frames)) {
			t.entries = append(t.entries, entry{uint32(start), uint32(off)})
		}
	}
	return nil
}

// Bytes is the memory that the table takes at most.
func (t *Table) Bytes() int64 {
	const slot = unsafe.Sizeof(t.recent[0]) + unsafe.Sizeof(row{}) + keptRules*unsafe.Sizeof(rule{})
	return int64(unsafe.Sizeof(*t)) + int64(cap(t.frames)) + int64(cap(t.entries))*int64(unsafe.Sizeof(entry{})) + int64(len(t.recent))*int64(slot)
}

// Functions is how many functions have rules.
func (t *Table) Functions() int { return len(t.entries) }

// overlapping is how many functions are looked at that begin before an address. Those of real files do not overlap.
const overlapping = 8

// find returns the FDE that covers an address, and whether there is one.
func (t *Table) find(address uint64) (fde, bool) {
	start := address - t.base
	if address < t.base || start >= 1<<32 {
		return fde{}, false
	}
	// The last of those that begin there comes first. A file can have any number of them.
	i := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].start > uint32(start) })
	for n := 0; n < overlapping && i > 0; n++ {
		i--
		if f, ok := t.fdeAt(uint64(t.entries[i].fde)); ok && address-f.begin < f.size {
			return f, true
		}
	}
	return fde{}, false
}
