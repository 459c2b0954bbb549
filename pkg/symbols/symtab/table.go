package symtab

import (
	"slices"
	"sort"
)

// Table is a compact map from a file's addresses to its functions. It is immutable and safe for concurrent use. It can lack
// some functions of a Go program.
type Table struct {
	Golang *GoTable   // nil if the file is not written in Go; used before Layers
	Layers []Layer    // the first layer that covers an address names it
	Lines  *Positions // source positions of the code in Layers; nil if unknown or not requested
	// Wanted is the file's build ID if its debug file was fetched, or is missing and can be fetched. Otherwise, it is "".
	Wanted string
	// Read is the offset up to which a perf map was read. Edges is a hash of the first and the last bytes of this part.
	Read  int64
	Edges uint64
	// Fact is the answer to Task.Fact in JSON.
	Fact []byte
	Cut  bool // the rest of a perf map or the debug information was not read
}

// Layer holds the names from one source. Its ranges are sorted by address and do not overlap.
type Layer struct {
	Source Source
	Base   uint64   // base of the addresses
	Starts []uint32 // one per range, like Sizes and Texts
	Sizes  []uint32
	Texts  []uint32 // numbers in Names
	Names  *Names   // shared by all layers of a source
}

// Base returns the lowest base of all layers.
func (t *Table) Base() uint64 {
	base := uint64(1<<64 - 1)
	for _, l := range t.Layers {
		base = min(base, l.Base)
	}
	return base
}

// WithDebug returns a table in which the symbols of a fetched debug file precede the symbols of t.
func (t *Table) WithDebug(debug *Table) *Table {
	return &Table{
		Golang: t.Golang, Wanted: t.Wanted, Cut: debug.Cut,
		Layers: append(slices.Clone(debug.Layers), t.Layers...),
	}
}

// Fetched reports whether the table includes the symbols of a fetched debug file.
func (t *Table) Fetched() bool {
	return t.Wanted != "" && len(t.Layers) > 0 && t.Layers[0].Source == SourceDebugFile
}

// Lookup returns the function at an address. The State is Named, Outside or NoSymbols, or Pending if the function is not loaded.
func (t *Table) Lookup(addr uint64) (Symbol, State) {
	if t.Golang != nil {
		if s, state := t.Golang.lookup(addr); state != Outside {
			return s, state
		}
	}
	for i := range t.Layers {
		l := &t.Layers[i]
		if j := l.find(addr); j >= 0 {
			s := Symbol{Name: l.Names.Get(int(l.Texts[j])), Source: l.Source}
			if t.Lines != nil {
				s = t.Lines.expand(s, addr)
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

// Bytes returns the memory of the table.
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

// Within returns t, or a copy without lines if t exceeds the given number of bytes. t may be nil.
func (t *Table) Within(bytes int64) *Table {
	if t == nil || t.Lines == nil || t.Bytes() <= bytes {
		return t
	}
	less := *t
	less.Lines = nil
	return &less
}

// find returns the range that covers an address, or -1.
func (l *Layer) find(addr uint64) int {
	i, rel := lastFrom(addr, l.Base, len(l.Starts), func(i int) uint32 { return l.Starts[i] })
	if i < 0 || rel-l.Starts[i] >= l.Sizes[i] {
		return -1
	}
	return i
}

// lastFrom returns the index of the last of n sorted starts that is not after an address, or -1. rel is the address relative to
// base. The starts are also relative to base.
func lastFrom(addr, base uint64, n int, start func(i int) uint32) (i int, rel uint32) {
	if addr < base || addr-base > 1<<32-1 {
		return -1, 0
	}
	rel = uint32(addr - base)
	return sort.Search(n, func(i int) bool { return start(i) > rel }) - 1, rel
}
