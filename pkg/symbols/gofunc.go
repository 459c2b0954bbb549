package symbols

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// Bounds of what is read of one function.
const (
	maxGoValues = 4 << 20 // bytes of one table of values
	maxGoFiles  = 1024
	maxPath     = 4096
)

// errGoFunc says that there is nothing of a function that can be read.
var errGoFunc = errors.New("a function that contradicts itself")

// missing returns the functions at addrs that were not loaded.
func (t *goTable) missing(addrs []uint64) []goRange {
	var wanted []goRange
	for _, addr := range addrs {
		if i, ok := t.function(addr); ok {
			if _, ok := t.loaded[i]; !ok {
				wanted = append(wanted, goRange{i, t.start[i+1] - t.start[i]})
			}
		}
	}
	slices.SortFunc(wanted, func(a, b goRange) int { return cmp.Compare(a.number, b.number) })
	return slices.Compact(wanted)
}

// loadAll is loadFunctions for all functions.
func (t *goTable) loadAll(f *reader, inlined bool, limits Limits) (*goTable, error) {
	wanted := make([]goRange, len(t.start)-1)
	for i := range wanted {
		wanted[i] = goRange{uint32(i), t.start[i+1] - t.start[i]}
	}
	all := *f
	if size := t.end - t.offset; size <= uint64(limits.Names) { // one large read in place of a dozen for each of a hundred thousand functions
		b := make([]byte, size)
		if err := f.at(b, t.offset); err != nil {
			return nil, err
		}
		all.r = inMemory{f.r, int64(t.offset), b}
	}
	return t.loadFunctions(&all, wanted, inlined, limits)
}

// inMemory is a file of which the part from offset at on is in memory.
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

// loadFunctions returns a table that has more functions. Those that make no sense get no name. An error comes from reading, or
// is ErrTooLarge where the functions are too many.
func (t *goTable) loadFunctions(f *reader, wanted []goRange, inlined bool, limits Limits) (*goTable, error) {
	if len(wanted) == 0 {
		return t, nil
	}
	more := *t
	more.loaded = make(map[uint32]*goFunc, len(t.loaded)+len(wanted))
	maps.Copy(more.loaded, t.loaded)
	r := &goReader{reader: f, goPlace: &t.goPlace, inlined: inlined, paths: map[uint64]string{}, names: map[uint32]string{}}
	for _, w := range wanted {
		if more.size > int64(limits.Names) {
			return nil, fmt.Errorf("%w: more than %d bytes of functions", ErrTooLarge, limits.Names)
		}
		fn, err := r.function(w.number, w.size)
		if errors.Is(err, errGoFunc) || errors.Is(err, ErrMalformed) {
			fn, err = nil, nil
		}
		if err != nil {
			return nil, err
		}
		more.loaded[w.number] = fn
		more.size += fn.bytes()
	}
	return &more, nil
}

// bytes is the memory of a function, without the strings that it shares with others.
func (f *goFunc) bytes() int64 {
	const entry = 48 // of the map of functions
	if f == nil {
		return entry
	}
	n := entry + 232 + int64(len(f.name)+f.file.bytes()+f.line.bytes()+f.inlined.bytes()) + 32*int64(cap(f.calls)) + 48*int64(len(f.files))
	for _, path := range f.files {
		n += int64(len(path))
	}
	for i := range f.calls {
		n += int64(len(f.calls[i].name))
	}
	return n
}

// goReader reads functions of a table.
type goReader struct {
	*reader
	*goPlace
	inlined bool              // names of inlined functions are wanted
	paths   map[uint64]string // by their offset in fileNames
	names   map[uint32]string
	buf     []byte
}

// some reads up to n bytes at an offset in the part from begin to end of the table. They are valid until the next call.
func (r *goReader) some(begin, end, off uint64, n int) ([]byte, error) {
	end = min(end, r.end-r.offset)
	if begin > end || off >= end-begin {
		return nil, errGoFunc
	}
	n = int(min(uint64(n), end-begin-off))
	if n > cap(r.buf) {
		r.buf = make([]byte, n)
	}
	b := r.buf[:n]
	return b, r.at(b, r.offset+begin+off)
}

// text reads a text that ends with a zero byte, and returns "" for one that is longer than limit.
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

// values reads a table of values: an empty one if there is none.
func (r *goReader) values(off uint32) (goPairs, error) {
	if off == 0 {
		return goPairs{}, nil
	}
	for n := 128; n <= maxGoValues; n *= 4 {
		b, err := r.some(r.pctab, r.program, uint64(off), n)
		if err != nil {
			return goPairs{}, err
		}
		used, ok := goValues(b, uint32(r.quantum), goStart, func(goResume) bool { return true })
		if ok {
			return newGoPairs(b[:used], uint32(r.quantum)), nil
		}
		if len(b) < n {
			return newGoPairs(b, uint32(r.quantum)), nil // it is cut off
		}
	}
	return goPairs{}, errGoFunc
}

