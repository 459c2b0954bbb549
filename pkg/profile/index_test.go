package profile

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// A keyTable is a map, whatever is added and removed, also where keys share their place.
func TestKeyTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var table keyTable
		want := map[uint64]uint32{}
		keys := make([]uint64, 1+r.IntN(2000))
		for i := range keys {
			keys[i] = uint64(r.IntN(3000)) // 0 among them
			if i%2 == 0 {
				keys[i] = r.Uint64()
			}
		}
		for range 10_000 {
			key := keys[r.IntN(len(keys))]
			_, known := want[key]
			switch {
			case r.IntN(2) == 0:
				require.Equal(t, known, table.remove(key))
				delete(want, key)
			case !known:
				want[key] = uint32(r.IntN(1 << 31))
				table.add(key, want[key])
			}
			value, ok := table.get(key)
			wantValue, wantOK := want[key]
			require.Equal(t, wantOK, ok)
			require.Equal(t, wantValue, value)
		}
		used := 0
		if table.parts != nil {
			for i := range table.parts {
				used += table.parts[i].used
			}
		}
		require.Equal(t, len(want), used)
		for _, key := range keys {
			value, ok := table.get(key)
			wantValue, wantOK := want[key]
			require.Equal(t, wantOK, ok)
			require.Equal(t, wantValue, value)
		}
	}
}

// Lists of all lengths, more than one chunk of them and some larger than a chunk, keep their number.
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
		list[0] = uint32(i) // each another
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
