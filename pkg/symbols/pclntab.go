package symbols

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
)

// goTable is the functions of a Go program: what runtime.Callers and debug/gosym read (golang.org/s/go12symtab and
// src/runtime/symtab.go of each release), without what only the garbage collector and the unwinder use.
//
// Programs have a hundred thousand functions, of which some hundreds are ever asked for. So the table has the starts
// of all functions, and names, files and lines only of those that were asked for (see load). A goTable does not
// change.
type goTable struct {
	goPlace
	text   uint64   // the address that starts are relative to
	start  []uint32 // one more than there are functions: each covers all up to the next
	loaded map[uint32]*goFunc
	size   int64 // of loaded, in bytes
}

// goPlace is where the parts of the table are in the file.
type goPlace struct {
	goHeader
	offset, end uint64
	text        uint64 // the address that starts are relative to, as findModule has found it; 0 if the header has to tell
	// Where the trees of inlined calls are, and how many bytes they have at most; 0 if that is not known.
	calls, callsSize uint64
}

// goFunc is a function. nil stands for one that cannot be read.
type goFunc struct {
	name                string
	start               int // the line that it begins at, 0 where that is not known
	file, line, inlined goPairs
	files               map[int32]string // by the values of the table file
	calls               []goCall         // inlined ones
	noCalls             bool             // inlined calls are not known
}

// goCall is a call that was inlined.
type goCall struct {
	at    uint32 // an address that belongs to the place of the call, from the function's start
	start int    // the line that the inlined function begins at, 0 where that is not known
	name  string // if Options.Inlined
}

// The layouts of the table, by the release of Go that brought them.
type goVersion int

const (
	go116 goVersion = iota
	go118
	go120
)

// goHeader is the header of a table. Its last five fields are the offsets of the table's parts from the table's
// start.
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

// goHeaderSize is the size of the largest header, in bytes.
const goHeaderSize = 8 + 8*8

// readGo reads where the functions of a Go program begin, nil if the file is none.
func (f *elfFile) readGo(limits Limits) (*goTable, error) {
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
		return nil, nil // the layout of an older release of Go, or of a future one
	}
	if h.program >= size {
		return nil, fmt.Errorf("%w: .gopclntab ends before its functions begin", ErrMalformed)
	}
	if h.functions > uint64(limits.Symbols) {
		return nil, fmt.Errorf("%w: %d functions", ErrTooLarge, h.functions)
	}
	t := &goTable{goPlace: goPlace{goHeader: h, offset: at.offset, end: at.offset + size}}
	module, err := f.findModule(at.addr, h)
	if err != nil {
		return nil, err
	}
	t.goPlace.text = module.text
	if offset, size, ok := module.inlined(f); ok {
		t.calls, t.callsSize = offset, size
	}
	if err := t.readStarts(f); err != nil || len(t.start) == 0 {
		return nil, err
	}
	return t, nil
}

// width is how many bytes a word of the list of functions has.
func (h *goHeader) width() uint64 {
	if h.version == go116 {
		return h.pointer
	}
	return 4
}

func (h *goHeader) word(b []byte) uint64 {
	if h.width() == 8 {
		return h.endian.Uint64(b)
	}
	return uint64(h.endian.Uint32(b))
}

// readStarts reads where functions begin.
func (t *goTable) readStarts(f *elfFile) error {
	width, n := t.width(), t.functions
	if t.program+(2*n+1)*width > t.end-t.offset {
		return fmt.Errorf("%w: the list of functions of .gopclntab is outside of it", ErrMalformed)
	}
	w := window{f: f, offset: t.offset + t.program, size: (2*n + 1) * width}
	start := make([]uint32, n+1)
	for i := range n + 1 {
		b, err := w.bytes(2*i*width, width)
		if err != nil {
			return err
		}
		at := t.word(b)
		if i == 0 {
			switch t.text = t.goPlace.text; {
			case t.version == go116:
				t.text = at // starts are addresses in this layout
			case t.text == 0:
				t.text = t.textStart
			}
			if t.text == 0 {
				return nil // without the base no address can be told
			}
		}
		if t.version == go116 {
			at -= t.text
		}
		if at > 1<<32-1 || i > 0 && uint32(at) < start[i-1] {
			return fmt.Errorf("%w: the functions of .gopclntab are in disorder", ErrMalformed)
		}
		start[i] = uint32(at)
	}
	t.start = start
	return nil
}

// goPairs is a table of values by address, counted from a function's start. b has pairs of differences, of value and
// of address, as the Go toolchain writes them; resume has the places where decoding can begin. So a look-up decodes
// resumeSteps pairs at most, however long the table is.
type goPairs struct {
	b      []byte
	resume []goResume // after each resumeSteps pairs, but for the start
}

// goResume is the state between two pairs.
type goResume struct {
	at    uint32 // in the table
	pc    uint32 // where the last pair ends
	value int32  // of the last pair
}

const (
	resumeSteps = 64
	maxSteps    = 1 << 17 // pairs of a table
)

// goStart is the state before the first pair.
var goStart = goResume{value: -1}

