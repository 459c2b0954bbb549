package unwinder

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/time/rate"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// ending describes the end of a run of the unwinder.
type ending struct {
	asked  bool      // it was requested: no subscriber, or other settings
	fatal  error     // why another run would not help
	reason string    // why it ended in all other cases
	last   time.Time // the time of its last output
	blamed bool      // it worked on a process, which may be the reason
}

// run is one run of the unwinder. All fields belong to the goroutine that calls once.
type run struct {
	b        *Broker
	p        *process
	settings Settings
	down     time.Time // see supervise
	base     Totals    // before this run
	session  uint64    // the number of received samples
	ready    bool
	last     time.Time // of its last output

	asked    bool   // the end was requested: no subscriber, or other settings
	why      string // the reason why this package ends the process
	waited   bool   // reading files only waited for a sample
	progress progress
	pace     *rate.Limiter // of batches
}

// once runs the unwinder until it exits or must be ended.
func (b *Broker) once(path string, settings Settings, down time.Time) ending {
	shared, err := b.sharedMaps(settings)
	if err != nil {
		return ending{fatal: err}
	}
	p, err := launch(path, settings, b.avoid, b.memoryBound(), shared, b.said())
	if err != nil {
		return ending{reason: err.Error()}
	}
	served, serving := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(serving)
		if err := b.serve(p); err != nil {
			served <- err
		}
	}()
	defer func() {
		p.kill() // another process may hold its end of the socket
		<-serving
		p.close()
		if !p.gone() {
			b.mu.Lock()
			b.hung = append(b.hung, p)
			b.mu.Unlock()
		}
	}()
	stop := make(chan struct{})
	defer close(stop)
	events, broken := read(p.out, stop)

	timeout := time.NewTicker(min(b.silence, b.unanswered) / 6)
	defer timeout.Stop()
	meter := time.NewTicker(b.meterInterval)
	defer meter.Stop()
	r := &run{
		b: b, p: p, settings: settings, down: down, base: b.Totals(),
		progress: progress{heard: time.Now()}, pace: rate.NewLimiter(flushRate, b.flushBurst),
	}
	for {
		select {
		case ev := <-events:
			if ev.Refused != "" {
				p.end()
				p.wait(b.endTime)
				return ending{fatal: fmt.Errorf("whole stacks are not available on this machine: %s", ev.Refused)}
			}
			r.take(ev)
		case err := <-broken:
			return r.ended(err)
		case err := <-served:
			r.destroy(err.Error())
		case <-b.changed:
			r.change()
		case <-timeout.C:
			r.checkProgress()
		case <-meter.C:
			r.measure()
		}
	}
}

// sharedMaps returns the maps that the unwinder shares with the gadgets. Without chains, it returns none.
func (b *Broker) sharedMaps(settings Settings) (shared []*ebpf.Map, err error) {
	if settings.Chains == "" {
		return nil, nil
	}
	for _, name := range wire.SharedMaps {
		m, err := b.shared(name)
		if err != nil {
			return nil, err
		}
		shared = append(shared, m)
	}
	return shared, nil
}

// read reads events until the stream's first error, which it sends to broken, or until stop is closed.
func read(stream io.Reader, stop <-chan struct{}) (<-chan wire.Event, <-chan error) {
	events, broken := make(chan wire.Event), make(chan error, 1)
	go func() {
		reader := wire.NewReader(stream)
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
	return events, broken
}

// destroy ends the process because of a defect. Only the first reason counts.
func (r *run) destroy(why string) {
	if r.why == "" {
		r.why = why
		r.p.destroy(r.b.endTime)
	}
}

// ended waits for the process, whose output ended with err, and returns why it ended.
func (r *run) ended(err error) ending {
	if r.why == "" && errors.Is(err, wire.ErrProtocol) {
		r.why = err.Error()
		r.p.kill()
	}
	r.p.end()
	if !r.p.givenUp.Load() {
		r.p.wait(r.b.endTime)
	}
	r.settle()
	if r.why == "" {
		r.why = r.p.reason()
	}
	blamed := ""
	if !r.asked {
		c := r.p.count()
		if r.waited {
			c[wire.CounterReading] = 0
		}
		blamed = r.b.blame(c)
	}
	return ending{asked: r.asked, reason: r.why + blamed, last: r.last, blamed: blamed != ""}
}

// change passes changed settings on to the process, or ends it if that is not possible or if it has no subscriber.
func (r *run) change() {
	now, wanted := r.b.wanted()
	again := r.b.again()
	if r.asked || r.why != "" || wanted && now == r.settings && len(again) == 0 {
		return
	}
	kinds, only := r.settings.grown(now)
	if !wanted || !only || r.p.ask(append(kinds, again...)) != nil {
		r.asked = true
		r.p.end()
		go r.p.wait(r.b.endTime) // also ends the stream
	}
	r.settings = now
}

// measure ends the process if it uses too much memory.
func (r *run) measure() {
	memory := r.p.memory()
	r.b.mu.Lock()
	r.b.totals.Memory = memory
	r.b.mu.Unlock()
	if memory > r.p.bound {
		r.destroy(fmt.Sprintf("it used %d MiB of memory, and the limit is %d MiB (1 GiB, or half of the cgroup's limit)", memory>>20, r.p.bound>>20))
	}
}

// maxWarnings limits the warnings that one run shows, because other programs can cause them.
const maxWarnings = 20

// said returns a function for lines of the unwinder's log. The operator sees the unwinder's own warnings. The profiler's lines
// are for debugging.
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

// early reports whether the unwinder exited before it reported that it works here, and not because of its input. Then it will
// probably exit again.
func (b *Broker) early(e ending) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.hello && !e.blamed
}

// take handles an event of the unwinder's output.
func (r *run) take(ev wire.Event) {
	b := r.b
	r.progress.heard = time.Now()
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
		if !r.ready && !r.down.IsZero() {
			b.totals.Away += time.Since(r.down)
		}
		b.mu.Unlock()
		r.ready = true
		b.log.Debugf("the unwinder took %d ms to start", ev.Ready.StartMillis)
	case ev.Flush != nil:
		r.flush(ev.Flush)
		if !r.pace.Allow() {
			r.destroy(fmt.Sprintf("it wrote more than %d batches of samples per second; a malicious file may control it", flushRate))
		}
	}
}

// flush delivers a batch to the subscribers. It never waits for a subscriber.
func (r *run) flush(f *wire.Flush) {
	if r.ready {
		r.last = time.Now()
	}
	r.session += uint64(len(f.Unwound))
	unwound := map[uint32][]wire.Unwound{}
	for _, u := range f.Unwound {
		unwound[wire.RunOf(u.ID)] = append(unwound[wire.RunOf(u.ID)], u)
	}
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	b.totals.Stats = add(r.base.Stats, f.Stats)
	for s := range b.subscribers {
		lost := uint64(len(unwound[s.run]))
		if lost > 0 && !s.deliver(unwound[s.run], f.Size) {
			s.mu.Lock()
			s.overrun += lost
			s.mu.Unlock()
		}
	}
}
