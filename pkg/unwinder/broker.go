package unwinder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// silence is after how long without a word the program is taken for hung.
	silence = 30 * time.Second
	// The program is started anew after firstBackoff, and after twice as long each time, up to maxBackoff. A run
	// longer than steady makes it firstBackoff again.
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = time.Minute
	steady       = time.Minute
	// hungInterval is how often it is looked whether programs that could not be ended have ended.
	hungInterval = time.Minute
	// maxEarly is how many runs that end before the program is in the kernel are a sign that none will be.
	maxEarly = 3
	// queued is how many batches can wait for a subscriber, each of up to a second. queuedBytes is what they may take
	// together, in bytes of memory by estimate; a batch that waits alone may take more.
	queued      = 16
	queuedBytes = 64 << 20
	// flushRate is how many batches a second the program may write. It writes up to four: more is a sign that what it
	// reads has taken it over. flushBurst is how many may come at once, as they do after a time in which nobody has
	// read them.
	flushRate  = 20
	flushBurst = 4096
)

// Log takes messages of the broker, for an operator: what has happened and what that means.
type Log interface {
	Warnf(format string, args ...any)
	Debugf(format string, args ...any)
}

// Broker shares one run of the program among all subscribers. The program runs while there are any.
type Broker struct {
	path func() (string, error)
	log  Log

	// The constants of these names, shorter in tests.
	silence, firstBackoff, endTime, hungInterval time.Duration
	flushBurst                                   int

	// avoid are processes that the program is to leave alone, and suspects those that it was at when it ended. Only the
	// goroutine of supervise uses them.
	avoid, suspects avoid

	mu          sync.Mutex
	hung        []*process // programs that cannot be ended
	stalled     error      // why there are no samples at the moment, though it has worked before
	subscribers map[*Subscription]struct{}
	settings    Settings // with which the program is to run
	changed     chan struct{}
	running     chan struct{} // closed when the supervisor has ended; nil without one
	totals      Totals
	hello       bool // this supervisor has met a program that can work here
}

// New returns a broker that logs to log.
func New(log Log) *Broker {
	return &Broker{
		path: find, log: log, silence: silence, firstBackoff: firstBackoff, endTime: endTime, hungInterval: hungInterval, flushBurst: flushBurst,
		subscribers: map[*Subscription]struct{}{},
	}
}

// Batch is what was met in a second, or in less where it has processes or files that were not met before.
type Batch struct {
	Samples []wire.Sample
	// Hz is how many samples a second were taken of each CPU.
	Hz int
}

// Totals count what has happened since the broker was made.
type Totals struct {
	// Stats are those of all runs of the program. KernelMemory is that of the present one.
	wire.Stats
	// Received were read from the program. Crashed were taken by it, and lost with it when it ended.
	Received, Crashed uint64
	// Restarts is how often the program was started anew because it had ended or had to be ended, and Away for how long
	// there was none.
	Restarts uint64
	Away     time.Duration
	// Memory is the program's resident memory.
	Memory uint64
	// Starts is how often the kernel's part was started, and StartTime how long that took the last time.
	Starts    uint64
	StartTime time.Duration
}

// Subscription is what a subscriber gets from Subscribe.
type Subscription struct {
	// C delivers batches until Close.
	C <-chan Batch

	b        *Broker
	c        chan Batch
	settings Settings
	first    chan error // takes nil once the program has said that it can work here, or why there are no samples
	leaving  bool       // under b.mu: it wants no more than what is on its way
	sizes    []int      // under b.mu: the bytes of the batches in c, the latest last; those of batches that were read may stand before

	mu      sync.Mutex
	overrun uint64
}

// Overrun counts samples that were dropped because C was not read in time.
func (s *Subscription) Overrun() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overrun
}

// Subscribe has samples delivered from now on. It waits until it is known whether the program can work on this
// machine; if it cannot, the error says what is missing. The caller closes the subscription.
func (b *Broker) Subscribe(ctx context.Context, s Settings) (*Subscription, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	c := make(chan Batch, queued)
	sub := &Subscription{C: c, c: c, b: b, settings: s, first: make(chan error, 1)}
	b.mu.Lock()
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
		b.settings, b.hello, b.stalled = s, false, nil
		b.changed, b.running = make(chan struct{}, 1), make(chan struct{})
		go b.supervise(path, b.running)
	case b.stalled != nil:
		sub.first <- b.stalled
	default:
		if want := b.settings.with(s); want != b.settings {
			b.settings = want
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
		sub.leave() // unlike Close it does not wait for the program: no sample is wanted
		return nil, ctx.Err()
	}
	return sub, nil
}

