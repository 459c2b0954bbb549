package captures

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/walk"
)

// keptStacks is the gadget's map of stacks.
type keptStacks struct {
	stacks map[uint32][walk.Most]uint64
	err    error
}

func (k *keptStacks) Update(key, value any, flags ebpf.MapUpdateFlags) error {
	id := key.(uint32)
	if _, ok := k.stacks[id]; ok && flags == ebpf.UpdateNoExist {
		return ebpf.ErrKeyExist
	}
	if k.err == nil {
		k.stacks[id] = *value.(*[walk.Most]uint64)
	}
	return k.err
}

func exampleSums(t testing.TB) (*sums, *keptStacks) {
	t.Helper()
	s, k := newSums(exampleLayout(t)), &keptStacks{stacks: map[uint32][walk.Most]uint64{}}
	s.stacks = k
	return s, k
}

func (e example) addTo(t testing.TB, s *sums, addresses ...uint64) {
	t.Helper()
	r := e.record(t, &s.layout)
	s.add(r, s.complete(r, &walk.Stack{Addresses: addresses}))
}

func forItself(uint32) (float64, bool) { return 1, true }

// readRow is what a row says.
type readRow struct {
	comm         string
	bytes, calls uint64
	stretches    bool
	stack        uint32
}

func read(t testing.TB, r row) readRow {
	t.Helper()
	comm, _, _ := strings.Cut(string(r.key[:16]), "\x00")
	out := readRow{
		comm: comm, bytes: order.Uint64(r.value), calls: order.Uint64(r.value[8:]),
		stretches: order.Uint32(r.key[32:]) == 1, stack: uint32(order.Uint64(r.key[24:])),
	}
	require.LessOrEqual(t, order.Uint64(r.key[24:]), uint64(math.MaxUint32))
	return out
}

func TestSums(t *testing.T) {
	s, k := exampleSums(t)
	one := example{comm: "shop", pid: 1, space: 1, bytes: 100, calls: 1}
	one.addTo(t, s, 1, 2, 3)
	one.addTo(t, s, 1, 2, 3)
	one.addTo(t, s, 1, 2)
	other := one
	other.byID, other.bytes, other.calls, other.space = true, 7, 2, 2
	other.addTo(t, s, 1, 2, 3)
	none := one
	none.bytes = 5
	none.addTo(t, s)
	rows, err := s.rows(forItself)
	require.NoError(t, err)
	byBytes := map[uint64]readRow{}
	for _, r := range rows {
		at := read(t, r)
		byBytes[at.bytes] = at
		user := r.value[16:]
		if at.bytes == 7 {
			user = r.value[16+userSize:]
		}
		require.Equal(t, at.stack, order.Uint32(user[atStackID:]), "the stack of key and value is one")
	}
	require.Len(t, byBytes, 4, "%v", byBytes)
	require.EqualValues(t, 2, byBytes[200].calls)
	require.EqualValues(t, noStack, byBytes[5].stack)
	require.NotEqual(t, byBytes[200].stack, byBytes[100].stack, "two stacks")
	require.NotEqual(t, byBytes[200].stack, byBytes[7].stack, "the same addresses in two address spaces")
	require.Len(t, k.stacks, 3)
	for _, n := range []uint64{200, 7} {
		frames := k.stacks[byBytes[n].stack]
		require.Equal(t, []uint64{1, 2, 3, 0}, frames[:4])
	}
	rows, err = s.rows(forItself)
	require.NoError(t, err)
	require.Empty(t, rows, "each is handed on once")
	require.EqualValues(t, 4, s.counts.handed)
}

// Two stacks never share an ID while both are remembered: the second one gets another, or goes without.
func TestSumsCollisions(t *testing.T) {
	s, _ := exampleSums(t)
	a := s.stackOf(1, []uint64{1, 2})
	require.Positive(t, int32(a.id), "the kernel takes IDs above that for errors")
	require.Equal(t, a.id, s.stackOf(1, []uint64{1, 2}).id)
	s.ids[a.id]++ // now the ID stands for another stack
	b := s.stackOf(1, []uint64{1, 2})
	require.NotEqual(t, a.id, b.id)
	require.NotEqual(t, noStack, b.id)
	for range idTries {
		s.ids[s.stackOf(1, []uint64{1, 2}).id]++
	}
	require.Equal(t, noStack, s.stackOf(1, []uint64{1, 2}).id)
	for i := range mostIDs + 10 {
		s.ids[uint32(i)] = 1
	}
	s.stackOf(1, []uint64{1, 2})
	require.LessOrEqual(t, len(s.ids), mostIDs)
}

