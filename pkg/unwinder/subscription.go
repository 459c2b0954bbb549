package unwinder

import (
	"context"
	"fmt"
	"sync"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// queued limits the number of a subscriber's waiting batches. Each covers up to a second. queuedBytes limits their
	// estimated memory. A single waiting batch can exceed this limit.
	queued      = 16
	queuedBytes = 64 << 20
)

// Subscription delivers the results for one subscriber. Subscribe makes it.
type Subscription struct {
	// C delivers batches of events of the subscriber's gadget until Close. A batch covers up to a second. New processes or files
	// make it shorter.
	C <-chan []wire.Unwound

	b       *Broker
	c       chan []wire.Unwound
	run     uint32     // the number of its gadget's run, 0 without Settings.Chains; several share wire.OtelRun
	first   chan error // holds the latest state: nil once the unwinder works here, or the reason why there are no samples
	leaving bool       // under b.mu: it wants no new events
	sizes   []int      // under b.mu: the sizes of the batches in c, the latest last; may begin with batches that were read

	mu      sync.Mutex
	overrun uint64
}

// Overrun returns the number of samples that were dropped because C was not read in time.
func (s *Subscription) Overrun() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overrun
}

// Subscribe starts the delivery of samples. It waits until the unwinder works on this machine and has loaded the requested
// chains. A running unwinder loads the chains while it works, and tries refused chains again. The error names what is missing.
// The caller closes the subscription.
func (b *Broker) Subscribe(ctx context.Context, s Settings) (*Subscription, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	s = s.with(s) // sorts its lists
	kinds, _ := wire.ParseChains(s.Chains)
	c := make(chan []wire.Unwound, queued)
	sub := &Subscription{C: c, c: c, b: b, first: make(chan error, 1)}
	b.mu.Lock()
	if s.Chains != "" {
		if sub.run = wire.OtelRun; s.slotted() {
			sub.run = b.gadgets.number(b.subscribers)
		}
		if sub.run == 0 {
			b.mu.Unlock()
			return nil, fmt.Errorf("the maximum of %d gadgets already use the unwinder: stop one of them", wire.OtelRun-1)
		}
		s = s.with(Settings{Chains: light, Languages: s.Languages})
	}
	// A run without subscribers is about to end. Wait for its end, and then start another run.
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
		sub.leave() // unlike Close, it does not wait for the unwinder, because no sample is wanted
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

// Last reports whether this is the only subscription.
func (s *Subscription) Last() bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return s.b.users() == 1 && !s.leaving
}

// leave ends the subscription without waiting.
func (s *Subscription) leave() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.gadgets.forget(s)
	delete(s.b.subscribers, s)
	if s.b.running != nil && s.b.users() == 0 {
		s.b.wake()
	}
}

// Close ends the subscription. The last Close ends the unwinder and waits for its exit. Its remaining samples are then in C, if
// C had room. Close does not close C.
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

// deliver puts a batch of size bytes into c. It returns false if too much data waits there. It never blocks, because the caller
// holds b.mu and nobody else writes to c.
func (s *Subscription) deliver(batch []wire.Unwound, size int) bool {
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
