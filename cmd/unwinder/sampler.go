package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/reporter/samples"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// flushInterval is how often samples are written. It is short, because the reader has to tell whose they are before
	// that has changed.
	flushInterval = 250 * time.Millisecond
	// beat is how often something is written even if there are no samples.
	beat = time.Second
	// maxPending is how many different samples wait to be written, and maxStacks how many stacks are kept.
	maxPending = 1 << 15
	maxStacks  = wire.MaxStacks * 3 / 4
	// maxKept is how many frames all of them have: deep recursion makes deep stacks.
	maxKept = 2 << 20
	// memoryInterval is how often kernel memory is counted.
	memoryInterval = 10 * time.Second
)

// entry is a distinct stack.
type entry struct {
	frames     libpf.Frames // keeps the handles alive, which its key is made of
	abort      uint32
	languages  uint32 // a bit for each wire.FrameType in it
	generation uint32 // of the tables that id is in
	id         uint32
}

// sampleKey is what makes a sample different from others.
type sampleKey struct {
	stack  *entry
	proc   *proc
	comm   libpf.Comm
	labels string // in the form of joinLabels
	trace  libpf.APMTraceID
	span   libpf.APMSpanID
}

// sampler adds up samples, in the goroutine of run, and writes them, in one of its own, so that a reader that is slow holds up
// nothing but itself.
type sampler struct {
	config   config
	log      *slog.Logger
	counters *counters
	meter    *meter
	procs    *procs

	// Of the sample that is being handled.
	pid   uint32
	ktime uint64

	mu      sync.Mutex
	stacks  map[string]*entry
	kept    int // frames of stacks
	pending map[sampleKey]uint64
	waiting uint64 // the sum of pending
	stats   wire.Stats
	started *wire.Ready
	renew   bool // stacks was emptied: the tables have to be, too
	failed  bool
	broken  chan error

	// Of the goroutine that writes.
	out        *table
	spare      map[sampleKey]uint64
	measured   time.Time
	memory     uint64
	stop, done chan struct{}
}

func newSampler(out *wire.Writer, c config, n *counters, logger *slog.Logger) *sampler {
	s := &sampler{
		config: c, log: logger, counters: n, meter: &meter{}, procs: newProcs(),
		stacks: map[string]*entry{}, pending: map[sampleKey]uint64{}, spare: map[sampleKey]uint64{},
		stats: wire.Stats{Aborts: map[uint32]uint64{}}, broken: make(chan error, 1),
		out: newTable(out), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go s.write()
	return s
}

// ready tells the reader that samples are taken.
func (s *sampler) ready(r wire.Ready) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = &r
}

// close writes what is left and ends the writing.
func (s *sampler) close() {
	close(s.stop)
	<-s.done
}

// run handles samples until ctx ends, and then those that were taken before.
func (s *sampler) run(ctx context.Context, t *running) error {
	// A fault in a file that is mapped into memory and was cut short is an error, not the end.
	debug.SetPanicOnFault(true)
	for {
		select {
		case x := <-t.traces:
			s.handle(t, x)
		case <-t.Done():
			return errors.New("the profiler has stopped: it cannot read what the kernel says")
		case err := <-s.broken:
			return err
		case <-ctx.Done():
			t.Close()
			drained := time.After(drainTime)
			for {
				select {
				case x := <-t.traces:
					s.handle(t, x)
				case <-drained:
					return nil
				}
			}
		}
	}
}

// handle has a sample unwound to the end, which ends in ReportTraceEvent.
func (s *sampler) handle(t *running, x *libpf.EbpfTrace) {
	if x == nil {
		return
	}
	s.pid, s.ktime = uint32(x.PID), uint64(x.KTime)
	s.counters[wire.CounterPID].Store(uint64(x.PID))
	s.counters[wire.CounterTaken].Add(1)
	defer func() {
		s.counters[wire.CounterPID].Store(0)
		if r := recover(); r != nil {
			s.drop(&s.stats.Failed)
			if !s.failed {
				s.failed = true
				s.log.Error("a sample could not be read, samples like it are dropped", "pid", s.pid, "reason", fmt.Sprint(r), "stack", string(debug.Stack()))
			}
		}
	}()
	t.HandleTrace(x)
}

func (s *sampler) drop(reason *uint64) {
	s.mu.Lock()
	*reason++
	s.mu.Unlock()
	s.counters[wire.CounterDropped].Add(1)
}

