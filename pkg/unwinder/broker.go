package unwinder

import (
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// silence is how long the unwinder can write nothing before it counts as hung.
	silence = 30 * time.Second
	// unanswered is how long the thread that reads files can use no CPU time before it counts as blocked by a file system. It
	// is shorter than silence, because a busy machine delays everything else.
	unanswered = 10 * time.Second
	// The unwinder is restarted after firstBackoff. The delay doubles each time, up to maxBackoff. A run longer than steady
	// resets the delay.
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = time.Minute
	steady       = time.Minute
	// hungInterval is the time between two checks for blocked unwinders that have exited.
	hungInterval = time.Minute
	// chainTime limits how long loading a gadget's chains takes. A chain takes a second, or half a minute if 40 other threads
	// compete for the CPU.
	chainTime = 5 * time.Minute
	// meterInterval is the time between two checks of the unwinder's memory.
	meterInterval = time.Second
	// maxEarly is the number of early exits in a row after which the unwinder is not started again.
	maxEarly = 3
	// flushRate limits the batches per second. The unwinder writes up to four. If there are more, its input has taken it over.
	// flushBurst batches can arrive at once if nobody has read for some time.
	flushRate  = 20
	flushBurst = 4096
)

// Log receives the broker's messages for an operator.
type Log interface {
	Warnf(format string, args ...any)
	Debugf(format string, args ...any)
}

// Broker shares one run of the unwinder among all subscribers. The unwinder runs while there is a subscriber.
type Broker struct {
	path func() (string, error)
	log  Log
	// memoryBound returns the unwinder's memory limit in bytes.
	memoryBound func() uint64

	// In tests, these fields override the constants of the same names.
	silence, unanswered, firstBackoff, endTime, hungInterval, chainTime, meterInterval time.Duration
	flushBurst                                                                         int

	// avoid lists processes that the unwinder must leave alone. suspects lists processes that it worked on when it exited. Only
	// the goroutine of supervise uses them.
	avoid, suspects avoid

	mu          sync.Mutex
	hung        []*process // unwinders that cannot be ended
	stalled     error      // why no unwinder can be started now, although one has worked before
	subscribers map[*Subscription]struct{}
	settings    Settings // the settings that the unwinder should run with
	changed     chan struct{}
	running     chan struct{} // closed when supervise has returned; nil if it does not run
	totals      Totals
	hello       bool // this supervisor has seen an unwinder that works here
	gadgets     gadgets
}

// New returns a broker that logs to log.
func New(log Log) *Broker {
	return &Broker{
		path: find, log: log, memoryBound: memoryBound, silence: silence, unanswered: unanswered, firstBackoff: firstBackoff, endTime: endTime, hungInterval: hungInterval, chainTime: chainTime, meterInterval: meterInterval, flushBurst: flushBurst,
		subscribers: map[*Subscription]struct{}{},
		gadgets:     gadgets{shared: map[string]*ebpf.Map{}, entries: map[wire.ChainKind]*ebpf.Program{}, refused: map[wire.ChainKind]string{}, more: make(chan struct{})},
	}
}

// wake makes the supervisor check settings and subscribers. The caller holds mu.
func (b *Broker) wake() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// wanted returns the settings, and false if there is no subscriber.
func (b *Broker) wanted() (Settings, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.settings, b.users() > 0
}

// supervise restarts the unwinder until there is no subscriber.
func (b *Broker) supervise(path string, running chan struct{}) {
	defer close(running)
	backoff := b.firstBackoff
	var down time.Time // the start of the time without whole stacks; zero before the first run
	var fatal error
	early := 0
	for !b.ended(fatal) {
		stalled, err := b.stall()
		if fatal = err; fatal != nil {
			continue
		}
		if stalled {
			b.sleep(b.hungInterval)
			continue
		}
		settings, _ := b.wanted()
		began := time.Now()
		end := b.once(path, settings, down)
		if fatal = end.fatal; fatal != nil {
			continue
		}
		if end.asked {
			down = time.Now()
			continue
		}
		if down = end.last; down.IsZero() {
			down = began
		}
		if b.early(end) {
			if early++; early >= maxEarly {
				fatal = fmt.Errorf("the program %s failed to start %d times in a row: %s", Program, early, end.reason)
				continue
			}
		}
		if time.Since(began) > steady {
			backoff = b.firstBackoff
		}
		b.mu.Lock()
		b.totals.Restarts++
		n := b.totals.Restarts
		b.mu.Unlock()
		b.log.Warnf("restarting the unwinder in %v (restart %d), using frame pointers until then: %s", backoff, n, end.reason)
		b.sleep(backoff)
		backoff = min(2*backoff, maxBackoff)
	}
}

// ended reports whether the supervisor is done, because there is no subscriber or because of the error fatal. Then it resets
// the supervisor's state. Subscribers that still wait for the first run get the error fatal.
func (b *Broker) ended(fatal error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	users := b.users()
	if fatal == nil && users > 0 {
		return false
	}
	if fatal != nil && b.hello && users > 0 { // these subscribers have seen the unwinder work
		defer b.log.Warnf("%d running gadgets no longer get whole stacks: %v", users, fatal)
	}
	b.tell(fatal)
	b.running = nil
	b.totals.Memory, b.totals.KernelMemory = 0, 0
	return true
}

// sleep waits for d, or until there is no subscriber.
func (b *Broker) sleep(d time.Duration) {
	over := time.After(d)
	for _, wanted := b.wanted(); wanted; _, wanted = b.wanted() {
		select {
		case <-over:
			return
		case <-b.changed:
		}
	}
}

// tell sends the result of a run to all waiting subscribers. The caller holds mu.
func (b *Broker) tell(err error) {
	for s := range b.subscribers {
		select {
		case unread := <-s.first: // the latest result replaces it
			_ = unread
		default:
		}
		s.first <- err
	}
}
