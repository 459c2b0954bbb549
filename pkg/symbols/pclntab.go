package symbols

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
)

// goTable is the functions, files and lines of a Go program: what runtime.Callers and debug/gosym read
// (golang.org/s/go12symtab and src/runtime/symtab.go of each release), without what only the garbage
// collector and the unwinder use.
type goTable struct {
	text  uint64   // the address that starts are relative to
	start []uint32 // one more than there are functions: each covers all up to the next
	funcs []goFunc
	// names are first those of funcs, then those of functions that are inlined only.
	names names
	// pctab holds the tables of values by address: pairs of differences, as the Go toolchain writes them.
	pctab   []byte
	quantum uint32
	// files leads from a function's file number to its name's place in fileNames.
	files     []uint32
	fileNames []byte
	calls     []goCall
}

// goFunc is a function. The offsets are in pctab, 0 for none.
type goFunc struct {
	unit                uint32 // where in files its numbers begin
	file, line, inlined uint32
	calls               uint32 // where in calls its inlined calls begin; noCalls if they are not known
}

const noCalls = 1<<32 - 1

// goCall is a call that was inlined.
type goCall struct {
	at   uint32 // an address that belongs to the place of the call, from the function's start
	name uint32
}

// The layouts of the table, by the release of Go that brought them.
type goVersion int

const (
	go116 goVersion = iota
	go118
	go120
)

// goHeader is where the parts of a table are, from its start.
type goHeader struct {
	version                                     goVersion
	endian                                      binary.ByteOrder
	quantum, pointer                            uint64
	functions                                   uint64
	textStart                                   uint64
	funcNames, units, fileNames, pctab, program uint64
}

// parseGoHeader reads a header, and reports false for all that cannot be one.
func parseGoHeader(b []byte) (h goHeader, ok bool) {
	if len(b) < 8 {
		return h, false
	}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		h.endian = order
		switch order.Uint32(b) {
		case 0xfffffffa:
			h.version = go116
		case 0xfffffff0:
			h.version = go118
		case 0xfffffff1:
			h.version = go120
		default:
			continue
		}
		h.quantum, h.pointer = uint64(b[6]), uint64(b[7])
		if b[4] != 0 || b[5] != 0 || h.quantum != 1 && h.quantum != 2 && h.quantum != 4 || h.pointer != 4 && h.pointer != 8 {
			return h, false
		}
		words := 8
		if h.version == go116 {
			words = 7
		}
		if len(b) < 8+words*int(h.pointer) {
			return h, false
		}
		var w [8]uint64
		for i := range words {
			if p := b[8+i*int(h.pointer):]; h.pointer == 8 {
				w[i] = order.Uint64(p)
			} else {
				w[i] = uint64(order.Uint32(p))
			}
		}
		h.functions = w[0]
		rest := w[2:]
		if h.version != go116 {
			h.textStart, rest = w[2], w[3:]
		}
		h.funcNames, h.units, h.fileNames, h.pctab, h.program = rest[0], rest[1], rest[2], rest[3], rest[4]
		ok = h.functions > 0 && h.functions < 1<<31 && h.funcNames >= uint64(8+words*int(h.pointer)) && h.funcNames < h.units &&
			h.units <= h.fileNames && h.fileNames <= h.pctab && h.pctab <= h.program && h.program < 1<<40
		return h, ok
	}
	return h, false
}

// goHeaderSize is enough for each header.
const goHeaderSize = 8 + 8*8

// readGo reads the table of a Go program, nil if the file is none.
func (f *elfFile) readGo(inlined bool, limits Limits) (*goTable, error) {
	at, size, ok, err := f.findGo()
	if err != nil || !ok {
		return nil, err
	}
	b := make([]byte, min(goHeaderSize, size))
	if err := f.at(b, at.offset); err != nil {
		return nil, err
	}
	h, ok := parseGoHeader(b)
	if !ok {
		return nil, nil // an older one, or one that is yet to come
	}
	if h.program >= size {
		return nil, fmt.Errorf("%w: .gopclntab ends before its functions begin", ErrMalformed)
	}
	if h.functions > uint64(limits.Symbols) {
		return nil, fmt.Errorf("%w: %d functions", ErrTooLarge, h.functions)
	}
	r := &goReader{elfFile: f, goHeader: h, offset: at.offset, size: size, limits: limits, names: inlined}
	if r.module, err = f.findModule(at.addr, h); err != nil {
		return nil, err
	}
	return r.read()
}

