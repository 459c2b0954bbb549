package unwinder

import (
	"maps"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// Totals count events since the broker was made.
type Totals struct {
	// Stats cover all runs of the program. KernelMemory is the current run's.
	wire.Stats
	// Received were read from the program. Crashed were taken by the program, and lost at its end.
	Received, Crashed uint64
	// Restarts is the number of restarts of the program. Away is the time without it.
	Restarts uint64
	Away     time.Duration
	// Memory is the program's resident memory.
	Memory uint64
	// Starts is the number of starts of the kernel's part, and StartTime the duration of the last one.
	Starts    uint64
	StartTime time.Duration
}

// Totals returns the counters.
func (b *Broker) Totals() Totals {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.totals
	t.Aborts = maps.Clone(t.Aborts)
	return t
}

// settle counts, after the end, the samples that were taken and never arrived.
func (r *run) settle() {
	c := r.p.count()
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &b.totals
	t.Pending = 0
	t.Sent, t.Taken = r.base.Sent+r.session, r.base.Taken+max(c[wire.CounterTaken], r.session)
	// Samples that the program has dropped since its last message about that count as Crashed, too: the reason is not
	// known.
	known := t.Full + t.Failed + t.Idle - r.base.Full - r.base.Failed - r.base.Idle
	if arrived := r.session + known; c[wire.CounterTaken] > arrived {
		t.Crashed = r.base.Crashed + c[wire.CounterTaken] - arrived
	}
}

// add adds the counters b of a run to those of the runs before it, a.
func add(a, b wire.Stats) wire.Stats {
	sum := wire.Stats{
		Taken: a.Taken + b.Taken, Sent: a.Sent + b.Sent, Pending: b.Pending,
		Full: a.Full + b.Full, Failed: a.Failed + b.Failed, Idle: a.Idle + b.Idle,
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
