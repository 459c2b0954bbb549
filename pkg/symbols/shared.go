package symbols

import "github.com/ig-otel-profiles/ig-otel-profiles/pkg/refcount"

// Shared is one Store for all parts of a process that name functions. So the bounds of memory and of the reading pace hold for
// them together. Its methods are safe for concurrent use.
type Shared struct {
	options func() Options
	store   refcount.Value[*Store]
}

// NewShared returns a Shared with Stores that get the options of options at that time.
func NewShared(options func() Options) *Shared { return &Shared{options: options} }

// Acquire returns the Store. Each call wants a Release, and none but Release may close it.
func (s *Shared) Acquire() *Store {
	return s.store.Acquire(func() *Store { return NewStore(s.options()) })
}

// Release is for who does not use the Store any more. The last one waits for it to end, as Store.Close says.
func (s *Shared) Release() { s.store.Release((*Store).Close) }