// A program with very many stacks does not fill the memory: what has no row of its own adds up in one.
func TestSumsBounded(t *testing.T) {
	s, _ := exampleSums(t)
	for i := range uint32(mostSums + 10) {
		example{comm: "bomb", pid: i, bytes: 3, calls: 1}.addTo(t, s)
	}
	example{comm: "bomb", pid: 0, bytes: 3, calls: 1}.addTo(t, s) // has a row
	s.lost(1000, 7, 0)
	s.lost(0, 0, 0)
	rows, err := s.rows(forItself)
	require.NoError(t, err)
	require.Len(t, rows, mostSums+2)
	all := readRow{}
	for _, r := range rows {
		at := read(t, r)
		all.bytes, all.calls = all.bytes+at.bytes, all.calls+at.calls
		switch at.comm {
		case rowsFull:
			require.Equal(t, readRow{comm: rowsFull, bytes: 30, calls: 10}, at)
		case capturesFull:
			require.Equal(t, readRow{comm: capturesFull, bytes: 1000, calls: 7}, at)
		}
	}
	require.EqualValues(t, 3*(mostSums+11)+1000, all.bytes)
	require.EqualValues(t, mostSums+11+7, all.calls)
	require.EqualValues(t, 10, s.counts.folded)
}

// Rows of a stretch wait until it is known what they stand for, others do not.
func TestSumsStretches(t *testing.T) {
	s, _ := exampleSums(t)
	c := newControl()
	require.NoError(t, c.Open(0.5))
	example{comm: "a", bytes: 10, calls: 1, stretch: 1}.addTo(t, s)
	example{comm: "a", bytes: 1, calls: 1}.addTo(t, s)
	rows, err := s.rows(c.weight)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, readRow{comm: "a", bytes: 1, calls: 1, stack: noStack}, read(t, rows[0]))
	require.NoError(t, c.Close(4))
	require.NoError(t, c.Open(0.5))
	example{comm: "a", bytes: 100, calls: 1, stretch: 2}.addTo(t, s)
	rows, err = s.rows(c.weight)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, readRow{comm: "a", bytes: 40, calls: 4, stretches: true, stack: noStack}, read(t, rows[0]))
	c.finish()
	rows, err = s.rows(c.weight)
	require.NoError(t, err)
	require.Len(t, rows, 1)
}

// Weights are no whole numbers. What is rounded is right in the mean.
func TestRounded(t *testing.T) {
	const n = 200000
	sum := uint64(0)
	for range n {
		v := rounded(2.3)
		require.Contains(t, []uint64{2, 3}, v)
		sum += v
	}
	// Six times the deviation of the mean of so many.
	require.InDelta(t, 2.3, float64(sum)/n, 6*math.Sqrt(0.21/n))
	require.EqualValues(t, 7, rounded(7))
	require.Zero(t, rounded(0))
	// A program can ask for any number of bytes, any number of times. Profiles have signed numbers.
	for _, v := range []float64{math.MaxInt64, math.MaxUint64, 1e30, math.Inf(1)} {
		require.EqualValues(t, math.MaxInt64, rounded(v))
	}
	for _, v := range []float64{-1, math.NaN()} {
		require.Zero(t, rounded(v))
	}
}

func TestSumsStackMapFails(t *testing.T) {
	s, k := exampleSums(t)
	example{comm: "a", bytes: 10, calls: 1}.addTo(t, s, 1)
	k.err = errors.New("no memory")
	rows, err := s.rows(forItself)
	require.EqualError(t, err, "no memory")
	require.Len(t, rows, 1, "what was counted is not lost with its stack")
}

// Rows are added and read at the same time: go test -race.
func TestSumsConcurrent(t *testing.T) {
	s, _ := exampleSums(t)
	var done sync.WaitGroup
	for i := range 4 {
		done.Go(func() {
			for range 1000 {
				example{comm: fmt.Sprint(i), bytes: 1, calls: 1}.addTo(t, s, uint64(i+1))
			}
		})
	}
	total := uint64(0)
	take := func() {
		rows, err := s.rows(forItself)
		require.NoError(t, err)
		for _, r := range rows {
			total += read(t, r).bytes
		}
	}
	for range 100 {
		take()
	}
	done.Wait()
	take()
	require.EqualValues(t, 4000, total)
}
