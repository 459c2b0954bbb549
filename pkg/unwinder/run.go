package unwinder

import (
	"errors"
	"fmt"
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

// run is one run of the unwinder.
type run struct {
	b       *Broker
	p       *process
	down    time.Time // as in supervise
	base    Totals    // before this run
	session uint64    // the number of received samples
	ready   bool
	last    time.Time
}

// once runs the unwinder until it exits or must be ended.
func (b *Broker) once(path string, settings Settings, down time.Time) ending {
	var shared []*ebpf.Map
	if settings.Chains != "" {
		for _, name := range wire.SharedMaps {
			m, err := b.shared(name)
			if err != nil {
				return ending{fatal: err}
			}
			shared = append(shared, m)
		}
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
	r := &run{b: b, p: p, down: down, base: b.Totals()}

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

	timeout := time.NewTicker(min(b.silence, b.unanswered) / 6)
	defer timeout.Stop()
	meter := time.NewTicker(b.meterInterval)
	defer meter.Stop()
	heard, asked, why := time.Now(), false, ""
	var taken, stuck uint64
	var stuckSince time.Time
	var reading reading
	pace := rate.NewLimiter(flushRate, b.flushBurst)
	for {
		select {
		case ev := <-events:
			heard = time.Now()
			if ev.Refused != "" {
				p.end()
				p.wait(b.endTime)
				return ending{fatal: fmt.Errorf("whole stacks are not available on this machine: %s", ev.Refused)}
			}
			r.take(ev)
			if ev.Flush != nil && !pace.AllowN(heard, 1) && why == "" {
				why = fmt.Sprintf("it wrote more than %d batches of samples per second; a malicious file may control it", flushRate)
				p.destroy(b.endTime)
			}
		case err := <-broken:
			if why == "" && errors.Is(err, wire.ErrProtocol) {
				why = err.Error()
				p.kill()
			}
			p.end()
			if !p.givenUp.Load() {
				p.wait(b.endTime)
			}
			r.settle()
			if why == "" {
				why = p.reason()
			}
			said := ""
			if !asked {
				said = b.blame(p.count())
			}
			return ending{asked: asked, reason: why + said, last: r.last, blamed: said != ""}
		case err := <-served:
			if why == "" {
				why = err.Error()
				p.destroy(b.endTime)
			}
		case <-b.changed:
			now, wanted := b.wanted()
			again := b.again()
			if asked || why != "" || wanted && now == settings && len(again) == 0 {
				continue
			}
			kinds, only := settings.grown(now)
			if !wanted || !only || p.ask(append(kinds, again...)) != nil {
				asked = true
				p.end()
				go p.wait(b.endTime) // also ends the stream
			}
			settings = now
		case <-timeout.C:
			if asked || why != "" {
				continue
			}
			c := p.count()
			blocked, spent := reading.look(p, c)
			if c[wire.CounterPID] == 0 || c[wire.CounterTaken] != taken || c[wire.CounterPID] != stuck {
				taken, stuck, stuckSince = c[wire.CounterTaken], c[wire.CounterPID], time.Now()
			}
			silent := time.Since(heard) > b.silence
			switch {
			case blocked > b.unanswered:
				why = fmt.Sprintf("reading the files of process %d made no progress for %v: its file system might not respond, so its samples are skipped from now on", reading.pid, blocked.Round(b.unanswered/10))
				b.leaveAlone(reading.pid)
			case spent > b.silence:
				why = fmt.Sprintf("reading the files of process %d took %v of CPU time: the files may be malicious, so its samples are skipped from now on", reading.pid, spent.Round(b.silence/6))
				b.leaveAlone(reading.pid)
			case silent:
				why = fmt.Sprintf("it wrote nothing for %v", b.silence)
			case stuck != 0 && time.Since(stuckSince) > b.silence:
				why = fmt.Sprintf("it processed one sample of the process %d for more than %v", stuck, b.silence)
			default:
				continue
			}
			p.destroy(b.endTime)
		case <-meter.C:
			memory := p.memory()
			b.mu.Lock()
			b.totals.Memory = memory
			b.mu.Unlock()
			if memory > p.bound && why == "" {
				why = fmt.Sprintf("it used %d MiB of memory; the limit is %d MiB, which is 1 GiB or half of its cgroup's limit", memory>>20, p.bound>>20)
				p.destroy(b.endTime)
			}
		}
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
	b.totals.Received = r.base.Received + r.session
	for s := range b.subscribers {
		lost := uint64(len(unwound[s.run]))
		if lost > 0 && !s.deliver(Batch{Unwound: unwound[s.run]}, f.Size) {
			s.mu.Lock()
			s.overrun += lost
			s.mu.Unlock()
		}
	}
}
