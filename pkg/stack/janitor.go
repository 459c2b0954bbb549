package stack

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/cilium/ebpf"
)

const (
	// maxTracked limits a Janitor's memory, which is 4 bytes per ID. Larger IDs are ignored.
	maxTracked = 1 << 20
	// sweepKeys is the maximum number of entries that a Sweep checks.
	sweepKeys = 512
	// maxPause limits how much entries age from one Sweep to the next.
	maxPause = 10 * time.Second
)

// Janitor deletes unused entries from a stack map. A stack's ID is a hash, and a map entry blocks every other stack with the
// same hash. Without deletions, more and more stacks are lost during a long run.
//
// An entry is in use while rows refer to it. Seen records this use, and Sweep deletes entries that were not seen for some time.
// If a filter drops the rows, no row ever refers to an entry. The entry's age then counts from the first Sweep that finds it.
//
// An eBPF program can use an ID just before its entry is deleted. The program's row then finds no stack, or a wrong one if
// another stack has taken the entry. So Sweep only deletes entries that were unused for much longer than a row takes to arrive.
// A deleted stack is rarely needed at that moment, and the next event restores it.
//
// A Janitor is not safe for concurrent use. It belongs to one stack map, and is used in the goroutine of the gadget's callback.
// It must see all rows with IDs from the map, even if several fields or data sources share the map.
type Janitor struct {
	stacks *ebpf.Map
	cold   uint32 // in ticks
	// seen holds, by ID, the tick at which the ID was last seen, or 0. Ticks are seconds since start. The first tick is 1.
	seen  []uint32
	tick  uint32
	start time.Time
	last  time.Time // of the last Sweep

	// next is the key at which the iteration over the map continues if walking is set.
	next    uint32
	walking bool
}

// NewJanitor returns a Janitor for a stack map (BPF_MAP_TYPE_STACK_TRACE). cold is the age at which an entry is deleted. It must
// be several times as long as an ID takes from the eBPF program to the callback. If rows are stored in a map, an ID takes as
// long as the interval at which the map is read. Do not use a Janitor if a gadget keeps IDs for later, for example from a
// thread's sleep to its wake-up.
func NewJanitor(stacks *ebpf.Map, cold time.Duration) *Janitor {
	// The kernel rounds the range of IDs up to a power of two (stack_map_alloc in kernel/bpf/stackmap.c).
	n := uint64(1) << bits.Len32(stacks.MaxEntries()-1)
	return &Janitor{
		stacks: stacks, cold: uint32(max(1, cold/time.Second)),
		seen: make([]uint32, min(n, maxTracked)), tick: 1, start: time.Now(), last: time.Now(),
	}
}

// Seen records that a row has this ID. It ignores errors, which are negative IDs.
func (j *Janitor) Seen(id int32) {
	if uint32(id) < uint32(len(j.seen)) {
		j.seen[id] = j.tick
	}
}

// Sweep checks some of the map's entries, starting where the last call ended, and deletes cold entries. It checks at most 512
// entries, which takes about a millisecond: one system call for each entry, and one or two more for a deletion. now is the
// time. Call Sweep about once a second, and at least several times within cold.
//
// It returns the number of deleted stacks. An error means that the iteration over the map failed. You can then call Sweep
// again.
func (j *Janitor) Sweep(now time.Time) (deleted int, err error) {
	// Sweeps pause while a gadget sends no rows. The first rows after a pause must still find their stacks.
	if pause := now.Sub(j.last) - maxPause; pause > 0 {
		j.start = j.start.Add(pause)
	}
	j.last = now
	// After the clock was set back, no entry ages until the clock has caught up.
	if age := now.Sub(j.start) / time.Second; age >= 0 {
		j.tick = max(j.tick, uint32(age)+1)
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
		// Read the next key before deleting this one: after a deleted key, the kernel starts from the beginning.
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

// isCold reports whether an entry can be deleted. A new entry gets the full time.
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