// function reads the i-th function, whose code has that many bytes.
func (r *goReader) function(i, size uint32) (*goFunc, error) {
	table := r.end - r.offset
	width := r.width()
	b, err := r.some(r.program, table, (2*uint64(i)+1)*width, int(width))
	switch {
	case err != nil:
		return nil, err
	case uint64(len(b)) < width:
		return nil, errGoFunc
	}
	entry, fixed := 4, 44
	switch r.version {
	case go116:
		entry, fixed = int(r.pointer), 36+int(r.pointer)
	case go118:
		fixed = 40
	}
	at := r.word(b)
	switch b, err = r.some(r.program, table, at, 256); {
	case err != nil:
		return nil, err
	case len(b) < fixed:
		return nil, errGoFunc
	}
	field := func(i int) uint32 { return r.endian.Uint32(b[entry+4*i:]) }
	name, fileTable, lineTable, unit := field(0), field(4), field(5), field(7)
	inlinedTable, tree := uint32(0), uint32(1<<32-1)
	const inlined = 2 // PCDATA_InlTreeIndex
	const inlinedTree = 3
	if values, data := int(field(6)), int(b[fixed-1]); values > inlined && values < 1<<10 {
		if all := fixed + 4*(values+data); all > len(b) {
			if b, err = r.some(r.program, table, at, all); err != nil {
				return nil, err
			}
		}
		if rest := b[fixed:]; len(rest) >= 4*(values+data) {
			inlinedTable = r.endian.Uint32(rest[4*inlined:])
			if data > inlinedTree && r.version != go116 && inlinedTable != 0 {
				tree = r.endian.Uint32(rest[4*(values+inlinedTree):])
			}
		}
	}
	f := &goFunc{noCalls: true}
	if r.version == go120 {
		f.start = startLine(field(8))
	}
	if f.name, err = r.name(name); err != nil {
		return nil, err
	}
	for _, t := range []struct {
		to *goPairs
		at uint32
	}{{&f.file, fileTable}, {&f.line, lineTable}, {&f.inlined, inlinedTable}} {
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
	name, err := r.text(r.funcNames, r.units, uint64(off), maxName)
	if errors.Is(err, errGoFunc) {
		name, err = "", nil
	}
	if err == nil {
		r.names[off] = name
	}
	return name, err
}

// readFiles reads the paths of the files that a function has code of.
func (r *goReader) readFiles(f *goFunc, unit uint32) error {
	f.files = map[int32]string{}
	numbers := map[int32]struct{}{}
	goValues(f.file.b, uint32(r.quantum), goStart, func(now goResume) bool {
		if now.value >= 0 {
			numbers[now.value] = struct{}{}
		}
		return len(numbers) < maxGoFiles
	})
	for number := range numbers {
		b, err := r.some(r.units, r.fileNames, 4*(uint64(unit)+uint64(number)), 4)
		if err == nil && len(b) == 4 {
			at := uint64(r.endian.Uint32(b))
			path, known := r.paths[at]
			if !known {
				path, err = r.text(r.fileNames, r.pctab, at, maxPath)
				r.paths[at] = path
			}
			if path != "" {
				f.files[number] = path
			}
		}
		if err != nil && !errors.Is(err, errGoFunc) {
			return err
		}
	}
	return nil
}

// readCalls reads the tree of a function's inlined calls, which is at r.calls and not in .gopclntab. size is that of
// the function's code, in bytes.
func (r *goReader) readCalls(f *goFunc, tree, size uint32) error {
	entry, nameAt, callAt := 16, 4, 8
	if r.version == go118 {
		entry, nameAt, callAt = 20, 12, 16
	}
	count := int32(0)
	goValues(f.inlined.b, uint32(r.quantum), goStart, func(now goResume) bool {
		count = max(count, now.value+1)
		return true
	})
	if count <= 0 || int64(count)*int64(entry) > chunk || uint64(tree)+uint64(count)*uint64(entry) > r.callsSize {
		return nil
	}
	b := make([]byte, int(count)*entry)
	if err := r.at(b, r.calls+uint64(tree)); err != nil {
		return err
	}
	calls := make([]goCall, 0, count)
	for ; len(b) > 0; b = b[entry:] {
		c := goCall{at: r.endian.Uint32(b[callAt:])}
		if r.version == go120 {
			c.start = startLine(r.endian.Uint32(b[12:]))
		}
		ok, err := r.isName(r.endian.Uint32(b[nameAt:]), &c.name)
		if err != nil {
			return err
		}
		if !ok || c.at >= size { // this is no tree: noCalls stays
			return nil
		}
		calls = append(calls, c)
	}
	f.calls, f.noCalls = calls, false
	return nil
}

// startLine returns the line that a function begins at, 0 for what is none.
func startLine(n uint32) int { return int(max(int32(n), 0)) }

// isName tells whether a name begins at off, right after the end of another one. It sets name if names of inlined
// functions are wanted.
func (r *goReader) isName(off uint32, name *string) (bool, error) {
	text, known := r.names[off]
	if !known {
		if off > 0 {
			b, err := r.some(r.funcNames, r.units, uint64(off)-1, 1)
			if errors.Is(err, errGoFunc) || err == nil && b[0] != 0 {
				return false, nil
			} else if err != nil {
				return false, err
			}
		}
		var err error
		if text, err = r.name(off); err != nil {
			return false, err
		}
	}
	if r.inlined {
		*name = text
	}
	return text != "", nil
}
