package parse

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// heavy is a size in bytes. If a read uses more memory, the memory is returned to the system at once.
const heavy = 32 << 20

// Here reads files in this process. The unprivileged process, tests and a user's own programs use it.
type Here struct{}

// facts holds functions by the name of a fact. Each function returns its fact about a file as a JSON value.
var facts = map[string]func(ctx context.Context, r io.ReaderAt, size int64) (any, error){
	symtab.FactInfo: func(ctx context.Context, r io.ReaderAt, size int64) (any, error) { return ReadInfo(ctx, r, size) },
	allocators.Fact: readAllocator,
}

// Serve reads files for the process at the other end of the socket, until that process exits. It uses at most memory bytes to
// read a file. decode answers Conn.Ask. If decode is nil, nothing is decoded.
func (h Here) Serve(c *symtab.Conn, memory int64, decode func([]byte) []byte) error {
	return c.Serve(memory, h.perform, decode)
}

// fact returns a table that contains a fact.
func fact(ctx context.Context, t *symtab.Task) (*symtab.Table, error) {
	read := facts[t.Fact]
	if read == nil {
		return nil, fmt.Errorf("%w: unknown task %q", symtab.ErrMalformed, t.Fact)
	}
	fact, err := read(ctx, t.Opened, t.Size)
	if err != nil {
		return nil, err
	}
	table := new(symtab.Table)
	if table.Fact, err = json.Marshal(fact); len(table.Fact) > symtab.MaxFact {
		return nil, fmt.Errorf("%w: %d bytes of %s", symtab.ErrTooLarge, len(table.Fact), t.Fact)
	}
	return table, err
}

// perform performs a task in this process. A panic becomes an error for this file only.
func (h Here) perform(ctx context.Context, t *symtab.Task) (table *symtab.Table, err error) {
	defer func() {
		if p := recover(); p != nil {
			table, err = nil, fmt.Errorf("%w: reading it panicked: %v", symtab.ErrMalformed, p)
		}
	}()
	in := newReader(ctx, t.Opened, t.Size, t.Limits)
	defer func() {
		if t.Limits.Memory-in.left.Memory > heavy {
			debug.FreeOSMemory() // otherwise, the garbage collector would let the heap grow to twice this size
		}
	}()
	switch t.Kind {
	case symtab.ReadFunctions:
		more := *t.Old
		if more.Golang, err = loadFunctions(t.Old.Golang, in, t.Functions, t.Limits); err != nil {
			return nil, err
		}
		return &more, nil
	case symtab.ReadFact:
		return fact(ctx, t)
	case symtab.ReadPerfMap:
		table, err = ReadPerfMap(ctx, t.Opened, t.Size, t.Old, t.Limits)
	case symtab.ReadDebugFile:
		table, err = readDebugTable(in, t.Limits)
	case symtab.ReadLines:
		table, err = readLines(in, t.Limits, t.Debug, t.Base)
	default:
		table, err = readTable(in, t.Limits, t.Debug)
	}
	if t.Room == 0 {
		return table, err
	}
	if table = table.Within(t.Room); table != nil && table.Bytes() > t.Room {
		return nil, fmt.Errorf("%w: a table of %d bytes", symtab.ErrTooLarge, table.Bytes())
	}
	return table, err
}

// Read implements symtab.Reader.
func (h Here) Read(ctx context.Context, t *symtab.Task) (*symtab.Table, time.Duration, error) {
	table, err := h.perform(ctx, t)
	return table, 0, err
}

// Wait implements symtab.Reader.
func (Here) Wait(context.Context) {}

// Close implements symtab.Reader.
func (Here) Close() {}
