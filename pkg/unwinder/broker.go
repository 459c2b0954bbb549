package unwinder

import (
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// silence is the time without output after which the program counts as hung.
	silence = 30 * time.Second
	// unanswered is the time without CPU time after which the thread that reads files counts as blocked by a file system.
	// It is shorter than silence, because a busy machine delays all else.
	unanswered = 10 * time.Second
	// The program is restarted after firstBackoff, and then after twice as long each time, up to maxBackoff. A run longer than
	// steady makes it firstBackoff again.
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = time.Minute
	steady       = time.Minute
	// hungInterval is the time between two checks for the end of programs that could not be ended.
	hungInterval = time.Minute
	// chainTime limits the loading of chains for a gadget. Each takes a second, and half a minute if 40 others want the CPU.
	chainTime = 5 * time.Minute
	// meterInterval is the time between two checks of the program's memory.
	meterInterval = time.Second
	// maxEarly is the number of runs with an early end after which the program cannot work here.
	maxEarly = 3
	// flushRate is how many batches a second the program may write. It writes up to four. More means that its input has taken it
	// over. flushBurst is how many may come at once, after a time without a reader.
	flushRate  = 20
	flushBurst = 4096
)

// Log takes messages of the broker for an operator: events and their consequences.
type Log interface {
	Warnf(format string, args ...any)
	Debugf(format string, args ...any)
}

// Broker shares one run of the program among all subscribers. The program runs while there are any.
type Broker struct {
	path func() (string, error)
	log  Log
	// memoryBound is the program's memory limit, in bytes.
	memoryBound func() uint64

	// The constants of these names, shorter in tests.
	silence, unanswered, firstBackoff, endTime, hungInterval, chainTime, meterInterval time.Duration
	flushBurst                                                                         int

	// avoid are processes that the program must leave alone. suspects are those that it worked on when it ended. Only the
	// goroutine of supervise uses them.
	avoid, suspects avoid

	mu          sync.Mutex
	hung        []*process // programs that cannot be ended
	stalled     error      // why no program can be started at the moment, though one has worked before
	subscribers map[*Subscription]struct{}
	settings    Settings // with which the program is to run
	changed     chan struct{}
	running     chan struct{} // closed when the supervisor has ended; nil without one
	totals      Totals
	hello       bool // this supervisor has met a program that can work here
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

// wake makes the supervisor look at settings and subscribers. The caller holds mu.
func (b *Broker) wake() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// wanted returns the settings, and false if nobody wants samples any more.
func (b *Broker) wanted() (Settings, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.settings, b.users() > 0
}

// supervise runs the program, again and again, until there is no subscriber.
func (b *Broker) supervise(path string, running chan struct{}) {
	defer close(running)
	backoff := b.firstBackoff
	var down time.Time // since when there are no whole stacks; zero before the first
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
		b.log.Warnf("restarting the unwinder in %v (restart %d), stacks are by frame pointers meanwhile: %s", backoff, n, end.reason)
		b.sleep(backoff)
		backoff = min(2*backoff, maxBackoff)
	}
}

// ended reports whether the supervisor is done: nobody wants samples, or fatal is why nobody can have any. If so it
// resets what belongs to the supervisor, and subscribers that still wait for the first run get fatal.
func (b *Broker) ended(fatal error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	users := b.users()
	if fatal == nil && users > 0 {
		return false
	}
	if fatal != nil && b.hello && users > 0 { // those have been told that it works
		defer b.log.Warnf("running gadgets get no more whole stacks (%d): %v", users, fatal)
	}
	b.tell(fatal)
	b.running = nil
	b.totals.Memory, b.totals.KernelMemory = 0, 0
	return true
}

// sleep waits, but not when nobody wants samples any more.
func (b *Broker) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for _, wanted := b.wanted(); wanted; _, wanted = b.wanted() {
		select {
		case <-timer.C:
			return
		case <-b.changed:
		}
	}
}

// tell sends the result of a run to all subscribers that wait for it. The caller holds mu.
func (b *Broker) tell(err error) {
	for s := range b.subscribers {
		select {
		case unread := <-s.first: // the newest counts
			_ = unread
		default:
		}
		s.first <- err
	}
}
