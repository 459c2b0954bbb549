package otelprofiles

import (
	"context"
	"sync"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"
)

// functions names the functions of programs from their symbol tables, for rows that carry the IDs of
// stacks and no text. It is safe for concurrent use, in contrast to Inspektor Gadget's resolvers.
type functions struct {
	mu     sync.Mutex
	all    *symbolizer.Symbolizer
	closed bool
}

func newFunctions(ctx context.Context) (*functions, error) {
	s, err := symbolizer.NewSymbolizer(symbolizer.SymbolizerOptions{UseSymtab: true, Context: ctx})
	if err != nil {
		return nil, err
	}
	return &functions{all: s}, nil
}

// Resolve implements stack.Symbolizer. After Close it finds nothing.
func (f *functions) Resolve(task symbolizer.Task, queries []symbolizer.StackItemQuery) ([]symbolizer.StackItemResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, nil
	}
	return f.all.Resolve(task, queries)
}

// Close ends the goroutine that forgets old symbol tables. It may be called twice.
func (f *functions) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		f.all.Close()
	}
}
