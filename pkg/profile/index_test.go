package profile

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLists checks that lists of all lengths keep their number. The lists fill several chunks, and some are larger than a
// chunk.
func TestLists(t *testing.T) {
	l, hash := newLists(), newHasher()
	r := rand.New(rand.NewPCG(1, 2))
	lists := [][]uint32{nil}
	for i := range 3000 {
		list := make([]uint32, 1+r.IntN(60))
		if i%1000 == 500 {
			list = make([]uint32, 3*maxChunk/2+i)
		}
		for k := range list {
			list[k] = r.Uint32N(4)
		}
		list[0] = uint32(i) // makes each list unique
		lists = append(lists, list)
	}
	for range 2 {
		for i, list := range lists {
			id, _ := l.id(&hash, list)
			require.EqualValues(t, i, id)
			require.Equal(t, list, l.at(id))
		}
	}
	require.Equal(t, len(lists), l.len())
}
