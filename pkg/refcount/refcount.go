// Package refcount shares one value among all its current users.
package refcount

import "sync"

// Value holds a value that exists while it has users. It is safe for concurrent use.
type Value[T any] struct {
	mu    sync.Mutex
	value T
	users int
}

// Acquire returns the value. The first user's open creates it. Each Acquire needs a Release.
func (v *Value[T]) Acquire(open func() T) T {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.users++; v.users == 1 {
		v.value = open()
	}
	return v.value
}

// Release ends one use of the value. The last Release closes the value before it returns.
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