// goValues calls each for the pairs of a table from a state on, until it returns false: now.value holds for addresses
// below now.pc. It returns how many bytes of the table it has read, and false if the table has no end.
func goValues(b []byte, quantum uint32, from goResume, each func(now goResume) bool) (int, bool) {
	now := from
	rest := b[from.at:]
	for range maxSteps {
		delta, n := binary.Uvarint(rest[:min(len(rest), 5)])
		if n <= 0 {
			return 0, false
		}
		rest = rest[n:]
		if delta == 0 && now.at > 0 {
			return len(b) - len(rest), true
		}
		distance, n := binary.Uvarint(rest[:min(len(rest), 5)])
		if n <= 0 {
			return 0, false
		}
		rest = rest[n:]
		now.value += int32(uint32(delta)>>1) ^ -int32(uint32(delta)&1)
		now.pc += uint32(distance) * quantum
		now.at = uint32(len(b) - len(rest))
		if !each(now) {
			break
		}
	}
	return len(b) - len(rest), true
}

// newGoPairs returns a table with the places where decoding can begin.
func newGoPairs(b []byte, quantum uint32) goPairs {
	p := goPairs{b: bytes.Clone(b)}
	steps := 0
	goValues(p.b, quantum, goStart, func(now goResume) bool {
		if steps++; steps%resumeSteps == 0 {
			p.resume = append(p.resume, now)
		}
		return true
	})
	p.resume = slices.Clip(p.resume)
	return p
}

// from returns where decoding begins for an address.
func (p *goPairs) from(pc uint32) goResume {
	if i := sort.Search(len(p.resume), func(i int) bool { return p.resume[i].pc > pc }); i > 0 {
		return p.resume[i-1]
	}
	return goStart
}

// value returns the value for an address, from the function's start, and -1 if there is none.
func (t *goTable) value(p *goPairs, pc uint32) int32 {
	found, steps := int32(-1), 0
	goValues(p.b, uint32(t.quantum), p.from(pc), func(now goResume) bool {
		if pc < now.pc {
			found = now.value
			return false
		}
		steps++
		return steps < resumeSteps // the value is found by then, unless the table is damaged and addresses fall
	})
	return found
}

func (p *goPairs) bytes() int { return cap(p.b) + 12*cap(p.resume) }

// maxDepth is how many calls within one another are followed.
const maxDepth = 64

// function returns the number of the function at an address, false where there is none.
func (t *goTable) function(addr uint64) (uint32, bool) {
	if addr < t.text || addr-t.text > 1<<32-1 {
		return 0, false
	}
	rel := uint32(addr - t.text)
	i := sort.Search(len(t.start), func(i int) bool { return t.start[i] > rel }) - 1
	return uint32(i), i >= 0 && i < len(t.start)-1
}

// lookup returns the function at an address. The State is Named, Outside, or Pending for one that was not loaded.
func (t *goTable) lookup(addr uint64, inlined bool) (Symbol, State) {
	i, ok := t.function(addr)
	if !ok {
		return Symbol{}, Outside
	}
	f, ok := t.loaded[i]
	switch {
	case !ok:
		return Symbol{}, Pending
	case f == nil || f.name == "":
		return Symbol{}, Outside
	}
	pc := uint32(addr-t.text) - t.start[i]
	var chain []Symbol
	call := t.value(&f.inlined, pc)
	if call >= 0 && f.noCalls {
		// Which line of the function itself this is, is not known.
		return Symbol{Name: f.name, File: f.files[t.value(&f.file, 0)], StartLine: f.start, Source: SourcePclntab}, Named
	}
	for depth := 0; call >= 0 && depth < maxDepth && int(call) < len(f.calls); depth++ {
		c := f.calls[call]
		if inlined {
			s := t.position(f, pc)
			s.Name, s.StartLine = c.name, c.start
			chain = append(chain, s)
		}
		pc = c.at
		call = t.value(&f.inlined, pc)
	}
	s := t.position(f, pc)
	s.Name, s.StartLine = f.name, f.start
	if len(chain) > 0 {
		chain = append(chain, s)
		s = chain[0]
		s.Callers = chain[1:]
	}
	return s, Named
}

func (t *goTable) covers(addr uint64) bool {
	return addr >= t.text && addr-t.text < uint64(t.start[len(t.start)-1])
}

// coversAll tells whether all code of a file is that of its Go functions. After the last function a section may have
// padding, up to alignment.
func (t *goTable) coversAll(f *elfFile) bool {
	const alignment = 64
	code := false
	end := t.text + uint64(t.start[len(t.start)-1])
	for i := range f.sections {
		if s := &f.sections[i]; s.flags&elf.SHF_EXECINSTR != 0 && s.size > 0 {
			if !t.covers(s.addr) || s.end() < s.addr || s.end() > end+alignment {
				return false
			}
			code = true
		}
	}
	return code
}

// position returns file and line of an address, from the function's start.
func (t *goTable) position(f *goFunc, pc uint32) Symbol {
	s := Symbol{File: f.files[t.value(&f.file, pc)], Source: SourcePclntab}
	if line := t.value(&f.line, pc); line > 0 && s.File != "" {
		s.Line = int(line)
	}
	return s
}

func (t *goTable) bytes() int64 { return 512 + 4*int64(cap(t.start)) + t.size }
