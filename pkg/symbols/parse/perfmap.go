package parse

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"slices"
	"sort"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// These bound a perf map. Beyond these limits, the oldest pieces of code are dropped. Dropped code can lose its name, but no
// address keeps the name of earlier code.
const (
	maxPerfEntries = 512 << 10
	maxPerfNames   = 32 << 20
	maxPerfLine    = 8 << 10
	maxPerfSize    = 64 << 20 // maximum size of a piece of code
	maxPerfRead    = 64 << 20 // bytes per call; the next call continues
)

// ReadPerfMap reads a JIT compiler's perf map
// (https://github.com/torvalds/linux/blob/master/tools/perf/Documentation/jit-interface.txt). Each line "START SIZE name"
// describes a piece of code. START is an address in the process. START and SIZE are hexadecimal. A later piece replaces the parts
// of earlier pieces that it overlaps.
//
// old is nil, or the Table of an earlier call. With a Table, only the new part is read, unless the file was rewritten. The next
// call reads an incomplete last line and everything beyond maxPerfRead.
func ReadPerfMap(ctx context.Context, r io.ReaderAt, size int64, old *symtab.Table, limits symtab.Limits) (*symtab.Table, error) {
	m := perfMap{limits: limits}
	from := int64(0)
	if old != nil {
		same, err := m.edges.read(ctx, r, size, old)
		if err != nil {
			return nil, err
		}
		if same {
			from = old.Read
			m.take(old)
		}
	}
	read, err := m.read(ctx, r, from, size)
	if err != nil {
		return nil, err
	}
	if old != nil && from == old.Read && read == from && m.cut == old.Cut {
		return old, nil
	}
	t := &symtab.Table{Read: read, Edges: m.edges.sum(), Cut: m.cut}
	// ErrTooSlow is also an ErrTooLarge. The remaining code has no names.
	if err := m.addTo(ctx, t); err != nil && !errors.Is(err, symtab.ErrTooLarge) {
		return nil, err
	}
	return t, nil
}

// addTo adds the remaining pieces to a table.
func (m *perfMap) addTo(ctx context.Context, t *symtab.Table) error {
	m.sort()
	numbers := make([]uint32, len(m.entries))
	count := 0
	for s := range m.flatten() {
		count++
		if n := m.entries[s.symbol].name; len(m.names.get(n)) > 0 {
			numbers[s.symbol] = n
		}
	}
	left := m.limits.Budget()
	return addSpans(t, &reader{ctx: ctx, left: &left}, m.flatten(), count, symtab.SourcePerfMap, &m.names, numbers)
}

// perfMap holds the pieces of code in the order of their lines.
type perfMap struct {
	limits  symtab.Limits
	entries []perfEntry
	names   texts    // the parts of a split piece share one name
	order   []uint32 // see sort
	edges   edges
	cut     bool // the map was not read completely
}

type perfEntry struct {
	start, end uint64
	name       uint32 // offset in names
}

// take adds the pieces of a table.
func (m *perfMap) take(t *symtab.Table) {
	for i := range t.Layers {
		l := &t.Layers[i]
		if i == 0 { // all layers share them
			for n := range l.Names.Count {
				m.names.add([]byte(l.Names.Get(n)))
			}
		}
		for j, start := range l.Starts {
			start := l.Base + uint64(start)
			m.entries = append(m.entries, perfEntry{start, start + uint64(l.Sizes[j]), l.Texts[j] + 1})
		}
	}
	if entries, text := m.bounds(); len(m.entries) > entries {
		m.makeRoom(entries-entries/4, text-text/4)
	}
}

// bounds returns the limits for the number of pieces and for the bytes of names.
func (m *perfMap) bounds() (entries, text int) {
	return min(maxPerfEntries, m.limits.Symbols), min(maxPerfNames, m.limits.Names)
}

// add adds a piece of code. A piece without a name only ends earlier pieces.
func (m *perfMap) add(start, size uint64, name []byte) {
	if size == 0 || size > maxPerfSize || start+size < start {
		return
	}
	entries, text := m.bounds()
	if len(name) > text/4 {
		name = nil
	}
	if len(m.entries) >= entries || len(m.names.b)+len(name) > text {
		m.makeRoom(entries-entries/4, text-text/4)
	}
	m.entries = append(m.entries, perfEntry{start, start + size, m.names.add(name)})
}

// makeRoom drops replaced pieces. Then it drops the oldest pieces until at most entries pieces and text bytes of names remain.
func (m *perfMap) makeRoom(entries, text int) {
	m.sort()
	there := make([]bool, len(m.entries))
	for s := range m.flatten() {
		there[s.symbol] = true
	}
	used := make([]bool, len(m.names.ends)+1)
	first := len(m.entries)
	for ; first > 0 && entries > 0; first-- {
		if n := m.entries[first-1].name; there[first-1] {
			if !used[n] {
				if text -= len(m.names.get(n)); text < 0 {
					break
				}
				used[n] = true
			}
			entries--
		}
	}
	// Names move to the front in their order.
	moved := make([]uint32, len(used))
	names := texts{m.names.ends[:0], m.names.b[:0]}
	from := uint32(0)
	for i, end := range m.names.ends {
		if used[i+1] {
			moved[i+1] = names.add(m.names.b[from:end])
		}
		from = end
	}
	kept := m.entries[:0]
	for i := first; i < len(m.entries); i++ {
		if e := m.entries[i]; there[i] {
			e.name = moved[e.name]
			kept = append(kept, e)
		}
	}
	m.entries, m.names = kept, names
}

