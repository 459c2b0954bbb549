package unwinder

import (
	"slices"

	"github.com/cilium/ebpf"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// filter tells which samples a run wants. It is for one goroutine.
type filter struct {
	namespaces *ebpf.Map // mount namespaces of the containers to watch; nil: everything
	pids       []uint32
	comms      []string

	known map[uint64]bool // of the batch
}

// begin begins a batch: containers may have come and gone.
func (f *filter) begin() { clear(f.known) }

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
	watched, ok := f.known[s.Proc.MntNS]
	if !ok {
		var value uint32
		watched = s.Proc.MntNS != 0 && f.namespaces.Lookup(s.Proc.MntNS, &value) == nil
		if f.known == nil {
			f.known = map[uint64]bool{}
		}
		f.known[s.Proc.MntNS] = watched
	}
	return watched
}
