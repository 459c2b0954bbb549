package symbols

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
)

// Table is what is kept of one file: which function covers which addresses, compactly. It does not
// change once it is built, and any number of goroutines may use it. Of Go's functions it can have some only.
type Table struct {
	loads   []load
	golang  *goTable   // nil if the file is not written in Go; counts before layers
	layers  []layer    // the first that covers an address names it
	lines   *positions // source positions of the code in layers; nil if they are not known or not wanted
	inlined bool       // Symbol.Callers are wanted
	// wanted is the file's build ID if its debug file was not found and may be fetched, else "".
	wanted string
	// read is up to which offset a perf map was read into the table, and edges the sum of the edges of that.
	read  int64
	edges uint64
	cut   bool // there was more to read in it
}

// load is a part of the file that is mapped.
type load struct{ offset, size, addr uint64 }

// layer is the names of one source. Its ranges are sorted by address and do not overlap.
type layer struct {
	source Source
	base   uint64   // addresses are kept as their distance from it
	starts []uint32 // one for each range, as are sizes and texts
	sizes  []uint32
	texts  []uint32 // numbers in names; nil: from first on, each its own
	first  int
	names  *names // those of all layers of one source
}

// Reading is how a file is read.
type Reading struct {
	Limits Limits
	// Inlined asks for Symbol.Callers.
	Inlined bool
	// Lines asks for lines and, with Inlined, for inlined functions of .debug_info.
	Lines bool

	left *budget // of a file that is read in several steps; nil: all of Limits for each
}

// ReadTable reads a file of that size in bytes, without its debug files. The error is one of ErrNotELF,
// ErrMalformed and ErrTooLarge, or what reading has returned. A file without symbols has a Table, too.
func ReadTable(ctx context.Context, r io.ReaderAt, size int64, o Reading) (*Table, error) {
	t, err := readTable(ctx, r, size, o, nil)
	if err != nil || t.golang == nil {
		return t, err
	}
	t.golang, err = t.golang.loadAll(newReader(ctx, r, size, o), o.Inlined, o.Limits)
	return t, err
}

func newReader(ctx context.Context, r io.ReaderAt, size int64, o Reading) *reader {
	left := o.left
	if left == nil {
		b := o.Limits.budget()
		left = &b
	}
	return &reader{ctx: ctx, r: r, size: size, left: left}
}

// readTable reads a table without any of Go's functions.
func readTable(ctx context.Context, r io.ReaderAt, size int64, o Reading, debug debugFiles) (*Table, error) {
	f, err := openELF(newReader(ctx, r, size, o))
	if err != nil {
		return nil, err
	}
	t := &Table{inlined: o.Inlined}
	for _, s := range f.loads() {
		t.loads = append(t.loads, load{s.offset, s.fileSize, s.addr})
	}
	if t.golang, err = f.readGo(o.Limits); err != nil {
		return nil, err
	}
	if t.golang != nil && t.golang.coversAll(f) { // .symtab would name the same functions again
		return t, nil
	}
	if err := t.addTable(f, elf.SHT_SYMTAB, SourceSymtab, o.Limits); err != nil {
		return nil, err
	}
	if len(t.layers) == 0 {
		if err := t.addSeparate(f, r, debug, o); err != nil {
			return nil, err
		}
	}
	if len(t.layers) == 0 || t.layers[0].source == SourceMiniDebug {
		if err := t.addTable(f, elf.SHT_DYNSYM, SourceDynsym, o.Limits); err != nil {
			return nil, err
		}
	}
	// Stubs that are malformed, too large or come when the time is up cost only the names of stubs.
	if err := t.addStubs(f); err != nil && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrMalformed) {
		return nil, err
	}
	t.addLines(f, o)
	return t, nil
}

// addLines adds what the debug information of f says, if that is wanted and not known yet. Go's lines are known.
func (t *Table) addLines(f *elfFile, o Reading) {
	if !o.Lines || t.lines != nil || t.golang != nil || len(t.layers) == 0 {
		return
	}
	t.lines = f.readPositions(t.base(), o.Limits)
}

// base is the first address that layers are counted from.
func (t *Table) base() uint64 {
	base := uint64(1<<64 - 1)
	for _, l := range t.layers {
		base = min(base, l.base)
	}
	return base
}

// addSeparate adds the symbols that are kept apart from the file's own.
func (t *Table) addSeparate(f *elfFile, r io.ReaderAt, from debugFiles, o Reading) error {
	info, err := buildid.Read(r, f.size)
	if err != nil {
		return fmt.Errorf("reading a build ID: %w", err)
	}
	debug, file, err := f.findDebug(from, info.GNU)
	if err != nil {
		return err
	}
	if debug != nil {
		defer file.Close()
		if err := optional(t.addTable(debug, elf.SHT_SYMTAB, SourceDebugFile, o.Limits)); err != nil {
			return err
		}
		if len(t.layers) > 0 {
			t.addLines(debug, o)
			return nil
		}
	}
	if t.golang == nil {
		t.wanted = info.GNU
	}
	mini, err := f.miniDebug()
	if err != nil || mini == nil {
		return err
	}
	return optional(t.addTable(mini, elf.SHT_SYMTAB, SourceMiniDebug, o.Limits))
}