// read reads lines from an offset. It returns the offset of the first line that is incomplete or was not read.
func (m *perfMap) read(ctx context.Context, r io.ReaderAt, from, size int64) (int64, error) {
	left := symtab.Budget{Read: min(m.limits.Read, maxPerfRead)}
	in := &reader{ctx: ctx, r: r, size: size, left: &left}
	buf := make([]byte, symtab.Chunk)
	for from < size {
		b := buf[:min(symtab.Chunk, size-from, left.Read)]
		err := in.at(b, uint64(from))
		switch {
		case len(b) == 0, errors.Is(err, symtab.ErrTooSlow), errors.Is(err, io.EOF): // io.EOF: the file was just truncated
			m.cut = true
			return from, nil
		case err != nil:
			return 0, err
		}
		end := bytes.LastIndexByte(b, '\n') + 1
		if end == 0 {
			if len(b) < maxPerfLine {
				m.cut = left.Read == 0
				break
			}
			end = len(b) // not a line
		}
		m.edges.add(b[:end])
		for line := range bytes.Lines(b[:end]) {
			m.line(bytes.TrimLeft(bytes.TrimRight(line, "\r\n"), "\x00")) // zeros: the end of a hole
		}
		from += int64(end)
		if b[end-1] == 0 {
			hole := holeAt(r, from, size)
			m.edges.add(make([]byte, min(hole, perfEdge)))
			from += hole
		}
	}
	return from, nil
}

// holeAt returns the length of the hole at an offset of the file. A file has a hole if it was extended, or if its writer
// continued at the old offset after a truncation. Reading a hole takes as long as reading data.
func holeAt(r io.ReaderAt, from, size int64) int64 {
	f, ok := r.(*os.File)
	if !ok || from >= size {
		return 0
	}
	next, err := unix.Seek(int(f.Fd()), from, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // no hole
		next = size
	case err != nil: // the file system does not support it
		return 0
	}
	return max(0, min(next, size)-from)
}

// line parses a line such as "7f2a1c000000 1a0 LazyCompile:~work /app/main.js:12". Some compilers write 0x in front of the
// numbers.
func (m *perfMap) line(b []byte) {
	first, rest, _ := bytes.Cut(b, []byte(" "))
	second, name, ok := bytes.Cut(rest, []byte(" "))
	if !ok {
		return
	}
	if name = bytes.TrimSpace(name); len(b) > maxPerfLine {
		name = nil
	}
	start, err1 := strconv.ParseUint(string(bytes.TrimPrefix(first, []byte("0x"))), 16, 64)
	size, err2 := strconv.ParseUint(string(bytes.TrimPrefix(second, []byte("0x"))), 16, 64)
	if err1 == nil && err2 == nil {
		m.add(start, size, name)
	}
}

// sort sorts the starts and ends of pieces by address. Each start or end is twice the number of its piece, plus one for an end.
func (m *perfMap) sort() {
	m.order = m.order[:0]
	for i := range 2 * len(m.entries) {
		m.order = append(m.order, uint32(i))
	}
	slices.SortFunc(m.order, func(a, b uint32) int { return cmp.Compare(m.edge(a), m.edge(b)) })
}

func (m *perfMap) edge(n uint32) uint64 {
	if n%2 == 0 {
		return m.entries[n/2].start
	}
	return m.entries[n/2].end
}

// flatten returns the spans that each piece still names, by address. Call sort first.
func (m *perfMap) flatten() iter.Seq[span] {
	// The newest open piece names the addresses from one start or end to the next.
	return func(yield func(span) bool) {
		var open newest
		var last span
		for i, e := range m.order {
			at := m.edge(e)
			if e%2 == 0 {
				heap.Push(&open, int(e/2))
			}
			if i+1 == len(m.order) || m.edge(m.order[i+1]) == at {
				continue
			}
			for open.Len() > 0 && m.entries[open.IntSlice[0]].end <= at {
				heap.Pop(&open)
			}
			if open.Len() == 0 {
				continue
			}
			symbol := open.IntSlice[0]
			next := m.edge(m.order[i+1])
			if last.symbol == symbol && last.end == at && last.start < last.end {
				last.end = next
				continue
			}
			if last.start < last.end && !yield(last) {
				return
			}
			last = span{at, next, symbol}
		}
		if last.start < last.end {
			yield(last)
		}
	}
}

// newest is a heap for package heap, with the largest number first.
type newest struct{ sort.IntSlice }

// Less implements sort.Interface.
func (h newest) Less(i, j int) bool { return h.IntSlice[i] > h.IntSlice[j] }

// Push implements heap.Interface.
func (h *newest) Push(n any) { h.IntSlice = append(h.IntSlice, n.(int)) }

// Pop implements heap.Interface, but returns nil.
func (h *newest) Pop() any {
	h.IntSlice = h.IntSlice[:len(h.IntSlice)-1]
	return nil
}
