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
	// flushInterval is the time between two writes of stacks. For both programs, a write costs more than a hundred stacks. Stacks
	// with new processes or files are written immediately, because the reader must open the files before the process exits.
	// pollInterval is the time between two reads of stacks from the kernel.
	flushInterval = time.Second
	pollInterval  = 250 * time.Millisecond
	// beat is the longest time between two writes, even without stacks.
	beat = flushInterval + pollInterval
	// maxPending limits the events that wait to be written. From flushThreshold on, events are written early. maxStacks limits
	// the stacks that are kept.
	maxPending     = 1 << 15
	flushThreshold = maxPending / 8
	maxStacks      = wire.MaxStacks * 3 / 4
	// maxKept limits the total number of frames in the kept stacks, because recursion makes stacks deep.
	maxKept = 2 << 20
	// memoryInterval is the time between two measurements of kernel memory. The first measurement takes place after firstMemory.
	memoryInterval = time.Minute
	firstMemory    = 5 * time.Second
)

// entry is a distinct stack.
type entry struct {
	frames     libpf.Frames // keeps the handles in the map key alive
	abort      uint32
	languages  uint32 // a bit for each wire.FrameType in the stack
	generation uint32 // the generation of the writer's tables that id belongs to
	id         uint32
}

// event is an event from a gadget's program, which also chose the ID.
type event struct {
	id    uint64
	stack *entry
	proc  *proc
	wire.Said
}

// sampler collects the stacks of gadgets' events in the goroutine of run. Another goroutine writes them, so a slow reader does
// not block collecting.
type sampler struct {
	config   config
	log      *slog.Logger
	counters *counters
	meter    *meter
	procs    *procs
	brought  brought

	// The following fields belong to the current event.
	pid   uint32
	ktime uint64

	flushed time.Time // last regular write
	woken   time.Time // last request for a write

	mu      sync.Mutex
	stacks  map[string]*entry
	kept    int // number of frames in stacks
	events  []event
	stats   wire.Stats
	loaded  bool // the writer must report that the eBPF programs are loaded
	started *wire.Ready
	renew   bool // stacks was cleared, so the tables must also be cleared
	news    bool // events contains new processes or files
	failed  bool
	broken  chan error

	// The following fields belong to the writing goroutine.
	out        *table
	handed     []event // the events written last, whose memory is reused
	measured   time.Time
	measure    time.Duration // time until the next measurement
	memory     uint64
	due        chan struct{} // requests to write events
	stop, done chan struct{}
}

