package parse

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// errGoFunc is the error for an unreadable function.
var errGoFunc = errors.New("a function is inconsistent")

// inMemory is a file whose part from offset at is in memory.
type inMemory struct {
	io.ReaderAt
	at   int64
	part []byte
}

func (m inMemory) ReadAt(b []byte, off int64) (int, error) {
	if from := off - m.at; from >= 0 && from+int64(len(b)) <= int64(len(m.part)) {
		return copy(b, m.part[from:]), nil
	}
	return m.ReaderAt.ReadAt(b, off)
}

// loadFunctions returns a table with more functions. Invalid functions get no name. It returns read errors, and ErrTooLarge if
// there are too many functions.
func loadFunctions(t *symtab.GoTable, f *reader, wanted []symtab.GoRange, limits symtab.Limits) (*symtab.GoTable, error) {
	if len(wanted) == 0 {
		return t, nil
	}
	more := *t
	more.Loaded = make(map[uint32]*symtab.GoFunc, len(t.Loaded)+len(wanted))
	maps.Copy(more.Loaded, t.Loaded)
	r := &goReader{reader: f, GoPlace: &t.GoPlace, paths: map[uint64]string{}, names: map[uint32]string{}}
	for _, w := range wanted {
		if more.Size > int64(limits.Names) {
			return nil, fmt.Errorf("%w: more than %d bytes of functions", symtab.ErrTooLarge, limits.Names)
		}
		fn, err := r.function(w.Number, w.Size)
		if errors.Is(err, errGoFunc) || errors.Is(err, symtab.ErrMalformed) {
			fn, err = nil, nil
		}
		if err != nil {
			return nil, err
		}
		more.Loaded[w.Number] = fn
		more.Size += fn.Bytes()
	}
	return &more, nil
}

// goReader reads functions of a Go function table.
type goReader struct {
	*reader
	*symtab.GoPlace
	paths map[uint64]string // by offset in FileNames
	names map[uint32]string
	buf   []byte
}

// some reads up to n bytes at off, in the part of the table from begin to end. The bytes are valid until the next call.
func (r *goReader) some(begin, end, off uint64, n int) ([]byte, error) {
	end = min(end, r.End-r.Offset)
	if begin > end || off >= end-begin {
		return nil, errGoFunc
	}
	n = int(min(uint64(n), end-begin-off))
	if n > cap(r.buf) {
		r.buf = make([]byte, n)
	}
	b := r.buf[:n]
	return b, r.at(b, r.Offset+begin+off)
}

// text reads a zero-terminated text. It returns "" if the text is longer than limit bytes.
func (r *goReader) text(begin, end, off uint64, limit int) (string, error) {
	for n := 128; ; n *= 4 {
		b, err := r.some(begin, end, off, min(n, limit+1))
		if err != nil {
			return "", err
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			return string(b[:i]), nil
		}
		if len(b) < n {
			return "", nil
		}
	}
}

// values reads a table of values. The result is empty if there is no table.
func (r *goReader) values(off uint32) (symtab.GoPairs, error) {
	if off == 0 {
		return symtab.GoPairs{}, nil
	}
	for n := 128; n <= symtab.MaxGoValues; n *= 4 {
		b, err := r.some(r.Pctab, r.Program, uint64(off), n)
		if err != nil {
			return symtab.GoPairs{}, err
		}
		if p, whole := newGoPairs(b, uint32(r.Quantum)); whole || len(b) < n { // otherwise, it is longer than b
			return p, nil
		}
	}
	return symtab.GoPairs{}, errGoFunc
}

// record reads up to n bytes of the i-th function's description, but at least the given number. at is its offset in the part
// of the table that begins with Program.
func (r *goReader) record(i uint64, least, n int) (b []byte, at uint64, err error) {
	table, width := r.End-r.Offset, width(&r.GoHeader)
	if b, err = r.some(r.Program, table, (2*i+1)*width, int(width)); err == nil && uint64(len(b)) == width {
		at = word(&r.GoHeader, b)
		if b, err = r.some(r.Program, table, at, n); err == nil && len(b) >= least {
			return b, at, nil
		}
	}
	return nil, 0, cmp.Or(err, errGoFunc)
}

