package unwinder

import (
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// lookInterval is how often the list of watched namespaces is read.
	lookInterval = 100 * time.Millisecond
	// keepWatched is how long a namespace that is not watched any more is remembered: samples of it are under way.
	keepWatched = uint64(3 * time.Second)
	// tick is what /proc cuts the starts of processes down to.
	tick = uint64(10 * time.Millisecond)
)

// namespaces are the mount namespaces of the containers to watch, as Inspektor Gadget keeps them: an *ebpf.Map.
type namespaces interface {
	Lookup(key, value any) error
	Iterate() *ebpf.MapIterator
}

// filter tells which samples a run wants. It is for one goroutine.
//
// Samples arrive up to half a second after they were taken, and a container may have come to its end meanwhile, or
// another have got its namespace's number. So the filter remembers for some time which namespaces were watched until when, and takes
// samples of processes that began before that.
type filter struct {
	namespaces namespaces // nil: everything is watched
	pids       []uint32
	comms      []string

	watched map[uint64]uint64 // until when since boot a namespace was seen to be watched
	now     func() uint64     // since boot, in nanoseconds
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
	var id uint64
	var value uint32
	for list := f.namespaces.Iterate(); list.Next(&id, &value); {
		f.watched[id] = now
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