// readDebugTable reads the symbols, and lines from the address base on at the latest, of a debug file.
func readDebugTable(ctx context.Context, r io.ReaderAt, size int64, o Reading, base uint64) (*Table, error) {
	f, err := openELF(newReader(ctx, r, size, o))
	if err != nil {
		return nil, err
	}
	t := &Table{inlined: o.Inlined}
	if err := t.addTable(f, elf.SHT_SYMTAB, SourceDebugFile, o.Limits); err != nil {
		return nil, err
	}
	if len(t.layers) == 0 {
		return nil, ErrNoSymbols
	}
	if o.Lines {
		t.lines = f.readPositions(min(base, t.base()), o.Limits)
	}
	return t, nil
}

// withDebug returns a table with the symbols and lines of a debug file before those that are there.
func (t *Table) withDebug(debug *Table) *Table {
	return &Table{
		loads: t.loads, golang: t.golang, inlined: t.inlined, lines: debug.lines,
		layers: append(slices.Clone(debug.layers), t.layers...),
	}
}

// optional drops the error of a damaged debug file or .gnu_debugdata: it counts as not there.
func optional(err error) error {
	if errors.Is(err, ErrMalformed) {
		return nil
	}
	return err
}

// addTable adds the symbol table in the section of that kind, if there is one, for addresses that have no name yet.
func (t *Table) addTable(f *elfFile, kind elf.SectionType, source Source, limits Limits) error {
	var strings *section
	table := f.sectionOf(kind)
	if table != nil && int(table.link) < len(f.sections) {
		strings = &f.sections[table.link]
	} else if len(f.sections) == 0 && kind == elf.SHT_DYNSYM {
		var err error
		if table, strings, err = f.dynamicSymbols(); err != nil {
			return err
		}
	}
	if table == nil || strings == nil || table.kind == elf.SHT_NOBITS {
		return nil
	}
	symbols, err := f.readSymbols(table, limits)
	if err != nil {
		return err
	}
	return t.addSymbols(f, t.missing(symbols), strings, source, limits)
}

// Virtual returns the address of what is at that offset in the file, and false where nothing is mapped
// from there.
func (t *Table) Virtual(offset uint64) (uint64, bool) {
	for _, l := range t.loads {
		if offset >= l.offset && offset-l.offset < l.size {
			return offset - l.offset + l.addr, true
		}
	}
	return 0, false
}

// Lookup returns the function at an address. The State is Named, Outside or NoSymbols, and Pending where the table
// covers the address but does not have its function.
func (t *Table) Lookup(addr uint64) (Symbol, State) {
	if t.golang != nil {
		if s, state := t.golang.lookup(addr, t.inlined); state != Outside {
			return s, state
		}
	}
	for i := range t.layers {
		l := &t.layers[i]
		if j := l.find(addr); j >= 0 {
			s := Symbol{Name: l.names.get(int(l.text(j))), Source: l.source}
			if t.lines != nil {
				s = t.lines.expand(s, addr, t.inlined)
			}
			return s, Named
		}
	}
	if len(t.layers) == 0 && t.golang == nil {
		return Symbol{}, NoSymbols
	}
	return Symbol{}, Outside
}

// missing drops, in place, the symbols whose first and last byte both have a name already, and returns the others.
func (t *Table) missing(symbols []symbol) []symbol {
	return slices.DeleteFunc(symbols, func(s symbol) bool {
		return s.size > 0 && t.covers(s.addr) && t.covers(s.addr+s.size-1)
	})
}

func (t *Table) covers(addr uint64) bool {
	return t.golang != nil && t.golang.covers(addr) || slices.ContainsFunc(t.layers, func(l layer) bool { return l.find(addr) >= 0 })
}

// Bytes is the memory that the table takes.
func (t *Table) Bytes() int64 {
	n := 256 + int64(cap(t.loads))*24
	if t.golang != nil {
		n += t.golang.bytes()
	}
	if t.lines != nil {
		n += t.lines.bytes()
	}
	for i := range t.layers {
		l := &t.layers[i]
		n += 128 + int64(cap(l.starts)+cap(l.sizes)+cap(l.texts))*4
		if i == 0 || l.names != t.layers[i-1].names {
			n += l.names.bytes()
		}
	}
	return n
}

// within returns the table without its lines if it is larger than bytes with them. t may be nil.
func (t *Table) within(bytes int64) *Table {
	if t == nil || t.lines == nil || t.Bytes() <= bytes {
		return t
	}
	less := *t
	less.lines = nil
	return &less
}

// Len is the number of ranges that have a name.
func (t *Table) Len() int {
	n := 0
	if t.golang != nil {
		n = len(t.golang.start) - 1
	}
	for i := range t.layers {
		n += len(t.layers[i].starts)
	}
	return n
}

// text is the number in names of a range's name.
func (l *layer) text(i int) uint32 {
	if l.texts == nil {
		return uint32(l.first + i)
	}
	return l.texts[i]
}

// find returns the range that covers an address, -1 if none does.
func (l *layer) find(addr uint64) int {
	if addr < l.base || addr-l.base > 1<<32-1 {
		return -1
	}
	rel := uint32(addr - l.base)
	i := sort.Search(len(l.starts), func(i int) bool { return l.starts[i] > rel }) - 1
	if i < 0 || rel-l.starts[i] >= l.sizes[i] {
		return -1
	}
	return i
}