// goReader reads a table whose place is known.
type goReader struct {
	*elfFile
	goHeader
	offset, size uint64 // in the file
	module       goModule
	limits       Limits
	names        bool // of inlined functions

	t        goTable
	nameText []byte
}

// part reads from begin to end.
func (r *goReader) part(what string, begin, end uint64) ([]byte, error) {
	if begin > end || end > r.size {
		return nil, fmt.Errorf("%w: %s of .gopclntab is outside of it", ErrMalformed, what)
	}
	if end-begin > uint64(r.limits.Names) {
		return nil, fmt.Errorf("%w: %d bytes of %s", ErrTooLarge, end-begin, what)
	}
	b := make([]byte, end-begin)
	return b, r.at(b, r.offset+begin)
}

func (r *goReader) read() (*goTable, error) {
	t := &r.t
	t.quantum = uint32(r.quantum)
	var err error
	if r.nameText, err = r.part("the names", r.funcNames, r.units); err != nil {
		return nil, err
	}
	units, err := r.part("the list of files", r.units, r.fileNames)
	if err != nil {
		return nil, err
	}
	t.files = make([]uint32, len(units)/4)
	for i := range t.files {
		t.files[i] = r.endian.Uint32(units[4*i:])
	}
	if t.fileNames, err = r.part("the names of files", r.fileNames, r.pctab); err != nil {
		return nil, err
	}
	if t.pctab, err = r.part("the lines", r.pctab, r.program); err != nil {
		return nil, err
	}
	at, err := r.readStarts()
	if err != nil || len(t.start) == 0 {
		return nil, err
	}
	return t, r.readFuncs(at)
}

// readStarts reads where functions begin, and returns where their descriptions are.
func (r *goReader) readStarts() ([]uint32, error) {
	t := &r.t
	width := uint64(4)
	if r.version == go116 {
		width = r.pointer
	}
	n := r.functions
	table, err := r.part("the list of functions", r.program, r.program+(2*n+1)*width)
	if err != nil {
		return nil, err
	}
	word := func(i uint64) uint64 {
		if width == 8 {
			return r.endian.Uint64(table[8*i:])
		}
		return uint64(r.endian.Uint32(table[4*i:]))
	}
	t.text = r.module.text
	if r.version == go116 {
		t.text = word(0) // they are addresses
	} else if t.text == 0 {
		t.text = r.textStart
	}
	if t.text == 0 {
		return nil, nil // without it nothing is where it seems to be
	}
	t.start, t.funcs = make([]uint32, n+1), make([]goFunc, n)
	at := make([]uint32, n)
	for i := range n + 1 {
		start := word(2 * i)
		if r.version == go116 {
			start -= t.text
		}
		if start > 1<<32-1 || i > 0 && uint32(start) < t.start[i-1] {
			return nil, fmt.Errorf("%w: the functions of .gopclntab are in disorder", ErrMalformed)
		}
		t.start[i] = uint32(start)
		if i < n {
			at[i] = uint32(word(2*i + 1))
		}
	}
	return at, nil
}

// tree is where the inlined calls of a function are, in order to read them from front to end.
type tree struct{ function, offset uint32 }

