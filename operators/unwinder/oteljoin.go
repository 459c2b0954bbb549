package unwinder

import (
	"sync"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// A generation in recent is full when it holds otelKept values, or stacks with otelFrames frames in total.
const (
	otelKept   = 1 << 14
	otelFrames = 1 << 19
)

// otelStacks keeps the stacks for Inspektor Gadget's own gadgets. All runs share it, because a stack's ID does not identify the
// run.
type otelStacks struct {
	runs sync.Map // maps each run's context.Context to its *otelInstance

	mu     sync.Mutex
	events recent[wire.Unwound] // by event ID
	stacks recent[*wire.Stack]  // by stack ID
	more   chan struct{}        // closed when stacks arrive
	late   uint64               // rows whose stack did not arrive
	others uint64               // rows that contained the ID of another event
	told   unwindTotals         // totals at the last report to the metrics
}

// add adds stacks.
func (o *otelStacks) add(unwound []wire.Unwound) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, u := range unwound {
		o.events.put(u.ID, u, len(u.Stack.Frames))
		o.stacks.put(u.Stack.ID, u.Stack, len(u.Stack.Frames))
	}
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
}

// await waits for an event's stack, and returns nil if none arrives. A gadget's program reads the ID that the unwinder's entry
// program wrote last. This ID can belong to a later event or, if the unwinder is not running, to an old event. await compares
// the process and the time to detect both cases.
func (o *otelStacks) await(id uint64, pid uint32, seen uint64, patience time.Duration) *wire.Stack {
	if wire.RunOf(id) != wire.OtelRun || wire.OtelAge(id, seen) > otelWindow {
		o.count(&o.others)
		return nil
	}
	over := time.After(patience)
	for {
		u, more := o.event(id)
		switch {
		case more == nil && u.Proc.PID != pid:
			o.count(&o.others)
			return nil
		case more == nil:
			return u.Stack
		case patience <= 0:
			o.count(&o.late)
			return nil
		}
		select {
		case <-more:
		case <-over:
			patience = 0
		}
	}
}

// event returns an event's stack, or a channel that is closed when more stacks arrive.
func (o *otelStacks) event(id uint64) (u wire.Unwound, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	u, ok := o.events.get(id)
	if ok {
		return u, nil
	}
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return u, o.more
}

func (o *otelStacks) count(n *uint64) {
	o.mu.Lock()
	*n++
	o.mu.Unlock()
}

// stack returns the stack with an ID, or nil if the stack was dropped.
func (o *otelStacks) stack(id uint64) *wire.Stack {
	o.mu.Lock()
	defer o.mu.Unlock()
	s, _ := o.stacks.get(id)
	return s
}

// report updates the metrics, and returns the totals so far.
func (o *otelStacks) report(b *unwinder.Broker) unwindTotals {
	var now unwindTotals
	for r, n := range b.OtelResults() {
		now.results[r] = unwindCount{n, n}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now.lost, now.lostValue, now.others = o.late, o.late, o.others
	now.report(o.told, "events")
	o.told = now
	return now
}

// recent keeps the latest values in two generations. When the younger generation is full, recent drops the older one.
type recent[V any] struct {
	young, old map[uint64]V
	frames     int // number of frames in young
}

func (r *recent[V]) put(id uint64, v V, frames int) {
	if r.young == nil || len(r.young) >= otelKept || r.frames >= otelFrames {
		r.young, r.old, r.frames = map[uint64]V{}, r.young, 0
	}
	r.young[id] = v
	r.frames += frames
}

func (r *recent[V]) get(id uint64) (V, bool) {
	v, ok := r.young[id]
	if !ok {
		v, ok = r.old[id]
	}
	return v, ok
}
