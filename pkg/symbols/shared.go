package symbols

import "github.com/ig-otel-profiles/ig-otel-profiles/pkg/refcount"

// Shared is a Store that all parts of a process share. So the Store's limits for memory and CPU time apply to the whole process.
// The methods are safe for concurrent use.
type Shared struct {
	options func() Options
	store   refcount.Value[*Store]
}

// NewShared returns a Shared. It calls options for each new Store.
func NewShared(options func() Options) *Shared { return &Shared{options: options} }

// Acquire returns the Store. Each call needs a Release. Only Release may close the Store.
func (s *Shared) Acquire() *Store {
	return s.store.Acquire(func() *Store { return NewStore(s.options()) })
}

// Release ends a use of the Store. The last Release closes it (see Store.Close).
func (s *Shared) Release() { s.store.Release((*Store).Close) }