// ReportTraceEvent implements reporter.TraceReporter. It is called by HandleTrace.
func (s *sampler) ReportTraceEvent(t *libpf.Trace, m *samples.TraceEventMeta) error {
	if len(t.Frames) == 0 {
		s.drop(&s.stats.Idle)
		return nil
	}
	p := s.procs.get(s.pid, s.ktime)
	k := sampleKey{proc: p, comm: m.Comm}
	if s.config.spans || len(s.config.labels) > 0 {
		s.config.tell(&k, t.CustomLabels, m.TraceID, m.SpanID)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	k.stack = s.stacks[framesKey(t.Frames)]
	if k.stack == nil {
		if len(s.stacks) >= maxStacks || s.kept+len(t.Frames) > maxKept {
			clear(s.stacks)
			s.kept = 0
			s.renew = true
		}
		k.stack = newEntry(t.Frames)
		s.kept += len(t.Frames)
		// The map keeps its key, and must not keep the frames by it.
		s.stacks[strings.Clone(framesKey(t.Frames))] = k.stack
	}
	n, there := s.pending[k]
	if !there && len(s.pending) >= maxPending {
		s.stats.Full++
		s.counters[wire.CounterDropped].Add(1)
		return nil
	}
	s.pending[k] = n + 1
	s.waiting++
	if p.Start == 0 {
		s.stats.NoProcess++
	}
	s.count(k.stack, p)
	return nil
}

// count counts what a stack says of the unwinding.
func (s *sampler) count(e *entry, p *proc) {
	if e.abort != 0 && (len(s.stats.Aborts) < wire.MaxReasons || s.stats.Aborts[e.abort] > 0) {
		s.stats.Aborts[e.abort]++
	}
	for i := range s.stats.Languages {
		if e.languages&(1<<i) != 0 {
			s.stats.Languages[i].Frames++
		}
	}
	if p.language != wire.FrameUnknown {
		l := &s.stats.Languages[p.language]
		l.Expected++
		if e.languages&(1<<p.language) == 0 {
			l.Missing++
		}
	}
}

// framesKey is what makes a stack different from others: the handles of its frames. The profiler's own hash leaves out what frames
// of interpreters differ in. It is only valid as long as the frames are.
func framesKey(f libpf.Frames) string {
	return unsafe.String((*byte)(unsafe.Pointer(unsafe.SliceData(f))), len(f)*int(unsafe.Sizeof(f[0])))
}

// newEntry makes a stack of a sample's frames.
func newEntry(frames libpf.Frames) *entry {
	e := &entry{frames: slices.Clip(frames)}
	for _, h := range frames {
		f := h.Value()
		if f.Type.IsError() {
			if e.abort == 0 {
				e.abort = uint32(f.AddressOrLineno)
			}
			continue
		}
		e.languages |= 1 << frameType(f.Type)
	}
	return e
}

// write writes what was added up, again and again.
func (s *sampler) write() {
	defer close(s.done)
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	var last time.Time
	for {
		final := false
		select {
		case <-s.stop:
			final = true
		case <-tick.C:
		}
		if err := s.flush(final || time.Since(last) >= beat, &last); err != nil {
			select {
			case s.broken <- fmt.Errorf("writing to the pipe: %w", err):
			default:
			}
			return
		}
		if final {
			return
		}
	}
}

// flush writes what is pending; where nothing is, only if it must.
func (s *sampler) flush(must bool, last *time.Time) error {
	if time.Since(s.measured) > memoryInterval {
		s.measured, s.memory = time.Now(), kernelMemory()
	}
	s.mu.Lock()
	if len(s.pending) == 0 && s.started == nil && !must {
		s.mu.Unlock()
		return nil
	}
	pending, started, renew := s.pending, s.started, s.renew
	s.pending, s.started, s.renew = s.spare, nil, false
	s.waiting = 0
	s.mu.Unlock()

	*last = time.Now()
	if started != nil {
		s.out.w.Ready(*started)
	}
	if renew {
		s.out.reset()
	}
	sent := uint64(0)
	for k, n := range pending {
		s.out.sample(k, n)
		sent += n
	}
	clear(pending)
	s.spare = pending

	s.mu.Lock()
	s.stats.Sent += sent
	s.stats.Pending = s.waiting
	s.stats.Taken = s.stats.Sent + s.stats.Pending + s.stats.Full + s.stats.Failed + s.stats.Idle
	s.stats.KernelLost = s.meter.lost.Load()
	s.stats.KernelMemory = s.memory
	s.out.w.Stats(&s.stats)
	s.mu.Unlock()
	return s.out.w.Flush()
}