// leave ends the subscription without waiting for anything.
func (s *Subscription) leave() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	delete(s.b.subscribers, s)
	if s.b.running != nil && s.b.users() == 0 {
		s.b.wake()
	}
}

// Close ends the subscription. The last one to be closed ends the program and waits until it has ended: what the
// program had taken is then in C, as far as C had room. C is not closed.
func (s *Subscription) Close() {
	b := s.b
	b.mu.Lock()
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

// Totals returns the counters.
func (b *Broker) Totals() Totals {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.totals
	t.Aborts = maps.Clone(t.Aborts)
	return t
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
	var down time.Time // since when there are no samples; zero before the first
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
				fatal = fmt.Errorf("the program %s does not start, %d times in a row: %s", Program, early, end.reason)
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
		b.log.Warnf("the unwinder is started anew in %v (restart %d), no samples are taken meanwhile: %s", backoff, n, end.reason)
		b.sleep(backoff)
		backoff = min(2*backoff, maxBackoff)
	}
}

// ended tells whether the supervisor is done: nobody wants samples, or fatal says why nobody can have any. If so it
// resets what belongs to the supervisor, and subscribers that still wait for the first run get fatal.
func (b *Broker) ended(fatal error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	users := b.users()
	if fatal == nil && users > 0 {
		return false
	}
	if fatal != nil && b.hello && users > 0 { // those have been told that it works
		defer b.log.Warnf("gadgets that run have no more samples (%d): %v", users, fatal)
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
	for {
		select {
		case <-timer.C:
			return
		case <-b.changed:
			if _, wanted := b.wanted(); !wanted {
				return
			}
		}
	}
}

// tell tells all subscribers that wait for the first run what became of it. The caller holds mu.
func (b *Broker) tell(err error) {
	for s := range b.subscribers {
		select {
		case s.first <- err:
		default:
		}
	}
}

// ending is how a run of the program ended.
type ending struct {
	asked  bool      // it was asked to: nobody wants samples, or the settings have changed
	fatal  error     // why another run would be of no use
	reason string    // why it ended, if neither of the two
	last   time.Time // when it last delivered
	blamed bool      // it was at a process, which may be why it ended
}

// run is one run of the program, seen from here.
type run struct {
	b       *Broker
	p       *process
	hz      int
	down    time.Time // as in supervise
	base    Totals    // before this run
	session uint64    // samples received
	ready   bool
	last    time.Time
}

// once runs the program until it ends or has to be ended.
func (b *Broker) once(path string, settings Settings, down time.Time) ending {
	p, err := launch(path, settings, b.avoid, b.said())
	if err != nil {
		return ending{reason: err.Error()}
	}
	defer func() {
		p.close()
		if !p.gone() {
			b.mu.Lock()
			b.hung = append(b.hung, p)
			b.mu.Unlock()
		}
	}()
	r := &run{b: b, p: p, hz: settings.Hz, down: down, base: b.Totals()}

	events := make(chan wire.Event)
	broken := make(chan error, 1)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		reader := wire.NewReader(p.out)
		for {
			ev, err := reader.Next()
			if err != nil {
				broken <- err
				return
			}
			select {
			case events <- ev:
			case <-stop:
				return
			}
		}
	}()

	timeout := time.NewTicker(b.silence / 6)
	defer timeout.Stop()
	heard, asked, why := time.Now(), false, ""
	var taken, stuck uint64
	var stuckSince time.Time
	var reading reading
	pace := newPace(b.flushBurst, heard)
	for {
		select {
		case ev := <-events:
			heard = time.Now()
			if ev.Refused != "" {
				p.end()
				p.wait(b.endTime)
				return ending{fatal: fmt.Errorf("whole stacks cannot be had on this machine: %s", ev.Refused)}
			}
			r.take(ev)
			if ev.Flush != nil && !pace.take(heard) && why == "" {
				why = fmt.Sprintf("it writes more than %d batches of samples a second, and may have been taken over by what it reads", flushRate)
				p.kill()
				go p.wait(b.endTime)
			}
		case err := <-broken:
			if why == "" && errors.Is(err, wire.ErrProtocol) {
				why = err.Error()
				p.kill()
			}
			p.end()
			p.wait(b.endTime)
			r.settle()
			if why == "" {
				why = p.reason()
			}
			said := ""
			if !asked {
				said = b.blame(p.count())
			}
			return ending{asked: asked, reason: why + said, last: r.last, blamed: said != ""}
		case <-b.changed:
			if now, wanted := b.wanted(); (!wanted || now != settings) && !asked {
				asked = true
				p.end()
				go p.wait(b.endTime) // which also ends the stream
			}
		case <-timeout.C:
			if asked {
				continue
			}
			c := p.count()
			blocked, spent := reading.look(p, c)
			if c[wire.CounterPID] == 0 || c[wire.CounterTaken] != taken || c[wire.CounterPID] != stuck {
				taken, stuck, stuckSince = c[wire.CounterTaken], c[wire.CounterPID], time.Now()
			}
			memory := p.memory()
			b.mu.Lock()
			b.totals.Memory = memory
			b.mu.Unlock()
			silent := time.Since(heard) > b.silence
			switch {
			case blocked > b.silence, silent && blocked > b.silence/2:
				why = fmt.Sprintf("reading the files of the process %d got nowhere for %v: their file system may not answer. Samples of that process are left out from now on", reading.pid, blocked.Round(b.silence/6))
				b.leaveAlone(reading.pid)
			case spent > b.silence:
				why = fmt.Sprintf("it has taken %v of CPU time on reading the files of the process %d once: they may be made for that. Samples of that process are left out from now on", spent.Round(b.silence/6), reading.pid)
				b.leaveAlone(reading.pid)
			case silent:
				why = fmt.Sprintf("it has been silent for %v", b.silence)
			case stuck != 0 && time.Since(stuckSince) > b.silence:
				why = fmt.Sprintf("it has worked for %v on one sample of the process %d", b.silence, stuck)
			case memory > memoryLimit:
				why = fmt.Sprintf("it has taken %d MiB of memory, more than %d MiB", memory>>20, memoryLimit>>20)
			default:
				continue
			}
			p.kill()
			go p.wait(b.endTime)
		}
	}
}

