package captures

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
)

const (
	// liveInterval is the shortest time between reads of the gadget's map of allocations in use. The next read also waits for
	// liveShare times the duration of the last read. Reading a full map takes 100 ms or more.
	liveInterval = 500 * time.Millisecond
	liveShare    = 50
	// liveBatch is the number of entries that one system call reads.
	liveBatch = 1024
	// mostFresh is how many rows are kept in addition to the map's maximum number of entries.
	mostFresh = 16384
)

// addressKey is the key of gadgets' maps with an entry for each address of a process.
type addressKey struct {
	Address uint64
	PID     uint32
	_       uint32
}

// liveValue is the value of the gadget's map of allocations in use: an allocation's capture and weight.
type liveValue struct{ ID, Bytes, Calls uint64 }

// These are the sizes of the key and the value in the kernel.
const (
	liveKeySize   = 16
	liveValueSize = 24
)

// liveRow is the row for a sampled allocation.
type liveRow struct {
	key   string
	value []byte
	stack *stack
	pid   uint32
	space uint32 // the process's address space
	time  uint64
}

// space is the last known address space of a process. It changes after an execve, or when another process gets the PID. Earlier
// allocations then no longer exist, although they were not freed.
type space struct {
	hash uint32
	time uint64 // when it was seen
}

// live keeps the rows of allocations in use. The gadget's map lists these allocations. The methods are safe for concurrent use.
type live struct {
	inUse  *ebpf.Map
	execs  *ebpf.Map // maps PIDs to the time of the last execve, in nanoseconds since boot; nil: unknown
	sums   *sums
	alive  func(pid uint32) bool
	closed func() bool // reports whether all captures have been added

	reading sync.Mutex // serializes reads of the map
	next    time.Time  // time of the next read

	mu     sync.Mutex
	rows   map[uint64]*liveRow // by capture ID
	fresh  map[uint64]bool     // capture IDs added since the last read of the map
	spaces map[uint32]space    // by PID, for processes with rows
	stacks map[uint32]*stack   // frame-pointer stacks by ID; rows share them, because each takes a kilobyte
	state  []row
	// strays maps the IDs of entries without a row to the time when snapshot first saw them.
	strays map[uint64]time.Time
	// unknown counts map entries without a row, because their captures were lost or have no stack yet. gone counts removed
	// entries of exited processes. refused counts captures for which there was no room. removed counts removed entries that
	// never got a row.
	unknown, gone, refused, removed uint64
}

func newLive(s *sums, closed func() bool) *live {
	return &live{sums: s, alive: lives, closed: closed, rows: map[uint64]*liveRow{}, fresh: map[uint64]bool{}, spaces: map[uint32]space{}, stacks: map[uint32]*stack{}}
}

// take finds the gadget's maps by their names in the metadata.
func (l *live) take(maps map[string]*ebpf.Map, metadata *viper.Viper) error {
	inUse, execs := metadata.GetString("live.map"), metadata.GetString("live.execs")
	l.inUse, l.execs = maps[inUse], maps[execs]
	if l.inUse.Type() != ebpf.Hash || l.inUse.KeySize() != liveKeySize || l.inUse.ValueSize() != liveValueSize {
		return fmt.Errorf("operator %s: the map %q must be a hash map with the same key and value structs as in profile_alloc (allocation, allocated)", Name, inUse)
	}
	if l.execs != nil && (l.execs.KeySize() != 4 || l.execs.ValueSize() != 8) {
		return fmt.Errorf("operator %s: the map %q must have keys of 4 bytes (PIDs) and values of 8 bytes (times)", Name, execs)
	}
	return nil
}

// lives reports whether a process with this PID exists in the host's PID namespace.
func lives(pid uint32) bool { return procfs.Lives(os.Getenv("HOST_ROOT")+"/proc", pid) }

// add keeps the row of a capture.
func (l *live) add(r *record, p procmap.Process, st *stack) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rows) >= int(l.inUse.MaxEntries())+mostFresh {
		l.refused++
		return
	}
	if was, ok := l.spaces[p.PID]; !ok || was.time <= r.time() {
		l.spaces[p.PID] = space{p.Space, r.time()}
	}
	if st != nil && st.id != 0 {
		if same := l.stacks[st.id]; same != nil && same.frames == st.frames {
			st = same
		} else {
			l.stacks[st.id] = st
		}
	}
	l.rows[r.id()] = &liveRow{string(r.key), append([]byte(nil), r.value...), st, p.PID, p.Space, r.time()}
	l.fresh[r.id()] = true
}

