package stack

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/cilium/ebpf"
)

const (
	// maxTracked bounds the memory of a Janitor: 4 bytes per ID. IDs above are left alone.
	maxTracked = 1 << 20
	// sweepKeys is the maximum number of entries that a Sweep checks.
	sweepKeys = 512
)

// Janitor deletes entries of a stack map that are no longer in use. A stack's ID is a hash, and an entry of the map keeps out
// every other stack with the same hash. Without deletions, more and more stacks are lost during a long run.
//
// An entry is in use while rows name it. Seen notes that, and Sweep deletes what was not seen for a while. Either no row has come
// since, or a filter dropped the rows and none ever came. Then the time counts from the first Sweep that found the entry.
//
// An eBPF program can use an ID just before it is deleted. Its row then finds no stack, or a wrong one if another stack has taken
// the place. So only entries go that were unused for much longer than a row travels. A deleted stack is hardly ever needed just
// then. If it is, the next event brings it back.
//
// A Janitor is not safe for concurrent use. It belongs to one stack map and is used in the goroutine
// of the gadget's callback. It has to see all rows that name an ID of the map: where several fields or
// data sources share the map, all of them.
type Janitor struct {
	find   func() *ebpf.Map
	stacks *ebpf.Map // once it is found
	cold   uint32    // ticks
	// seen holds, by ID, the tick at which an ID was seen last; 0 if it never was. A tick is a
	// second since start, and the first is 1.
	seen  []uint32
	tick  uint32
	start time.Time

	// next is the key at which the walk over the map continues, if walking.
	next    uint32
	walking bool
}

// NewJanitor returns a Janitor for a stack map (BPF_MAP_TYPE_STACK_TRACE). stacks may return nil until the gadget has started.
// cold is the age at which an entry is deleted. It must be several times as long as an ID can take from the eBPF program to the
// callback. For a gadget with rows in a map, that is the interval at which the map is read. A gadget that keeps IDs for later has
// no safe age, for example from a thread's sleep to its wake-up. Do not use a Janitor there.
func NewJanitor(stacks func() *ebpf.Map, cold time.Duration) *Janitor {
	return &Janitor{find: stacks, tick: 1, cold: uint32(max(1, cold/time.Second))}
}

// Seen notes that a row names the ID. Errors (negative IDs) are ignored.
func (j *Janitor) Seen(id int32) {
	if uint32(id) < uint32(len(j.seen)) {
		j.seen[id] = j.tick
	}
}

// Sweep checks some of the map's entries, from the end of the last call on, and deletes the cold ones. Its work is bounded to 512
// entries, about a millisecond. Each takes a system call, and one or two more if it is deleted. now is the time. Call it about
// once a second, at least several times within Cold.
//
// It returns the number of stacks it deleted. An error says that the map cannot be walked; nothing is
// lost by calling it again.
func (j *Janitor) Sweep(now time.Time) (deleted int, err error) {
	if !j.prepare(now) {
		return 0, nil
	}
	if !j.walking {
		switch err := j.stacks.NextKey(nil, &j.next); {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return 0, nil
		case err != nil:
			return 0, fmt.Errorf("walking the stack map: %w", err)
		}
		j.walking = true
	}
	for range sweepKeys {
		// The next key is read before this one is deleted: from a deleted key the kernel starts over.
		id, after := j.next, uint32(0)
		err := j.stacks.NextKey(&id, &after)
		if j.isCold(id) && j.stacks.Delete(&id) == nil {
			j.seen[id] = 0
			deleted++
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist), err == nil && after <= id:
			j.walking = false
			return deleted, nil
		case err != nil:
			j.walking = false
			return deleted, fmt.Errorf("walking the stack map: %w", err)
		}
		j.next = after
	}
	return deleted, nil
}

// prepare sets the clock, and inspects the map once it exists. It reports whether there is a map to
// sweep.
func (j *Janitor) prepare(now time.Time) bool {
	if j.start.IsZero() {
		j.start = now
	}
	// After the clock was set back, no entry ages until the clock has caught up.
	if age := now.Sub(j.start) / time.Second; age >= 0 {
		j.tick = max(j.tick, uint32(age)+1)
	}
	if j.stacks == nil {
		m := j.find()
		if m == nil || m.Type() != ebpf.StackTrace || m.KeySize() != 4 || m.MaxEntries() == 0 {
			return false
		}
		j.stacks = m
		// The kernel takes IDs from the next power of two (stack_map_alloc in
		// kernel/bpf/stackmap.c).
		n := uint64(1) << bits.Len32(m.MaxEntries()-1)
		j.seen = make([]uint32, min(n, maxTracked))
	}
	return true
}

// isCold reports whether an entry may be deleted. A new one gets its time.
func (j *Janitor) isCold(id uint32) bool {
	if id >= uint32(len(j.seen)) {
		return false
	}
	if j.seen[id] == 0 {
		j.seen[id] = j.tick
		return false
	}
	return j.tick-j.seen[id] >= j.cold
}
