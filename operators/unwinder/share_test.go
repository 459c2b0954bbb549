package unwinder

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShareOfMany: a run that wants fewer samples than are taken gets its part of them, of huge counts at once.
func TestShareOfMany(t *testing.T) {
	require.EqualValues(t, 7, share(7, 19, 19))
	require.EqualValues(t, 7, share(7, 99, 19))
	require.EqualValues(t, 19_000, share(99_000, 19, 99))
	require.InDelta(t, math.MaxInt32*19.0/99, share(math.MaxInt32, 19, 99), 1)
	sum := uint64(0)
	for range 100_000 {
		sum += share(1, 19, 99)
	}
	require.InDelta(t, 100_000*19.0/99, sum, 700)
}