// maxWarnings is how many of one run's warnings are shown: other programs can bring them about.
const maxWarnings = 20

// said takes lines of the program's log. Its own warnings are for the operator; what the profiler in it has to say is for
// those who look for a fault.
func (b *Broker) said() func(line string) {
	warnings := 0
	return func(line string) {
		own := strings.HasPrefix(line, "level=WARN") || strings.HasPrefix(line, "level=ERROR")
		if !own || fromProfiler(line) || warnings >= maxWarnings {
			b.log.Debugf("unwinder: %s", line)
			return
		}
		warnings++
		b.log.Warnf("unwinder: %s", line)
	}
}

// early tells whether the program has ended before it said that it can work here, and not because of what it read: that is likely
// to come again.
func (b *Broker) early(e ending) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.hello && !e.blamed
}

// take takes what the program has written.
func (r *run) take(ev wire.Event) {
	b := r.b
	switch {
	case ev.Hello:
		b.mu.Lock()
		b.hello = true
		b.tell(nil)
		b.mu.Unlock()
	case ev.Ready != nil:
		r.last = time.Now()
		b.mu.Lock()
		b.totals.Starts++
		b.totals.StartTime = time.Duration(min(ev.Ready.StartMillis, 1<<30)) * time.Millisecond
		if !r.ready && !r.down.IsZero() {
			b.totals.Away += time.Since(r.down)
		}
		b.mu.Unlock()
		r.ready = true
		b.log.Debugf("the unwinder takes %d samples per second of each CPU; it took %d ms to start", ev.Ready.Hz, ev.Ready.StartMillis)
	case ev.Flush != nil:
		r.flush(ev.Flush)
	}
}

// flush hands a batch to the subscribers. It never waits for one.
func (r *run) flush(f *wire.Flush) {
	if r.ready {
		r.last = time.Now()
	}
	n := uint64(0)
	for i := range f.Samples {
		n += f.Samples[i].Count
	}
	r.session += n
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	b.totals.Stats = add(r.base.Stats, f.Stats)
	b.totals.Received = r.base.Received + r.session
	if len(f.Samples) == 0 {
		return
	}
	for s := range b.subscribers {
		if !s.deliver(Batch{Samples: f.Samples, Hz: r.hz}, f.Size) {
			s.mu.Lock()
			s.overrun += n
			s.mu.Unlock()
		}
	}
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

// settle counts, after the end, what was taken and never arrived.
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
