package symbols

import (
	"sync"
)

// Shared is one Store for all that name functions in a process, so that the bounds of its memory and of its pace of
// reading hold for them together. There is a Store while somebody uses it. Its methods are safe for concurrent use.
type Shared struct {
	options func() Options

	mu    sync.Mutex
	store *Store
	users int
}

// NewShared returns a Shared whose Stores are made with what options returns then.
func NewShared(options func() Options) *Shared { return &Shared{options: options} }

// Acquire returns the Store. Each call wants a Release, and none but Release may close it.
func (s *Shared) Acquire() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users++; s.users == 1 {
		s.store = NewStore(s.options())
	}
	return s.store
}

// Release is for who does not use the Store any more. The last one waits for it to end, as Store.Close says.
func (s *Shared) Release() {
	s.mu.Lock()
	var last *Store
	if s.users--; s.users == 0 {
		last, s.store = s.store, nil
	}
	s.mu.Unlock()
	if last != nil {
		last.Close()
	}
}
