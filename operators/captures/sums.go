package captures

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// mostSums is the maximum number of distinct rows between two packets. Further events are added to a special row.
	mostSums = 65536
)

// Events without their own row are added to special rows. These constants are the process names of the special rows, as in
// gadgets.
const (
	rowsFull     = "[rows full]"
	capturesFull = "[captures full]"
)

// mostFrames is the maximum number of frames in a frame-pointer stack.
const mostFrames = 127

// stackMap is the gadget's map of frame-pointer user stacks.
type stackMap interface {
	Lookup(key, value any) error
	Update(key, value any, flags ebpf.MapUpdateFlags) error
}

// row is a row of a gadget's data source. key and value have the types of the gadget's map rows.
type row struct {
	key, value []byte
	stack      *stack
}

// stack is a row's stack, collected by the unwinder or with frame pointers. It is immutable.
type stack struct {
	whole  *wire.Stack
	id     uint32             // in the gadget's map; 0: none
	frames [mostFrames]uint64 // the first 0 ends the stack
}

// sums adds up rows. Its methods are safe for concurrent use.
type sums struct {
	layout layout
	stacks stackMap // set before the first call of rows

	mu      sync.Mutex
	waiting map[sumKey]*sum
	counts  struct{ handed, folded uint64 }
}

// sumKey identifies captures that are added to the same row.
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
	return &sums{layout: l, waiting: map[sumKey]*sum{}}
}

// byFramePointers returns the stack that the gadget's programs collected with frame pointers, or nil.
func (s *sums) byFramePointers(r *record) *stack {
	st := &stack{id: order.Uint32(r.user[atStackID:])}
	if int32(st.id) <= 0 || s.stacks.Lookup(st.id, &st.frames) != nil {
		return nil
	}
	return st
}

// complete sets the stack in a capture's row. whole is the unwinder's stack, or nil.
func (s *sums) complete(r *record, whole *wire.Stack) {
	if r.stackID() > fellBack {
		order.PutUint64(r.key[s.layout.unwound:], unwinder.RowID(whole))
		order.PutUint64(r.key[s.layout.stackKey:], 0)
		for _, at := range s.layout.user {
			clear(r.value[at:][:userSize])
		}
	}
	s.setAttached(r.key, r.stretch())
}

// setAttached marks in a row's key that the row belongs to a stretch.
func (s *sums) setAttached(key []byte, stretch uint32) {
	if s.layout.attached >= 0 && stretch != 0 {
		order.PutUint32(key[s.layout.attached:], 1)
	}
}

// add adds a complete row.
func (s *sums) add(r *record, st *stack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := sumKey{string(r.key), r.stretch()}
	to := s.waiting[k]
	if to == nil {
		if len(s.waiting) >= mostSums {
			s.counts.folded++
			to = s.overflowRow(rowsFull, r.stretch())
		} else {
			to = &sum{value: append([]byte(nil), r.value...), sums: make([]float64, len(s.layout.sums)), stack: st}
			s.waiting[k] = to
		}
	}
	for i, at := range s.layout.sums {
		to.sums[i] += float64(order.Uint64(r.value[at:]))
	}
}

// overflowRow returns the row for events without their own row.
func (s *sums) overflowRow(name string, stretch uint32) *sum {
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

// lost accounts for captures for which the kernel had no room. It adds their amount and number of events to the first two sums.
func (s *sums) lost(weight, events uint64, stretch uint32) {
	if weight == 0 && events == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.overflowRow(capturesFull, stretch)
	for i, n := range []uint64{weight, events} {
		if i < len(to.sums) {
			to.sums[i] += float64(n)
		}
	}
}

// rows returns the rows since the last call, except rows of a stretch whose weight is not known yet. It puts the rows' stacks
// into the gadget's map.
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

// handed returns the number of rows that were passed on, and the number of captures without their own row.
func (s *sums) handed() (rows, folded uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts.handed, s.counts.folded
}

// keep puts a frame-pointer stack back into the gadget's map if the kernel has dropped it.
func (s *sums) keep(st *stack) error {
	if st == nil || st.id == 0 {
		return nil
	}
	if err := s.stacks.Update(st.id, &st.frames, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("keeping the stacks of rows in the gadget's map: %w", err)
	}
	return nil
}

// rounded rounds randomly, so sums are correct on average. Profiles use signed numbers, so rounded limits the value to their
// maximum.
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
