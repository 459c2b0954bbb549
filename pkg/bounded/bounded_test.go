package bounded

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSets(t *testing.T) {
	s := New[int](3, 2)
	for i := range 5 {
		require.Equal(t, i < 2, s.Add("a", i), i)
	}
	require.True(t, s.Add("a", 1), "what is known stays")
	require.True(t, s.Add("b", 7), "each owner has its own set")
	for i := range 20 {
		s.Add(fmt.Sprint(i), i)
		require.LessOrEqual(t, len(s.sets), 3)
	}
	s.Clear()
	require.Empty(t, s.sets)
}