// readFuncs reads the functions' descriptions, that are at these places.
func (r *goReader) readFuncs(at []uint32) error {
	t := &r.t
	w := window{f: r.elfFile, offset: r.offset + r.program, size: r.size - r.program}
	entry := uint64(4)
	fixed := uint64(44)
	switch r.version {
	case go116:
		entry, fixed = r.pointer, 36+r.pointer
	case go118:
		fixed = 40
	}
	var trees []tree
	var n namer
	for i := range t.funcs {
		b, err := w.bytes(uint64(at[i]), fixed)
		if err != nil {
			return err
		}
		if b == nil {
			return fmt.Errorf("%w: a function of .gopclntab is outside of it", ErrMalformed)
		}
		field := func(i uint64) uint32 { return r.endian.Uint32(b[entry+4*i:]) }
		n.add(r.name(field(0)))
		f := goFunc{file: field(4), line: field(5), unit: field(7), calls: noCalls}
		values, data := uint64(field(6)), uint64(b[fixed-1])
		const inlined = 2 // PCDATA_InlTreeIndex
		const inlinedTree = 3
		if values > inlined && values < 1<<10 {
			rest, err := w.bytes(uint64(at[i])+fixed, 4*(values+data))
			if err != nil {
				return err
			}
			if rest != nil {
				f.inlined = r.endian.Uint32(rest[4*inlined:])
				if data > inlinedTree && r.version != go116 && f.inlined != 0 {
					if off := r.endian.Uint32(rest[4*(values+inlinedTree):]); off != 1<<32-1 {
						trees = append(trees, tree{function: uint32(i), offset: off})
					}
				}
			}
		}
		t.funcs[i] = f
	}
	if err := r.readCalls(trees, &n); err != nil {
		return err
	}
	t.names = n.finish()
	return nil
}

// name returns a function's name.
func (r *goReader) name(off uint32) []byte {
	if uint64(off) >= uint64(len(r.nameText)) {
		return nil
	}
	b := r.nameText[off:]
	for i, c := range b[:min(len(b), maxName)] {
		if c == 0 {
			return b[:i]
		}
	}
	return nil
}

// readCalls reads the inlined calls. They are not in .gopclntab.
func (r *goReader) readCalls(trees []tree, n *namer) error {
	t := &r.t
	base, size, ok := r.module.inlined(r.elfFile)
	if !ok {
		return nil
	}
	entry, nameAt, callAt := uint64(16), 4, 8
	if r.version == go118 {
		entry, nameAt, callAt = 20, 12, 16
	}
	slices.SortFunc(trees, func(a, b tree) int { return cmp.Compare(a.offset, b.offset) })
	w := window{f: r.elfFile, offset: base, size: size}
	numbers := map[uint32]uint32{} // of names, by their place
	for _, tree := range trees {
		f := &t.funcs[tree.function]
		count := t.maxValue(f.inlined) + 1
		if count <= 0 || uint64(count)*entry > chunk {
			continue
		}
		b, err := w.bytes(uint64(tree.offset), uint64(count)*entry)
		if err != nil {
			return err
		}
		if b == nil {
			continue
		}
		if len(t.calls)+int(count) > 4*r.limits.Symbols {
			return fmt.Errorf("%w: more than %d inlined calls", ErrTooLarge, 4*r.limits.Symbols)
		}
		if !r.areCalls(b, int(entry), nameAt, callAt, t.start[tree.function+1]-t.start[tree.function]) {
			continue
		}
		f.calls = uint32(len(t.calls))
		for ; len(b) > 0; b = b[entry:] {
			c := goCall{at: r.endian.Uint32(b[callAt:])}
			if r.names {
				off := r.endian.Uint32(b[nameAt:])
				number, ok := numbers[off]
				if !ok {
					number = uint32(n.count)
					numbers[off] = number
					n.add(r.name(off))
				}
				c.name = number
			}
			t.calls = append(t.calls, c)
		}
	}
	t.calls = slices.Clip(slices.Clone(t.calls))
	return nil
}

// areCalls tells inlined calls from other data: each has the beginning of a name, and a place in the function.
func (r *goReader) areCalls(b []byte, entry, nameAt, callAt int, size uint32) bool {
	for ; len(b) > 0; b = b[entry:] {
		off := r.endian.Uint32(b[nameAt:])
		if len(r.name(off)) == 0 || off > 0 && r.nameText[off-1] != 0 || r.endian.Uint32(b[callAt:]) >= size {
			return false
		}
	}
	return true
}

// maxSteps bounds how much of a table of values is decoded for one address.
const maxSteps = 1 << 17