// snapshot returns the rows of the allocations in use.
func (l *live) snapshot() ([]row, error) {
	l.reading.Lock()
	defer l.reading.Unlock()
	var all []liveEntry
	var err error
	began := time.Now()
	read := !began.Before(l.next) || l.closed()
	if read {
		all, err = l.readMap() // slow: other goroutines can add captures during the read
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !read || err != nil {
		return l.copies(), err
	}
	defer func() {
		now := time.Now()
		l.next = now.Add(max(liveInterval, liveShare*now.Sub(began)))
	}()
	used := l.sift(all)
	sums := map[string]*row{}
	l.unknown = 0
	for id, v := range used {
		from := l.rows[id]
		if from == nil {
			l.unknown++
			continue
		}
		to := sums[from.key]
		if to == nil {
			to = &row{[]byte(from.key), append([]byte(nil), from.value...), from.stack}
			for _, at := range l.sums.layout.sums {
				order.PutUint64(to.value[at:], 0)
			}
			sums[from.key] = to
		}
		for i, n := range []uint64{v.Bytes, v.Calls} {
			if i < len(l.sums.layout.sums) {
				at := l.sums.layout.sums[i]
				order.PutUint64(to.value[at:], order.Uint64(to.value[at:])+n)
			}
		}
	}
	// Forget freed allocations. Keep allocations that are possibly not in the map yet.
	processes := map[uint32]bool{}
	clear(l.stacks)
	for id, r := range l.rows {
		if _, ok := used[id]; !ok && !l.fresh[id] {
			delete(l.rows, id)
		} else {
			processes[r.pid] = true
			if r.stack != nil && r.stack.id != 0 {
				l.stacks[r.stack.id] = r.stack
			}
		}
	}
	for pid := range l.spaces {
		if !processes[pid] {
			delete(l.spaces, pid)
		}
	}
	clear(l.fresh)
	l.state = l.state[:0]
	for _, r := range sums {
		l.state = append(l.state, *r)
	}
	return l.copies(), nil
}

// copies returns copies of the rows in state, and ensures that the gadget's map contains their stacks.
func (l *live) copies() []row {
	out := make([]row, 0, len(l.state))
	l.sums.mu.Lock()
	defer l.sums.mu.Unlock()
	for _, r := range l.state {
		_ = l.sums.keep(r.stack)
		out = append(out, row{append([]byte(nil), r.key...), append([]byte(nil), r.value...), r.stack})
	}
	l.sums.counts.handed += uint64(len(out))
	return out
}

// liveEntry is an entry of the gadget's map.
type liveEntry struct {
	addressKey
	liveValue
	alive bool
	since uint64 // time of its process's last execve
}

// readMap returns all entries of the gadget's map.
func (l *live) readMap() (all []liveEntry, err error) {
	type process struct {
		alive bool
		since uint64
	}
	known := map[uint32]process{}
	var cursor ebpf.MapBatchCursor
	keys, values := make([]addressKey, liveBatch), make([]liveValue, liveBatch)
	for {
		n, err := l.inUse.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			p, ok := known[keys[i].PID]
			if !ok {
				p.alive = l.alive(keys[i].PID)
				if l.execs != nil {
					_ = l.execs.Lookup(keys[i].PID, &p.since) // most processes have no entry
				}
				known[keys[i].PID] = p
			}
			all = append(all, liveEntry{keys[i], values[i], p.alive, p.since})
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading allocations in use: %w", err)
		}
	}
}

// strayPatience is the time after which an entry without a row is removed. Captures wait for their stacks for a shorter time.
const strayPatience = 4 * stackPatience

// sift returns the allocations in use by capture ID. It removes the entries of processes that exited or called execve, and
// entries that never get a row. If one allocator function calls another, the inner block is possibly never freed under its own
// address.
func (l *live) sift(all []liveEntry) map[uint64]liveValue {
	out := make(map[uint64]liveValue, len(all))
	strays := map[uint64]time.Time{}
	now := time.Now()
	for i := range all {
		e := &all[i]
		r, since := l.rows[e.ID], l.strays[e.ID]
		if since.IsZero() {
			since = now
		}
		switch {
		case !e.alive || r != nil && (r.space != l.spaces[r.pid].hash || r.time < e.since):
			if l.inUse.Delete(&e.addressKey) == nil {
				l.gone++
			}
		case r != nil:
			out[e.ID] = e.liveValue
		case now.Sub(since) >= strayPatience:
			if l.inUse.Delete(&e.addressKey) == nil {
				l.removed++
			}
		default:
			strays[e.ID] = since
			out[e.ID] = e.liveValue
		}
	}
	l.strays = strays
	return out
}
