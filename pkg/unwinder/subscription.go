package unwinder

import (
	"context"
	"fmt"
	"sync"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// queued limits the batches that wait for a subscriber, each of up to a second. queuedBytes is their common limit, in
	// estimated bytes of memory. A single waiting batch may exceed it.
	queued      = 16
	queuedBytes = 64 << 20
)

// Batch has the events of a second, or of less if it has new processes or files.
type Batch struct {
	// Unwound are events of the subscriber's own gadget.
	Unwound []wire.Unwound
}

// Subscription is a subscriber's result of Subscribe.
type Subscription struct {
	// C delivers batches until Close.
	C <-chan Batch

	b       *Broker
	c       chan Batch
	run     uint32     // the number of its run among those of gadgets, 0 without Settings.Chains; wire.OtelRun is that of several
	first   chan error // has nil once the program has said that it can work here, or why there are no samples: the latest of these
	leaving bool       // under b.mu: it wants no new events
	sizes   []int      // under b.mu: the bytes of the batches in c, the latest last; those of batches that were read may stand before

	mu      sync.Mutex
	overrun uint64
}

// Overrun counts samples that were dropped because C was not read in time.
func (s *Subscription) Overrun() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overrun
}

// Subscribe has samples delivered from now on. It waits until it is known whether the program can work on this machine and has
// the requested chains. A running program loads them while it works for others, and tries refused ones again. The error says what
// is missing. The caller closes the subscription.
func (b *Broker) Subscribe(ctx context.Context, s Settings) (*Subscription, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	s = s.with(s) // puts its lists into the order that all have
	kinds, _ := wire.ParseChains(s.Chains)
	c := make(chan Batch, queued)
	sub := &Subscription{C: c, c: c, b: b, first: make(chan error, 1)}
	b.mu.Lock()
	if s.Chains != "" {
		if sub.run = wire.OtelRun; s.slotted() {
			sub.run = b.gadgets.number(b.subscribers)
		}
		if sub.run == 0 {
			b.mu.Unlock()
			return nil, fmt.Errorf("%d gadgets use the unwinder, which is the limit", wire.OtelRun-1)
		}
		s = s.with(Settings{Chains: light, Languages: s.Languages})
	}
	// A run that nobody uses any more is about to end: wait for that, then start another.
	for b.running != nil && b.users() == 0 {
		running := b.running
		b.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		b.mu.Lock()
	}
	b.subscribers[sub] = struct{}{}
	switch {
	case b.running == nil:
		path, err := b.path()
		if err != nil {
			delete(b.subscribers, sub)
			b.mu.Unlock()
			return nil, err
		}
		b.settings, b.hello, b.gadgets.served, b.stalled = s, false, false, nil
		b.changed, b.running = make(chan struct{}, 1), make(chan struct{})
		go b.supervise(path, b.running)
	case b.stalled != nil:
		sub.first <- b.stalled
	default:
		if want := b.settings.with(s); want != b.settings {
			b.settings = want
			b.wake()
		}
		if b.gadgets.retry(kinds) {
			b.wake()
		}
		if b.hello {
			sub.first <- nil
		}
	}
	b.mu.Unlock()
	select {
	case err := <-sub.first:
		if err != nil {
			sub.Close()
			return nil, err
		}
	case <-ctx.Done():
		sub.leave() // unlike Close, it does not wait for the program, because no sample is wanted
		return nil, ctx.Err()
	}
	if len(kinds) > 0 {
		if err := b.await(ctx, sub, kinds); err != nil {
			sub.leave()
			return nil, err
		}
	}
	return sub, nil
}

// Last reports whether nobody else uses the program.
func (s *Subscription) Last() bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return s.b.users() == 1 && !s.leaving
}

// leave ends the subscription without waiting for anything.
func (s *Subscription) leave() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.gadgets.forget(s)
	delete(s.b.subscribers, s)
	if s.b.running != nil && s.b.users() == 0 {
		s.b.wake()
	}
}

// Close ends the subscription. The last Close ends the program and waits for its end. The samples that it had taken are then in
// C, as far as C had room. C is not closed.
func (s *Subscription) Close() {
	b := s.b
	b.mu.Lock()
	b.gadgets.forget(s)
	s.leaving = true
	running := b.running
	if running == nil || b.users() > 0 {
		delete(b.subscribers, s)
		b.mu.Unlock()
		return
	}
	b.wake()
	b.mu.Unlock()
	<-running
	b.mu.Lock()
	delete(b.subscribers, s)
	b.mu.Unlock()
}

// users counts the subscribers that want samples. The caller holds mu.
func (b *Broker) users() int {
	n := 0
	for s := range b.subscribers {
		if !s.leaving {
			n++
		}
	}
	return n
}

// deliver puts a batch of size bytes into c, or returns false if too much waits there already. It never blocks: the
// caller holds b.mu, and nobody else writes to c.
func (s *Subscription) deliver(batch Batch, size int) bool {
	waiting := len(s.c)
	s.sizes = append(s.sizes[:0], s.sizes[max(0, len(s.sizes)-waiting):]...)
	total := size
	for _, n := range s.sizes {
		total += n
	}
	if waiting == cap(s.c) || waiting > 0 && total > queuedBytes {
		return false
	}
	s.sizes = append(s.sizes, size)
	s.c <- batch
	return true
}
