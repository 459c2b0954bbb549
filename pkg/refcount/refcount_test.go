package refcount

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestValue checks that users share a value, and that a later user gets a new one.
func TestValue(t *testing.T) {
	var v Value[*int]
	var closed []int
	next := 1
	open := func() *int { n := next; next++; return &n }
	end := func(n *int) { closed = append(closed, *n) }
	require.Equal(t, 1, *v.Acquire(open))
	require.Equal(t, 1, *v.Acquire(open))
	v.Release(end)
	require.Empty(t, closed)
	v.Release(end)
	require.Equal(t, []int{1}, closed)
	require.Equal(t, 2, *v.Acquire(open))
	v.Release(end)
	require.Equal(t, []int{1, 2}, closed)
}
