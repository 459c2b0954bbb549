package captures

import (
	"errors"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/walk"
)

const (
	// mostSums is how many different rows wait at most to be handed on. What finds no room adds up in a row of its own.
	mostSums = 65536
	// mostIDs is how many IDs of stacks are remembered.
	mostIDs = 4 * mostSums
	// idTries is how many IDs are tried for a stack.
	idTries = 4
)

// The rows that stand for what has no row, by the name of their process, as gadgets do.
const (
	rowsFull     = "[rows full]"
	capturesFull = "[captures full]"
)

// stackMap is the gadget's map of user stacks.
type stackMap interface {
	Update(key, value any, flags ebpf.MapUpdateFlags) error
}

// row is a row of a gadget's data source: the key and the value of its map rows.
type row struct {
	key, value []byte
	stack      *stack
}

// stack is a stack as the gadget's map has it. It does not change.
type stack struct {
	id     uint32
	frames [walk.Most]uint64 // up to the first 0
}

// sums adds up rows. Its methods are safe for concurrent use.
type sums struct {
	layout layout
	stacks stackMap // set before rows are asked for

	mu      sync.Mutex
	seed    maphash.Seed
	ids     map[uint32]uint64 // of stacks: a second hash of what an ID stands for
	waiting map[sumKey]*sum
	counts  struct{ handed, folded uint64 }
}

// sumKey is what rows have in common that are added up.
type sumKey struct {
	key     string
	stretch uint32
}

type sum struct {
	value []byte
	sums  []float64
	stack *stack // nil: none
}

func newSums(l layout) *sums {
	return &sums{layout: l, seed: maphash.MakeSeed(), ids: map[uint32]uint64{}, waiting: map[sumKey]*sum{}}
}

// stackOf gives a stack of an address space an ID: 1 or more, and not that of another stack that is remembered.
func (s *sums) stackOf(space uint32, addresses []uint64) *stack {
	out := &stack{id: noStack}
	copy(out.frames[:], addresses)
	if len(addresses) == 0 {
		return out
	}
	var h maphash.Hash
	h.SetSeed(s.seed)
	maphash.WriteComparable(&h, space)
	maphash.WriteComparable(&h, out.frames)
	first := h.Sum64()
	h.WriteByte(1)
	second := h.Sum64()
	if len(s.ids) > mostIDs {
		clear(s.ids)
	}
	for range idTries {
		id := max(uint32(first)&0x7fffffff, 1)
		if was, ok := s.ids[id]; !ok || was == second {
			s.ids[id] = second
			out.id = id
			return out
		}
		first = first>>31 | first<<33
	}
	return out
}

// complete fills in what a capture's row has of its stack, and returns that.
func (s *sums) complete(r *record, found *walk.Stack) *stack {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stackOf(order.Uint32(r.user[atSpace:]), found.Addresses)
	order.PutUint64(r.key[s.layout.stackKey:], uint64(st.id))
	order.PutUint32(r.user[atStackID:], st.id)
	s.setAttached(r.key, r.stretch())
	return st
}

// setAttached says in a row's key that it is of a stretch.
func (s *sums) setAttached(key []byte, stretch uint32) {
	if s.layout.attached >= 0 && stretch != 0 {
		order.PutUint32(key[s.layout.attached:], 1)
	}
}

// add adds a row that is complete.
func (s *sums) add(r *record, st *stack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := sumKey{string(r.key), r.stretch()}
	to := s.waiting[k]
	if to == nil {
		if len(s.waiting) >= mostSums {
			s.counts.folded++
			to = s.stand(rowsFull, r.stretch())
		} else {
			to = &sum{value: append([]byte(nil), r.value...), sums: make([]float64, len(s.layout.sums)), stack: st}
			s.waiting[k] = to
		}
	}
	for i, at := range s.layout.sums {
		to.sums[i] += float64(order.Uint64(r.value[at:]))
	}
}

// stand returns the row that stands for what has none.
func (s *sums) stand(name string, stretch uint32) *sum {
	key := make([]byte, s.layout.key)
	copy(key[s.layout.comm:], name)
	s.setAttached(key, stretch)
	k := sumKey{string(key), stretch}
	to := s.waiting[k]
	if to == nil {
		to = &sum{value: make([]byte, s.layout.value), sums: make([]float64, len(s.layout.sums))}
		s.waiting[k] = to
	}
	return to
}

// lost adds what captures of a stretch stood for that found no room, to the first two sums: their amount, and how many events that are.
func (s *sums) lost(weight, events uint64, stretch uint32) {
	if weight == 0 && events == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.stand(capturesFull, stretch)
	for i, n := range []uint64{weight, events} {
		if i < len(to.sums) {
			to.sums[i] += float64(n)
		}
	}
}

// rows returns the rows that have come since the last call, but for those of a stretch whose weight is not known yet. Their stacks
// are in the gadget's map then.
func (s *sums) rows(weight func(stretch uint32) (float64, bool)) ([]row, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []row
	var failed error
	for k, from := range s.waiting {
		w, ok := weight(k.stretch)
		if !ok {
			continue
		}
		for i, at := range s.layout.sums {
			order.PutUint64(from.value[at:], rounded(from.sums[i]*w))
		}
		if err := s.keep(from.stack); err != nil {
			failed = err
		}
		out = append(out, row{[]byte(k.key), from.value, from.stack})
		delete(s.waiting, k)
	}
	s.counts.handed += uint64(len(out))
	return out, failed
}

// handed returns how many rows were handed on, and how many captures found no row of their own.
func (s *sums) handed() (rows, folded uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts.handed, s.counts.folded
}

// keep puts a stack into the gadget's map, unless it is there.
func (s *sums) keep(st *stack) error {
	if st == nil || st.id == noStack {
		return nil
	}
	if err := s.stacks.Update(st.id, &st.frames, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return err
	}
	return nil
}

// rounded rounds at random, so that sums are right in the mean. Profiles have signed numbers: more than they can hold becomes the
// most that they can.
func rounded(v float64) uint64 {
	if !(v > 0) {
		return 0
	}
	if v >= math.MaxInt64 {
		return math.MaxInt64
	}
	whole := math.Floor(v)
	if rand.Float64() < v-whole {
		whole++
	}
	return uint64(whole)
}