func newSampler(out *wire.Writer, c config, n *counters, logger *slog.Logger) *sampler {
	s := &sampler{
		config: c, log: logger, counters: n, meter: &meter{}, procs: newProcs(),
		stacks: map[string]*entry{},
		stats:  wire.Stats{Aborts: map[uint32]uint64{}}, broken: make(chan error, 1),
		out: newTable(out), due: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go s.write()
	return s
}

// change reports to the reader what set changes.
func (s *sampler) change(set func()) {
	s.mu.Lock()
	set()
	s.mu.Unlock()
	s.wake()
}

// wake requests a write of events.
func (s *sampler) wake() {
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// drained is called when all samples from the kernel are handled. It requests writes, so no additional timer wakes this
// process.
func (s *sampler) drained(now time.Time) {
	s.mu.Lock()
	n, news := len(s.events), s.news
	s.mu.Unlock()
	onTime := now.Sub(s.flushed) >= flushInterval-pollInterval/2
	if onTime {
		s.flushed = now
	}
	if n > 0 && (onTime || news || n >= flushThreshold) {
		s.woken = now
		s.wake()
	}
}

// close writes the remaining events and stops the writing goroutine.
func (s *sampler) close() {
	close(s.stop)
	<-s.done
}

// run handles samples until ctx ends. It then handles the remaining samples.
func (s *sampler) run(ctx context.Context, t *running) error {
	// Turn a fault in a truncated mapped file into a panic, which can be recovered.
	debug.SetPanicOnFault(true)
	for {
		select {
		case x := <-t.traces:
			s.handle(t, x)
		case <-t.Done():
			return errors.New("the profiler has stopped: it cannot read the kernel's events")
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

// handle passes a sample to the profiler, which converts it and calls ReportTraceEvent.
func (s *sampler) handle(t *running, x *libpf.EbpfTrace) {
	if x == nil { // nil marks the end of the data from the kernel
		s.drained(time.Now())
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
				s.log.Error("reading a sample failed, so similar samples are dropped", "pid", s.pid, "reason", fmt.Sprint(r), "stack", string(debug.Stack()))
			}
		}
	}()
	t.HandleTrace(x)
}

func (s *sampler) drop(reason *uint64) {
	s.mu.Lock()
	*reason++
	s.mu.Unlock()
}

// ReportTraceEvent implements reporter.TraceReporter. It is called by HandleTrace.
func (s *sampler) ReportTraceEvent(t *libpf.Trace, m *samples.TraceEventMeta) error {
	if len(t.Frames) == 0 {
		s.drop(&s.stats.Idle)
		return nil
	}
	p := s.procs.get(s.pid, s.ktime)
	e := event{id: uint64(m.Value), proc: p}
	if s.config.spans || len(s.config.labels) > 0 {
		e.Said = s.config.tell(t.CustomLabels, m.TraceID, m.SpanID)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	e.stack = s.stacks[framesKey(t.Frames)]
	if e.stack == nil {
		if len(s.stacks) >= maxStacks || s.kept+len(t.Frames) > maxKept {
			clear(s.stacks)
			s.kept = 0
			s.renew = true
		}
		e.stack = newEntry(t.Frames)
		s.kept += len(t.Frames)
		// Clone the key, because it would otherwise keep all frames in memory.
		s.stacks[strings.Clone(framesKey(t.Frames))] = e.stack
	}
	if len(s.events) >= maxPending {
		s.stats.Full++
		return nil
	}
	s.events = append(s.events, e)
	// Rows of Inspektor Gadget's own gadgets wait for each stack.
	s.news = s.news || wire.RunOf(e.id) == wire.OtelRun
	switch {
	case p.Start == 0:
		s.stats.NoProcess++
	case !p.told:
		p.told, s.news = true, true
		// On a busy machine, handling all samples is slow, and the process can exit before the end.
		if now := time.Now(); now.Sub(s.woken) >= pollInterval {
			s.woken = now
			s.wake()
		}
	}
	s.count(e.stack, p)
	return nil
}

// count adds a stack to the statistics.
func (s *sampler) count(e *entry, p *proc) {
	if e.abort != 0 && (len(s.stats.Aborts) < wire.MaxReasons || s.stats.Aborts[e.abort] > 0) {
		s.stats.Aborts[e.abort]++
	}
	for i := range s.stats.Languages {
		if e.languages&(1<<i) != 0 {
			s.stats.Languages[i].Frames++
		}
	}
	language := p.language
	if language == wire.FrameUnknown {
		language = s.brought.language(p.PID)
	}
	if language != wire.FrameUnknown {
		l := &s.stats.Languages[language]
		l.Expected++
		if e.languages&(1<<language) == 0 {
			l.Missing++
		}
	}
}

// framesKey identifies a stack by the handles of its frames. The profiler's own hash ignores differences between interpreter
// frames. The key is valid as long as the frames are kept.
func framesKey(f libpf.Frames) string {
	return unsafe.String((*byte)(unsafe.Pointer(unsafe.SliceData(f))), len(f)*int(unsafe.Sizeof(f[0])))
}

// newEntry creates an entry from a sample's frames.
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

// write writes upon each request until stop is closed.
func (s *sampler) write() {
	defer close(s.done)
	quiet := time.NewTimer(beat)
	defer quiet.Stop()
	for {
		final := false
		select {
		case <-s.stop:
			final = true
		case <-s.due:
		case <-quiet.C:
		}
		if err := s.flush(); err != nil {
			select {
			case s.broken <- fmt.Errorf("writing to the pipe: %w", err):
			default:
			}
			return
		}
		if final {
			return
		}
		quiet.Reset(beat)
	}
}

// flush writes the events and the counters.
func (s *sampler) flush() error {
	s.mu.Lock()
	events, loaded, started, renew := s.events, s.loaded, s.started, s.renew
	s.events, s.loaded, s.started, s.renew, s.news = s.handed, false, nil, false, false
	s.mu.Unlock()

	if now := time.Now(); started != nil || now.Sub(s.measured) > s.measure {
		s.measured, s.memory = now, kernelMemory()
		s.measure = min(max(2*s.measure, firstMemory), memoryInterval)
	}
	if loaded {
		s.out.w.Hello("")
	}
	if started != nil {
		s.out.w.Ready(*started)
	}
	if renew {
		s.out.reset()
	}
	for _, e := range events {
		s.out.unwound(e)
	}
	clear(events)
	s.handed = events[:0]

	s.mu.Lock()
	s.stats.Taken = s.counters[wire.CounterTaken].Load()
	s.stats.KernelLost = s.meter.lost.Load()
	s.stats.KernelMemory = s.memory
	s.out.w.Stats(&s.stats)
	s.mu.Unlock()
	return s.out.w.Flush()
}
