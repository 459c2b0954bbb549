package otelprofiles

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// lazySymbolizer is Inspektor Gadget's symbolizer for rows that carry the IDs of stacks and no text. An
// instance has one for all its data sources, and makes it when the first such row comes: most gadgets
// have none. In contrast to Inspektor Gadget's, it is safe for concurrent use.
type lazySymbolizer struct {
	make func() (closingSymbolizer, error)

	mu   sync.Mutex // one look-up at a time
	once sync.Once
	err  error
	// all is there once the first look-up has begun. Close does not wait for a look-up, which may be
	// in a file system that hangs.
	all    atomic.Pointer[closingSymbolizer]
	closed atomic.Bool
	ended  sync.Once
}

// closingSymbolizer is a *symbolizer.Symbolizer, whose Close ends the goroutine that forgets symbols.
type closingSymbolizer interface {
	stack.Symbolizer
	Close()
}

func newSymbolizer(ctx context.Context) *lazySymbolizer {
	return &lazySymbolizer{make: func() (closingSymbolizer, error) {
		return symbolizer.NewSymbolizer(symbolizer.SymbolizerOptions{UseSymtab: true, Context: ctx})
	}}
}

var errSymbolizerClosed = errors.New("the gadget has ended")

// Resolve implements stack.Symbolizer.
func (s *lazySymbolizer) Resolve(task symbolizer.Task, queries []symbolizer.StackItemQuery) ([]symbolizer.StackItemResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, errSymbolizerClosed
	}
	s.once.Do(func() {
		all, err := s.make()
		if err != nil {
			s.err = fmt.Errorf("making a symbolizer: %w", err)
			return
		}
		s.all.Store(&all)
	})
	if s.err != nil {
		return nil, s.err
	}
	names, err := (*s.all.Load()).Resolve(task, queries)
	if s.closed.Load() { // it may have begun to forget symbols after Close
		s.end()
	}
	return names, err
}

// Close ends what the symbolizer runs. It may be called twice, and while a look-up is under way.
func (s *lazySymbolizer) Close() {
	s.closed.Store(true)
	if s.all.Load() != nil {
		s.end()
	}
}

func (s *lazySymbolizer) end() {
	s.ended.Do(func() { (*s.all.Load()).Close() })
}