// values calls each with the values of the table at off: what holds for all up to the address end, from
// the function's start.
func (t *goTable) values(off uint32, each func(value int32, end uint32) bool) {
	if off == 0 || uint64(off) >= uint64(len(t.pctab)) {
		return
	}
	b := t.pctab[off:]
	value, pc := int32(-1), uint32(0)
	for step := range maxSteps {
		delta, n := binary.Uvarint(b[:min(len(b), 5)])
		if n <= 0 || delta == 0 && step > 0 {
			return
		}
		b = b[n:]
		distance, n := binary.Uvarint(b[:min(len(b), 5)])
		if n <= 0 {
			return
		}
		b = b[n:]
		value += int32(uint32(delta)>>1) ^ -int32(uint32(delta)&1)
		pc += uint32(distance) * t.quantum
		if !each(value, pc) {
			return
		}
	}
}

// value returns the value for an address, from the function's start, and -1 if there is none.
func (t *goTable) value(off, pc uint32) int32 {
	found := int32(-1)
	t.values(off, func(value int32, end uint32) bool {
		if pc < end {
			found = value
			return false
		}
		return true
	})
	return found
}

func (t *goTable) maxValue(off uint32) int32 {
	largest := int32(-1)
	t.values(off, func(value int32, _ uint32) bool {
		largest = max(largest, value)
		return true
	})
	return largest
}

// maxDepth is how many calls within one another are followed.
const maxDepth = 64

// lookup returns the function at an address.
func (t *goTable) lookup(addr uint64, inlined bool) (Symbol, bool) {
	if addr < t.text || addr-t.text > 1<<32-1 {
		return Symbol{}, false
	}
	rel := uint32(addr - t.text)
	i := sort.Search(len(t.start), func(i int) bool { return t.start[i] > rel }) - 1
	if i < 0 || i >= len(t.funcs) {
		return Symbol{}, false
	}
	name := t.names.get(i)
	if name == "" {
		return Symbol{}, false
	}
	f := &t.funcs[i]
	pc := rel - t.start[i]
	var chain []Symbol
	call := t.value(f.inlined, pc)
	if call >= 0 && f.calls == noCalls {
		// Which line of the function itself this is, is not known.
		return Symbol{Name: name, File: t.file(f, 0), Source: SourcePclntab}, true
	}
	for depth := 0; call >= 0 && depth < maxDepth && uint64(f.calls)+uint64(call) < uint64(len(t.calls)); depth++ {
		c := t.calls[f.calls+uint32(call)]
		if inlined {
			s := t.position(f, pc)
			s.Name = t.names.get(int(c.name))
			chain = append(chain, s)
		}
		pc = c.at
		call = t.value(f.inlined, pc)
	}
	s := t.position(f, pc)
	s.Name = name
	if len(chain) > 0 {
		chain = append(chain, s)
		s = chain[0]
		s.Callers = chain[1:]
	}
	return s, true
}

func (t *goTable) covers(addr uint64) bool {
	return addr >= t.text && addr-t.text < uint64(t.start[len(t.start)-1])
}

// position returns file and line of an address, from the function's start.
func (t *goTable) position(f *goFunc, pc uint32) Symbol {
	s := Symbol{File: t.file(f, pc), Source: SourcePclntab}
	if line := t.value(f.line, pc); line > 0 && s.File != "" {
		s.Line = int(line)
	}
	return s
}

func (t *goTable) file(f *goFunc, pc uint32) string {
	number := t.value(f.file, pc)
	if number < 0 || uint64(f.unit)+uint64(number) >= uint64(len(t.files)) {
		return ""
	}
	return cString(t.fileNames, t.files[f.unit+uint32(number)], maxPath)
}

const maxPath = 4096

func (t *goTable) bytes() int64 {
	return 256 + 4*int64(cap(t.start)) + 20*int64(cap(t.funcs)) + t.names.bytes() + int64(cap(t.pctab)) + 4*int64(cap(t.files)) +
		int64(cap(t.fileNames)) + 8*int64(cap(t.calls))
}
