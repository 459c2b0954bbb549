package symtab

import (
	"slices"
	"sort"
)

// Table is the kept data of one file: which function covers which addresses, compactly. It does not change once it is built, and
// any number of goroutines may use it. Of Go's functions it can have some only.
type Table struct {
	Golang  *GoTable   // nil if the file is not written in Go; counts before layers
	Layers  []Layer    // the first that covers an address names it
	Lines   *Positions // source positions of the code in layers; nil if they are not known or not wanted
	Inlined bool       // Symbol.Callers are wanted
	// Wanted is the file's build ID if its debug file was not found and may be fetched, or was fetched; else "".
	Wanted string
	// Read is up to which offset a perf map was read into the table, and edges the sum of the edges of that.
	Read  int64
	Edges uint64
	// Fact is the answer to Task.Fact, in JSON.
	Fact []byte
	Cut  bool // there is more to read in it: of a perf map, or debug information
}

// Layer is the names of one source. Its ranges are sorted by address and do not overlap.
type Layer struct {
	Source Source
	Base   uint64   // addresses are kept as their distance from it
	Starts []uint32 // one for each range, as are sizes and texts
	Sizes  []uint32
	Texts  []uint32 // numbers in names; nil: from first on, each its own
	First  int
	Names  *Names // those of all layers of one source
}

// Reading is how a file is read.
type Reading struct {
	Limits Limits
	// Inlined asks for Symbol.Callers.
	Inlined bool
	// Lines asks ReadTable for lines and, with Inlined, for inlined functions of .debug_info.
	Lines bool

	Left *Budget // of a file that is read in several steps; nil: all of Limits for each
}

// Base is the first address that layers are counted from.
func (t *Table) Base() uint64 {
	base := uint64(1<<64 - 1)
	for _, l := range t.Layers {
		base = min(base, l.Base)
	}
	return base
}

// WithDebug returns a table with the symbols of a debug file that was fetched before its own.
func (t *Table) WithDebug(debug *Table) *Table {
	return &Table{
		Golang: t.Golang, Inlined: t.Inlined, Wanted: t.Wanted, Cut: debug.Cut,
		Layers: append(slices.Clone(debug.Layers), t.Layers...),
	}
}

// Fetched reports whether a fetched debug file is in the table.
func (t *Table) Fetched() bool {
	return t.Wanted != "" && len(t.Layers) > 0 && t.Layers[0].Source == SourceDebugFile
}

// Lookup returns the function at an address. The State is Named, Outside or NoSymbols, and Pending where the table
// covers the address but does not have its function.
func (t *Table) Lookup(addr uint64) (Symbol, State) {
	if t.Golang != nil {
		if s, state := t.Golang.lookup(addr, t.Inlined); state != Outside {
			return s, state
		}
	}
	for i := range t.Layers {
		l := &t.Layers[i]
		if j := l.find(addr); j >= 0 {
			s := Symbol{Name: l.Names.Get(int(l.Text(j))), Source: l.Source}
			if t.Lines != nil {
				s = t.Lines.expand(s, addr, t.Inlined)
			}
			return s, Named
		}
	}
	if len(t.Layers) == 0 && t.Golang == nil {
		return Symbol{}, NoSymbols
	}
	return Symbol{}, Outside
}

// Covers reports whether an address has a name.
func (t *Table) Covers(addr uint64) bool {
	return t.Golang != nil && t.Golang.Covers(addr) || slices.ContainsFunc(t.Layers, func(l Layer) bool { return l.find(addr) >= 0 })
}

// Bytes is the memory that the table takes.
func (t *Table) Bytes() int64 {
	n := int64(256)
	if t.Golang != nil {
		n += t.Golang.bytes()
	}
	if t.Lines != nil {
		n += t.Lines.bytes()
	}
	for i := range t.Layers {
		l := &t.Layers[i]
		n += 128 + int64(cap(l.Starts)+cap(l.Sizes)+cap(l.Texts))*4
		if i == 0 || l.Names != t.Layers[i-1].Names {
			n += l.Names.bytes()
		}
	}
	return n
}

// Within returns the table without its lines if it is larger than bytes with them. t may be nil.
func (t *Table) Within(bytes int64) *Table {
	if t == nil || t.Lines == nil || t.Bytes() <= bytes {
		return t
	}
	less := *t
	less.Lines = nil
	return &less
}

// Text is the number in names of a range's name.
func (l *Layer) Text(i int) uint32 {
	if l.Texts == nil {
		return uint32(l.First + i)
	}
	return l.Texts[i]
}

// find returns the range that covers an address, -1 if none does.
func (l *Layer) find(addr uint64) int {
	i, rel := lastFrom(addr, l.Base, len(l.Starts), func(i int) uint32 { return l.Starts[i] })
	if i < 0 || rel-l.Starts[i] >= l.Sizes[i] {
		return -1
	}
	return i
}

// lastFrom returns the last of n sorted starts that is not after an address, -1 if there is none. rel is the address as starts are:
// counted from base.
func lastFrom(addr, base uint64, n int, start func(i int) uint32) (i int, rel uint32) {
	if addr < base || addr-base > 1<<32-1 {
		return -1, 0
	}
	rel = uint32(addr - base)
	return sort.Search(n, func(i int) bool { return start(i) > rel }) - 1, rel
}