// function reads the i-th function, which has size bytes of code.
func (r *goReader) function(i, size uint32) (*symtab.GoFunc, error) {
	entry, fixed := 4, 44
	switch r.Version {
	case symtab.Go116:
		entry, fixed = int(r.Pointer), 36+int(r.Pointer)
	case symtab.Go118:
		fixed = 40
	}
	b, at, err := r.record(uint64(i), fixed, 256)
	if err != nil {
		return nil, err
	}
	field := func(i int) uint32 { return binary.LittleEndian.Uint32(b[entry+4*i:]) }
	name, fileTable, lineTable, unit := field(0), field(4), field(5), field(7)
	inlinedTable, tree := uint32(0), uint32(1<<32-1)
	const inlined = 2 // PCDATA_InlTreeIndex
	const inlinedTree = 3
	if values, data := int(field(6)), int(b[fixed-1]); values > inlined && values < 1<<10 {
		if all := fixed + 4*(values+data); all > len(b) {
			if b, err = r.some(r.Program, r.End-r.Offset, at, all); err != nil {
				return nil, err
			}
		}
		if rest := b[fixed:]; len(rest) >= 4*(values+data) {
			inlinedTable = binary.LittleEndian.Uint32(rest[4*inlined:])
			if data > inlinedTree && r.Version != symtab.Go116 && inlinedTable != 0 {
				tree = binary.LittleEndian.Uint32(rest[4*(values+inlinedTree):])
			}
		}
	}
	f := &symtab.GoFunc{NoCalls: true}
	if r.Version == symtab.Go120 {
		f.Start = startLine(field(8))
	}
	if f.Name, err = r.name(name); err != nil {
		return nil, err
	}
	for _, t := range []struct {
		to *symtab.GoPairs
		at uint32
	}{{&f.File, fileTable}, {&f.Line, lineTable}, {&f.Inlined, inlinedTable}} {
		if *t.to, err = r.values(t.at); err != nil && !errors.Is(err, errGoFunc) {
			return nil, err
		}
	}
	if err := r.readFiles(f, unit); err != nil {
		return nil, err
	}
	if tree != 1<<32-1 {
		return f, r.readCalls(f, tree, size)
	}
	return f, nil
}

// name returns the name of a function.
func (r *goReader) name(off uint32) (string, error) {
	name, ok := r.names[off]
	if ok {
		return name, nil
	}
	name, err := r.text(r.FuncNames, r.Units, uint64(off), symtab.MaxName)
	if errors.Is(err, errGoFunc) {
		name, err = "", nil
	}
	if err == nil {
		r.names[off] = name
	}
	return name, err
}

// readFiles reads the paths of a function's source files.
func (r *goReader) readFiles(f *symtab.GoFunc, unit uint32) error {
	f.Files = map[int32]string{}
	numbers := map[int32]struct{}{}
	symtab.GoValues(f.File.B, uint32(r.Quantum), symtab.GoStart, func(now symtab.GoResume) bool {
		if now.Value >= 0 {
			numbers[now.Value] = struct{}{}
		}
		return len(numbers) < symtab.MaxGoFiles
	})
	for number := range numbers {
		b, err := r.some(r.Units, r.FileNames, 4*(uint64(unit)+uint64(number)), 4)
		if err == nil && len(b) == 4 {
			at := uint64(binary.LittleEndian.Uint32(b))
			path, known := r.paths[at]
			if !known {
				path, err = r.text(r.FileNames, r.Pctab, at, symtab.MaxPath)
				r.paths[at] = path
			}
			if path != "" {
				f.Files[number] = path
			}
		}
		if err != nil && !errors.Is(err, errGoFunc) {
			return err
		}
	}
	return nil
}

// readCalls reads a function's inlining tree at r.Calls, outside .gopclntab. size is the size of the function's code in bytes.
func (r *goReader) readCalls(f *symtab.GoFunc, tree, size uint32) error {
	entry, nameAt, callAt := 16, 4, 8
	if r.Version == symtab.Go118 {
		entry, nameAt, callAt = 20, 12, 16
	}
	count := int32(0)
	symtab.GoValues(f.Inlined.B, uint32(r.Quantum), symtab.GoStart, func(now symtab.GoResume) bool {
		count = max(count, now.Value+1)
		return true
	})
	if count <= 0 || int64(count)*int64(entry) > symtab.Chunk || uint64(tree)+uint64(count)*uint64(entry) > r.CallsSize {
		return nil
	}
	b := make([]byte, int(count)*entry)
	if err := r.at(b, r.Calls+uint64(tree)); err != nil {
		return err
	}
	calls := make([]symtab.GoCall, 0, count)
	for ; len(b) > 0; b = b[entry:] {
		c := symtab.GoCall{At: binary.LittleEndian.Uint32(b[callAt:])}
		if r.Version == symtab.Go120 {
			c.Start = startLine(binary.LittleEndian.Uint32(b[12:]))
		}
		var err error
		if c.Name, err = r.callName(binary.LittleEndian.Uint32(b[nameAt:])); err != nil {
			return err
		}
		if c.Name == "" || c.At >= size { // not an inlining tree: NoCalls stays set
			return nil
		}
		calls = append(calls, c)
	}
	f.Calls, f.NoCalls = calls, false
	return nil
}

// startLine returns the first line of a function, or 0.
func startLine(n uint32) int { return int(max(int32(n), 0)) }

// callName returns the name of an inlined function, or "" if no name begins at off, right after the end of another name.
func (r *goReader) callName(off uint32) (string, error) {
	if _, known := r.names[off]; !known && off > 0 {
		b, err := r.some(r.FuncNames, r.Units, uint64(off)-1, 1)
		switch {
		case errors.Is(err, errGoFunc), err == nil && b[0] != 0:
			return "", nil
		case err != nil:
			return "", err
		}
	}
	return r.name(off)
}
