package unwinder

import (
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/hostproc"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// lookInterval is how often the list of watched namespaces is read.
	lookInterval = 100 * time.Millisecond
	// keepWatched is how long a namespace is remembered that is not watched any more, in nanoseconds: samples of it
	// may be under way.
	keepWatched = uint64(5 * time.Second)
	// tick is the unit, in nanoseconds, in which /proc tells the starts of processes.
	tick uint64 = hostproc.Tick
)

// namespaces are the mount namespaces of the containers to watch, as Inspektor Gadget keeps them: an *ebpf.Map.
type namespaces interface {
	Lookup(key, value any) error
	BatchLookup(cursor *ebpf.MapBatchCursor, keysOut, valuesOut any, opts *ebpf.BatchOptions) (int, error)
}

// batch is how many namespaces one system call reads. One by one, a node of a hundred containers would take two
// thousand system calls a second.
const batch = 1024

// filter tells which samples a run wants. It is for one goroutine.
//
// Samples arrive up to a second and a half after they were taken, later where the machine is busy, and a container may have come to its end meanwhile, or
// another have got its namespace's number. So the filter remembers for keepWatched until when each namespace was
// watched, and takes samples of its processes that began before that time.
type filter struct {
	namespaces namespaces // nil: everything is watched
	pids       []uint32
	comms      []string

	watched map[uint64]uint64 // by namespace: when it was last seen to be watched, in nanoseconds since boot
	ids     [batch]uint64     // buffers of look
	values  [batch]uint32
	now     func() uint64 // since boot, in nanoseconds
}

func sinceBoot() uint64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return uint64(ts.Nano())
}

// look reads which namespaces are watched.
func (f *filter) look() {
	if f.namespaces == nil {
		return
	}
	if f.watched == nil {
		f.watched = map[uint64]uint64{}
	}
	now := f.now()
	var cursor ebpf.MapBatchCursor
	for more := true; more; {
		n, err := f.namespaces.BatchLookup(&cursor, f.ids[:], f.values[:], nil)
		for _, id := range f.ids[:n] {
			f.watched[id] = now
		}
		more = err == nil && n > 0 // the last batch comes with an error
	}
	for id, until := range f.watched {
		if now-until > keepWatched {
			delete(f.watched, id)
		}
	}
}

func (f *filter) pass(s *wire.Sample) bool {
	if len(f.pids) > 0 && !slices.Contains(f.pids, s.Proc.PID) {
		return false
	}
	if len(f.comms) > 0 && !slices.Contains(f.comms, s.Comm) {
		return false
	}
	if f.namespaces == nil {
		return true
	}
	id := s.Proc.MntNS
	if id == 0 {
		return false
	}
	if until, ok := f.watched[id]; ok && s.Proc.Start+tick <= until {
		return true
	}
	var value uint32
	if f.namespaces.Lookup(id, &value) != nil {
		return false
	}
	if f.watched != nil {
		f.watched[id] = f.now()
	}
	return true
}
