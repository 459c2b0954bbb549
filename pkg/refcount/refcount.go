// Package refcount shares one value among all its current users.
package refcount

import "sync"

// Value exists while somebody uses it. Its methods are safe for concurrent use.
type Value[T any] struct {
	mu    sync.Mutex
	value T
	users int
}

// Acquire returns the value, which open makes for the first user. Each call needs a Release.
func (v *Value[T]) Acquire(open func() T) T {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.users++; v.users == 1 {
		v.value = open()
	}
	return v.value
}

// Release ends a use of the value. The last one closes it, and waits for that.
func (v *Value[T]) Release(close func(T)) {
	var last, none T
	v.mu.Lock()
	v.users--
	ended := v.users == 0
	if ended {
		last, v.value = v.value, none
	}
	v.mu.Unlock()
	if ended {
		close(last)
	}
}
