package symbols

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Bounds of a perf map. Past them the oldest pieces of code are dropped: dropped code may lose its name, but no
// address keeps the name of code that was there before.
const (
	maxPerfEntries = 512 << 10
	maxPerfNames   = 32 << 20
	maxPerfLine    = 8 << 10
	maxPerfSize    = 64 << 20 // of one piece of code
	maxPerfRead    = 64 << 20 // bytes at a time; the next read goes on from there
)

// ReadPerfMap reads what a JIT compiler has written to a perf map
// (https://github.com/torvalds/linux/blob/master/tools/perf/Documentation/jit-interface.txt): a line
// "START SIZE name" for each piece of code, in hexadecimal, with the addresses of the process. Of pieces
// that overlap, the last one counts: the others are gone.
//
// old is nil, or the Table of an earlier call: then only what was added since is read, unless the file was written
// anew. The file's last line may not be complete yet: it is left to the next call, and so is what is more than
// maxPerfRead.
func ReadPerfMap(ctx context.Context, r io.ReaderAt, size int64, old *Table, limits Limits) (*Table, error) {
	m := perfMap{limits: limits}
	from := int64(0)
	if old != nil {
		same, err := m.edges.read(ctx, r, size, old)
		if err != nil {
			return nil, err
		}
		if same {
			from = old.read
			m.take(old)
		}
	}
	read, err := m.read(ctx, r, from, size)
	if err != nil {
		return nil, err
	}
	if old != nil && from == old.read && read == from && m.cut == old.cut {
		return old, nil
	}
	t := &Table{read: read, edges: m.edges.sum(), cut: m.cut}
	spans, names := m.flatten()
	// A name may serve several spans and is then written several times; there are few of these.
	if err := t.addSpans(spans, SourcePerfMap, func(i int) []byte { return names(spans[i].symbol) }); err != nil && !errors.Is(err, ErrTooLarge) {
		return nil, err
	}
	return t, nil
}

// perfMap is the pieces of code in the order in which they were written.
type perfMap struct {
	limits  Limits
	entries []perfEntry
	text    []byte
	edges   edges
	cut     bool // not all was read
}

type perfEntry struct {
	start, end uint64
	name, size uint32 // in text
}

// take adds the pieces that a table has.
func (m *perfMap) take(t *Table) {
	for i := range t.layers {
		l := &t.layers[i]
		for j, start := range l.starts {
			m.add(l.base+uint64(start), uint64(l.sizes[j]), []byte(l.names.get(j)))
		}
	}
}

// add takes a piece of code. One without a name only ends what was there before.
func (m *perfMap) add(start, size uint64, name []byte) {
	if size == 0 || size > maxPerfSize || start+size < start {
		return
	}
	entries, text := min(maxPerfEntries, m.limits.Symbols), min(maxPerfNames, m.limits.Names)
	if len(name) > text/4 {
		name = nil
	}
	if len(m.entries) >= entries || len(m.text)+len(name) > text {
		m.makeRoom(entries-entries/4, text-text/4)
	}
	m.entries = append(m.entries, perfEntry{start, start + size, uint32(len(m.text)), uint32(len(name))})
	m.text = append(m.text, name...)
}

// makeRoom drops the pieces that later ones have replaced, and then the oldest, until there are no more than entries
// of them, with text bytes of names.
func (m *perfMap) makeRoom(entries, text int) {
	spans, _ := m.flatten()
	there := make([]bool, len(m.entries))
	for _, s := range spans {
		there[s.symbol] = true
	}
	first := len(m.entries)
	for ; first > 0 && entries > 0; first-- {
		if e := &m.entries[first-1]; there[first-1] {
			if text -= int(e.size); text < 0 {
				break
			}
			entries--
		}
	}
	kept, names := m.entries[:0], m.text[:0]
	for i := first; i < len(m.entries); i++ {
		if e := m.entries[i]; there[i] {
			name := m.text[e.name:][:e.size]
			e.name = uint32(len(names))
			kept, names = append(kept, e), append(names, name...)
		}
	}
	m.entries, m.text = kept, names
}

// read takes the lines from the offset from on, and returns the offset of the first line that is not complete, or was
// not read.
func (m *perfMap) read(ctx context.Context, r io.ReaderAt, from, size int64) (int64, error) {
	left := min(m.limits.Read, maxPerfRead)
	in := &reader{ctx: ctx, r: r, size: size, left: &left}
	buf := make([]byte, chunk)
	for from < size {
		b := buf[:min(chunk, size-from, left)]
		err := in.at(b, uint64(from))
		switch {
		case len(b) == 0, errors.Is(err, ErrTooSlow), errors.Is(err, io.EOF): // io.EOF: it was truncated a moment ago
			m.cut = true
			return from, nil
		case err != nil:
			return 0, err
		}
		end := bytes.LastIndexByte(b, '\n') + 1
		if end == 0 {
			if len(b) < maxPerfLine {
				m.cut = left == 0
				break
			}
			end = len(b) // nonsense
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

// holeAt is how many bytes the hole has that a file has at an offset: it was made larger, or its writer went on where it
// was before somebody has truncated it. To read a hole takes as long as to read data.
func holeAt(r io.ReaderAt, from, size int64) int64 {
	f, ok := r.(*os.File)
	if !ok || from >= size {
		return 0
	}
	next, err := unix.Seek(int(f.Fd()), from, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // there is none
		next = size
	case err != nil: // the file system does not tell
		return 0
	}
	return max(0, min(next, size)-from)
}

// line reads "7f2a1c000000 1a0 LazyCompile:~work /app/main.js:12". Some compilers write 0x in front of the numbers.
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

// flatten returns the spans that pieces still name where later ones have not replaced them, by address, and a
// function for the names.
func (m *perfMap) flatten() (spans []span, name func(symbol int) []byte) {
	// From each address where a piece begins or ends up to the next one, the newest piece that is open gives the
	// name.
	type edge struct {
		at    uint64
		entry int
	}
	edges := make([]edge, 0, 2*len(m.entries))
	for i := range m.entries {
		edges = append(edges, edge{m.entries[i].start, i}, edge{m.entries[i].end, i})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	var open newest
	for i, e := range edges {
		if e.at == m.entries[e.entry].start {
			open.push(e.entry)
		}
		if i+1 == len(edges) || edges[i+1].at == e.at {
			continue
		}
		for len(open) > 0 && m.entries[open[0]].end <= e.at {
			open.pop()
		}
		if len(open) == 0 {
			continue
		}
		if n := len(spans); n > 0 && spans[n-1].symbol == open[0] && spans[n-1].end == e.at {
			spans[n-1].end = edges[i+1].at
		} else {
			spans = append(spans, span{e.at, edges[i+1].at, open[0]})
		}
	}
	return spans, func(symbol int) []byte {
		e := &m.entries[symbol]
		return m.text[e.name:][:e.size]
	}
}

// newest is a heap of numbers, the largest first.
type newest []int

func (h *newest) push(n int) {
	s := append(*h, n)
	for i := len(s) - 1; i > 0 && s[(i-1)/2] < s[i]; i = (i - 1) / 2 {
		s[(i-1)/2], s[i] = s[i], s[(i-1)/2]
	}
	*h = s
}

func (h *newest) pop() {
	s := *h
	n := len(s) - 1
	s[0] = s[n]
	s = s[:n]
	for i := 0; ; {
		child := 2*i + 1
		if child >= n {
			break
		}
		if child+1 < n && s[child+1] > s[child] {
			child++
		}
		if s[i] >= s[child] {
			break
		}
		s[i], s[child] = s[child], s[i]
		i = child
	}
	*h = s
}
