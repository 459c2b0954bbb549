package parse

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// parseGoHeader decodes a header. It returns false for other data.
func parseGoHeader(b []byte) (h symtab.GoHeader, ok bool) {
	if len(b) < 8 {
		return h, false
	}
	switch binary.LittleEndian.Uint32(b) {
	case 0xfffffffa:
		h.Version = symtab.Go116
	case 0xfffffff0:
		h.Version = symtab.Go118
	case 0xfffffff1:
		h.Version = symtab.Go120
	default:
		return h, false
	}
	h.Quantum, h.Pointer = uint64(b[6]), uint64(b[7])
	if b[4] != 0 || b[5] != 0 || h.Quantum != 1 && h.Quantum != 2 && h.Quantum != 4 || h.Pointer != 4 && h.Pointer != 8 {
		return h, false
	}
	words := 8
	if h.Version == symtab.Go116 {
		words = 7
	}
	if len(b) < 8+words*int(h.Pointer) {
		return h, false
	}
	var w [8]uint64
	for i := range words {
		w[i] = number(b[8+i*int(h.Pointer):], h.Pointer)
	}
	h.Functions = w[0]
	rest := w[2:]
	if h.Version != symtab.Go116 {
		h.TextStart, rest = w[2], w[3:]
	}
	h.FuncNames, h.Units, h.FileNames, h.Pctab, h.Program = rest[0], rest[1], rest[2], rest[3], rest[4]
	ok = h.Functions > 0 && h.Functions < 1<<31 && h.FuncNames >= uint64(8+words*int(h.Pointer)) && h.FuncNames < h.Units &&
		h.Units <= h.FileNames && h.FileNames <= h.Pctab && h.Pctab <= h.Program && h.Program < 1<<40
	return h, ok
}

// goHeaderSize is the size of the largest header in bytes.
const goHeaderSize = 8 + 8*8

// readGo reads the start addresses of a Go program's functions. It returns nil if the file is not a Go program.
func (f *elfFile) readGo(limits symtab.Limits) (*symtab.GoTable, error) {
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
		return nil, nil // a layout older or newer than the known ones
	}
	if h.Program >= size {
		return nil, fmt.Errorf("%w: .gopclntab ends before its functions begin", symtab.ErrMalformed)
	}
	if h.Functions > uint64(limits.Symbols) {
		return nil, fmt.Errorf("%w: %d functions", symtab.ErrTooLarge, h.Functions)
	}
	t := &symtab.GoTable{GoPlace: symtab.GoPlace{GoHeader: h, Offset: at.offset, End: at.offset + size}}
	module, err := f.findModule(at.addr, h)
	if err != nil {
		return nil, err
	}
	t.GoPlace.Text = module.text
	if module.data != 0 {
		t.Calls, t.CallsSize, _ = f.fileRange(module.data)
	}
	if err := readStarts(t, f); err != nil || len(t.Start) == 0 {
		return nil, err
	}
	return t, nil
}

// width returns the size in bytes of a word in the list of functions.
func width(h *symtab.GoHeader) uint64 {
	if h.Version == symtab.Go116 {
		return h.Pointer
	}
	return 4
}

func word(h *symtab.GoHeader, b []byte) uint64 { return number(b, width(h)) }

// readStarts reads the start addresses of all functions.
func readStarts(t *symtab.GoTable, f *elfFile) error {
	width, n := width(&t.GoHeader), t.Functions
	if t.Program+(2*n+1)*width > t.End-t.Offset {
		return fmt.Errorf("%w: the list of functions lies outside of .gopclntab", symtab.ErrMalformed)
	}
	w := window{f: f, offset: t.Offset + t.Program, size: (2*n + 1) * width}
	start := make([]uint32, n+1)
	for i := range n + 1 {
		b, err := w.bytes(2*i*width, width)
		if err != nil {
			return err
		}
		at := word(&t.GoHeader, b)
		if i == 0 {
			switch t.Text = t.GoPlace.Text; {
			case t.Version == symtab.Go116:
				t.Text = at // in this layout, starts are addresses
			case t.Text == 0:
				t.Text = t.TextStart
			}
			if t.Text == 0 {
				return nil // without the base, addresses are unknown
			}
		}
		if t.Version == symtab.Go116 {
			at -= t.Text
		}
		if at > 1<<32-1 || i > 0 && uint32(at) < start[i-1] {
			return fmt.Errorf("%w: the functions of .gopclntab are not in order", symtab.ErrMalformed)
		}
		start[i] = uint32(at)
	}
	t.Start = start
	return nil
}

// newGoPairs returns the table at the start of b with its resume points. whole reports whether b contains its end.
func newGoPairs(b []byte, quantum uint32) (p symtab.GoPairs, whole bool) {
	steps := 0
	used, whole := symtab.GoValues(b, quantum, symtab.GoStart, func(now symtab.GoResume) bool {
		if steps++; steps%symtab.ResumeSteps == 0 {
			p.Resume = append(p.Resume, now)
		}
		return true
	})
	if !whole {
		used = len(b)
	}
	p.B, p.Resume = bytes.Clone(b[:used]), slices.Clip(p.Resume)
	return p, whole
}

// coversAll reports whether all code of a file belongs to its Go functions. A section can contain padding after the last
// function.
func coversAll(t *symtab.GoTable, f *elfFile) bool {
	const alignment = 64
	code := false
	end := t.Text + uint64(t.Start[len(t.Start)-1])
	for i := range f.sections {
		if s := &f.sections[i]; s.flags&elf.SHF_EXECINSTR != 0 && s.size > 0 {
			if !t.Covers(s.addr) || s.end() < s.addr || s.end() > end+alignment {
				return false
			}
			code = true
		}
	}
	return code
}
