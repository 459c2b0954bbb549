package captures

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// keptStacks replaces the gadget's map of stacks.
type keptStacks struct {
	stacks map[uint32][mostFrames]uint64
	err    error
	mu     sync.Mutex
}

func (k *keptStacks) Lookup(key, value any) error {
	frames, ok := k.stacks[key.(uint32)]
	if !ok {
		return ebpf.ErrKeyNotExist
	}
	*value.(*[mostFrames]uint64) = frames
	return nil
}

func (k *keptStacks) Update(key, value any, flags ebpf.MapUpdateFlags) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := key.(uint32)
	if _, ok := k.stacks[id]; ok && flags == ebpf.UpdateNoExist {
		return ebpf.ErrKeyExist
	}
	if k.err == nil {
		k.stacks[id] = *value.(*[mostFrames]uint64)
	}
	return k.err
}

func exampleSums(t testing.TB) (*sums, *keptStacks) {
	t.Helper()
	s, k := newSums(exampleLayout(t)), &keptStacks{stacks: map[uint32][mostFrames]uint64{}}
	s.stacks = k
	return s, k
}

// complete returns a capture with a frame-pointer stack that is in the gadget's map.
func (e example) complete(t testing.TB, s *sums, addresses ...uint64) (*record, *stack) {
	t.Helper()
	if k, _ := s.stacks.(*keptStacks); k != nil && len(addresses) > 0 {
		k.mu.Lock()
		defer k.mu.Unlock()
		e.stack = 1 + crc32.ChecksumIEEE(fmt.Append(nil, e.space, addresses))>>1
		frames := [mostFrames]uint64{}
		copy(frames[:], addresses)
		k.stacks[e.stack] = frames
	}
	r := e.record(t, &s.layout)
	st := s.byFramePointers(r)
	s.complete(r, nil)
	return r, st
}

func (e example) addTo(t testing.TB, s *sums, addresses ...uint64) {
	t.Helper()
	s.add(e.complete(t, s, addresses...))
}

func forItself(uint32) (float64, bool) { return 1, true }

// readRow holds the decoded parts of a row.
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
	require.Zero(t, byBytes[5].stack)
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

// A row with the unwinder's stack must contain the stack's ID, and no frame-pointer stack.
func TestSumsUnwound(t *testing.T) {
	s, _ := exampleSums(t)
	for id, whole := range map[uint64]*wire.Stack{2: {ID: 7}, 3: nil} {
		x := example{comm: "shop", pid: 1, space: 1, bytes: id, calls: 1, unwound: id + 100, stack: 5}
		r := x.record(t, &s.layout)
		s.complete(r, whole)
		require.Equal(t, unwinder.RowID(whole), order.Uint64(r.key[40:]))
		require.Zero(t, order.Uint64(r.key[24:]))
		require.Equal(t, make([]byte, 2*userSize), r.value[16:])
		s.add(r, &stack{whole: whole})
	}
	fell := example{comm: "shop", pid: 1, unwound: fellBack, stack: 5}.record(t, &s.layout)
	s.complete(fell, nil)
	require.EqualValues(t, fellBack, order.Uint64(fell.key[40:]))
	require.EqualValues(t, 5, order.Uint64(fell.key[24:]))
	rows, err := s.rows(forItself)
	require.NoError(t, err)
	require.Len(t, rows, 2)
}

// A program with many stacks must not fill the memory. Events without their own row are added to a special row.
func TestSumsBounded(t *testing.T) {
	s, _ := exampleSums(t)
	for i := range uint32(mostSums + 10) {
		example{comm: "bomb", pid: i, bytes: 3, calls: 1}.addTo(t, s)
	}
	example{comm: "bomb", pid: 0, bytes: 3, calls: 1}.addTo(t, s) // already has a row
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

// A stretch's rows must wait until the stretch's weight is known. Other rows must not wait.
func TestSumsStretches(t *testing.T) {
	s, _ := exampleSums(t)
	c := newControl()
	require.NoError(t, c.Open(0.5))
	example{comm: "a", bytes: 10, calls: 1, stretch: 1}.addTo(t, s)
	example{comm: "a", bytes: 1, calls: 1}.addTo(t, s)
	rows, err := s.rows(c.weight)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, readRow{comm: "a", bytes: 1, calls: 1}, read(t, rows[0]))
	require.NoError(t, c.Close(4))
	require.NoError(t, c.Open(0.5))
	example{comm: "a", bytes: 100, calls: 1, stretch: 2}.addTo(t, s)
	rows, err = s.rows(c.weight)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, readRow{comm: "a", bytes: 40, calls: 4, stretches: true}, read(t, rows[0]))
	c.finish()
	rows, err = s.rows(c.weight)
	require.NoError(t, err)
	require.Len(t, rows, 1)
}

// Weights are not integers. Rounded values must be correct on average.
func TestRounded(t *testing.T) {
	const n = 200000
	sum := uint64(0)
	for range n {
		v := rounded(2.3)
		require.Contains(t, []uint64{2, 3}, v)
		sum += v
	}
	// The tolerance is six times the standard deviation of the mean.
	require.InDelta(t, 2.3, float64(sum)/n, 6*math.Sqrt(0.21/n))
	require.EqualValues(t, 7, rounded(7))
	require.Zero(t, rounded(0))
	// Programs can request any number of bytes, but profiles use signed numbers.
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
	clear(k.stacks) // the kernel has dropped it
	k.err = errors.New("no memory")
	rows, err := s.rows(forItself)
	require.EqualError(t, err, "keeping the stacks of rows in the gadget's map: no memory")
	require.Len(t, rows, 1, "what was counted is not lost with its stack")
}

// This test adds and reads rows concurrently. Run it with go test -race.
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
