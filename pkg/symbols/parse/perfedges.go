package parse

import (
	"context"
	"errors"
	"hash/maphash"
	"io"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// edges holds the first and the last bytes, up to perfEdge each, of a perf map's part that was read. A change shows that the file
// was rewritten. A JVM rewrites its map on request, in the same file.
type edges struct{ head, tail []byte }

const perfEdge = 4 << 10

// add appends data that was read.
func (e *edges) add(b []byte) {
	e.head = append(e.head, b[:min(perfEdge-len(e.head), len(b))]...)
	e.tail = append(e.tail, b[max(0, len(b)-perfEdge):]...)
	if more := len(e.tail) - perfEdge; more > 0 {
		e.tail = append(e.tail[:0], e.tail[more:]...)
	}
}

var edgesSeed = maphash.MakeSeed()

func (e *edges) sum() uint64 {
	var h maphash.Hash
	h.SetSeed(edgesSeed)
	_, _ = h.Write(e.head) // never fails
	_, _ = h.Write(e.tail)
	return h.Sum64()
}

// read reads the edges of the part of the file that old covers. If they have changed, read returns false and leaves e unchanged.
func (e *edges) read(ctx context.Context, r io.ReaderAt, size int64, old *symtab.Table) (bool, error) {
	if old.Read > size {
		return false, nil
	}
	n := min(perfEdge, old.Read)
	left := symtab.Budget{Read: 2 * n}
	in := &reader{ctx: ctx, r: r, size: size, left: &left}
	now := edges{make([]byte, n), make([]byte, n)}
	err := in.at(now.head, 0)
	if err == nil {
		err = in.at(now.tail, uint64(old.Read-n))
	}
	switch {
	case errors.Is(err, io.EOF): // the file was just truncated
		return false, nil
	case err != nil:
		return false, err
	case now.sum() != old.Edges:
		return false, nil
	}
	*e = now
	return true, nil
}
