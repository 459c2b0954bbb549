package unwinder

import (
	"maps"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// Totals counts events since the broker was made.
type Totals struct {
	// Stats covers all runs of the unwinder, except that KernelMemory is from the current run.
	wire.Stats
	// Crashed counts samples that were lost when the unwinder exited.
	Crashed uint64
	// Restarts is the number of restarts. Away is the time without an unwinder.
	Restarts uint64
	Away     time.Duration
	// Memory is the unwinder's resident memory in bytes.
	Memory uint64
	// Starts counts the starts of the unwinder's eBPF programs.
	Starts uint64
}

// Totals returns the counters.
func (b *Broker) Totals() Totals {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.totals
	t.Aborts = maps.Clone(t.Aborts)
	return t
}

// settle counts the samples that were taken but never arrived. The caller calls it after the run's end.
func (r *run) settle() {
	c := r.p.count()
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &b.totals
	t.Taken = r.base.Taken + max(c[wire.CounterTaken], r.session)
	// Samples that the unwinder dropped after its last message also count as Crashed, because the reason is not known.
	known := t.Full + t.Failed + t.Idle - r.base.Full - r.base.Failed - r.base.Idle
	if arrived := r.session + known; c[wire.CounterTaken] > arrived {
		t.Crashed = r.base.Crashed + c[wire.CounterTaken] - arrived
	}
}

// add returns the sum of the counters of a run, b, and of earlier runs, a.
func add(a, b wire.Stats) wire.Stats {
	sum := wire.Stats{
		Taken: a.Taken + b.Taken, Full: a.Full + b.Full, Failed: a.Failed + b.Failed, Idle: a.Idle + b.Idle,
		KernelLost: a.KernelLost + b.KernelLost, NoProcess: a.NoProcess + b.NoProcess, KernelMemory: b.KernelMemory,
		Aborts: maps.Clone(a.Aborts),
	}
	if sum.Aborts == nil {
		sum.Aborts = map[uint32]uint64{}
	}
	for reason, n := range b.Aborts {
		if len(sum.Aborts) < wire.MaxReasons || sum.Aborts[reason] > 0 {
			sum.Aborts[reason] += n
		}
	}
	for i := range sum.Languages {
		x, y := a.Languages[i], b.Languages[i]
		sum.Languages[i] = wire.Language{Frames: x.Frames + y.Frames, Expected: x.Expected + y.Expected, Missing: x.Missing + y.Missing}
	}
	return sum
}
