package captures

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/warnings"
)

const (
	// tick is how long run reads captures before it does other work.
	tick = 50 * time.Millisecond
	// paceInterval is the time between two checks of the step. If there are too many captures, the check comes earlier.
	paceInterval = time.Second
	// stackPatience is how long a capture waits for its stack, and later for function names. The unwinder sends stacks once a
	// second. lastPatience applies at the end of a run.
	stackPatience = 4 * time.Second
	lastPatience  = 2 * time.Second
	// mostWaiting limits both the captures that wait for a stack and the stacks that wait for a capture. At the limit, the oldest
	// capture is handled with the data available so far.
	mostWaiting = 16384
)

// stacks provides stacks from the unwinder, see unwinder.Stacks.
type stacks interface {
	PreStart(gadgetCtx operators.GadgetContext, ds datasource.DataSource, budget uint32) error
	Start(gadgetCtx operators.GadgetContext) error
	Know(pid uint32)
	Read(take func(wire.Unwound))
	Finish(wanted func() bool, take func(wire.Unwound))
	Count(lost, lostValue uint64)
	Summary() string
	Stop()
	Symbol(f *wire.Frame) (name string, pending bool)
	Show(st *wire.Stack)
	Hide()
}

// instance is the operator's state for one run.
type instance struct {
	op       *operator
	log      logger.Logger
	metadata *viper.Viper
	control  *Control
	stacks   stacks
	step     uint64 // the gadget's own; 0: unknown

	layout     layout
	maps       struct{ captures, counts *ebpf.Map }
	reader     *ringbuf.Reader
	names      *names.Namer // finds the functions in frame-pointer stacks
	classifier classifier
	files      *sharedFiles // nil: the gadget does not need them
	sums       *sums
	live       *live // nil: the run does not show memory in use
	pace       pace
	// ready is set while the gadget's maps exist. ended is set once no more captures will be added.
	ready, ended atomic.Bool

	frames     []frame // reused for each stack
	resolved   []names.Frame
	waiting    []waiting
	arrived    map[uint64]arrival // stacks by their IDs in captures
	counts     counts
	warnings   warnings.Teller
	full       string        // the remedy for full maps
	warnedFull bool          // the user was warned that the maps are full
	blind      bool          // the user was warned that function names are unknown
	stop       chan struct{} // nil before Start and after PreStop
	done       chan struct{} // nil before Start and after Stop
	stopped    bool
}

// waiting is a capture that waits for its stack or for function names.
type waiting struct {
	data  []byte
	since time.Time
	whole *wire.Stack
}

// arrival is a stack whose capture has not been read yet.
type arrival struct {
	stack *wire.Stack
	since time.Time
}

// Name implements operators.DataOperatorInstance.
func (*instance) Name() string { return Name }

// PreStart implements operators.PreStart.
func (i *instance) PreStart(gadgetCtx operators.GadgetContext) error {
	if err := i.setPeriod(gadgetCtx); err != nil {
		return err
	}
	spec := tune.MapSpec(gadgetCtx, "rows")
	if spec == nil {
		return fmt.Errorf("operator %s: the gadget has no map %q", Name, "rows")
	}
	key, value, err := unwinder.RowTypes(spec)
	if err != nil {
		return fmt.Errorf("operator %s: reading the types of the gadget's rows: %w", Name, err)
	}
	if i.classifier, err = newClassifier(gadgetCtx, i.metadata, key, value); err != nil {
		return fmt.Errorf("operator %s: reading the kinds in the gadget's metadata: %w", Name, err)
	}
	if i.layout, err = layoutOf(key, value, i.metadata.GetStringSlice("sums"), i.classifier.field()); err != nil {
		return fmt.Errorf("operator %s: reading the types of the gadget's rows: %w", Name, err)
	}
	if i.files, err = newSharedFiles(i.metadata.Sub("shared"), key, value, os.Getenv("HOST_ROOT")); err != nil {
		return fmt.Errorf("operator %s: reading the shared files in the gadget's metadata: %w", Name, err)
	}
	i.sums = newSums(i.layout)
	source, rows := i.metadata.GetString("source"), func() ([]row, error) { return i.sums.rows(i.control.weight) }
	if param := i.metadata.GetString("live.param"); param != "" {
		if tune.On(gadgetCtx, param) {
			i.live = newLive(i.sums, i.ended.Load)
			if room := i.metadata.GetString("live.map") + "_max_entries"; tune.Key(gadgetCtx, room) != room {
				i.full = fmt.Sprintf(": choose fewer processes, or a larger --%s", tune.Key(gadgetCtx, room))
				if i.step > 0 {
					i.full += fmt.Sprintf(", or a larger --%s", tune.Key(gadgetCtx, i.metadata.GetString("step")))
				}
			}
			source, rows = i.metadata.GetString("live.source"), i.live.snapshot
		}
	}
	ds := gadgetCtx.GetDataSources()[source]
	if ds == nil {
		return fmt.Errorf("operator %s: the gadget has no data source %q", Name, source)
	}
	if err := i.fill(ds, rows); err != nil {
		return err
	}
	return i.stacks.PreStart(gadgetCtx, ds, i.metadata.GetUint32("budget"))
}

// Start begins to read captures. The gadget's programs are already loaded. If starting fails, Start ends the run instead of
// returning an error. After an error, Inspektor Gadget would wait forever for its own map readers.
func (i *instance) Start(gadgetCtx operators.GadgetContext) error {
	if err := i.begin(gadgetCtx); err != nil {
		tune.End(gadgetCtx, Name, err)
	}
	return nil
}

func (i *instance) begin(gadgetCtx operators.GadgetContext) error {
	maps := []string{"unwound", "capture_settings", "capture_counts", "ig_ustack"}
	if i.live != nil {
		maps = append(maps, i.metadata.GetString("live.map"))
		if execs := i.metadata.GetString("live.execs"); execs != "" {
			maps = append(maps, execs)
		}
	}
	found, err := tune.Maps(gadgetCtx, Name, maps...)
	if err != nil {
		return err
	}
	if i.live != nil {
		if err := i.live.take(found, i.metadata); err != nil {
			return err
		}
	}
	i.maps.captures, i.maps.counts = found["unwound"], found["capture_counts"]
	if err := i.control.start(found["capture_settings"], i.step); err != nil {
		return err
	}
	if i.reader, err = ringbuf.NewReader(i.maps.captures); err != nil {
		return fmt.Errorf("reading the gadget's sampled events: %w", err)
	}
	i.names = i.op.names.Acquire(func() *names.Namer {
		return names.New(names.Options{HostRoot: os.Getenv("HOST_ROOT"), Tables: unwinder.TablesOf(gadgetCtx)})
	})
	i.arrived = map[uint64]arrival{}
	i.sums.stacks = found["ig_ustack"]
	err = i.stacks.Start(gadgetCtx)
	if err == nil {
		err = i.classifier.kinds.start(gadgetCtx)
	}
	if err != nil {
		i.op.names.Release((*names.Namer).Close)
		return errors.Join(err, i.reader.Close())
	}
	i.ready.Store(true)
	i.pace = newPace(i.step, i.control.setStep)
	i.stop, i.done = make(chan struct{}), make(chan struct{})
	go i.run(i.stop)
	return nil
}

// PreStop stops reading. Inspektor Gadget reads the gadget's maps for the last time between PreStop and Stop, so PreStop must
// add all captures.
func (i *instance) PreStop(operators.GadgetContext) error {
	i.end()
	return nil
}

func (i *instance) end() {
	if i.stop == nil {
		return
	}
	close(i.stop)
	i.stop = nil
	<-i.done
}

// Stop releases the run's resources.
func (i *instance) Stop(operators.GadgetContext) error {
	i.end()
	i.stacks.Stop()
	if i.done == nil {
		return nil
	}
	i.done, i.stopped = nil, true
	err := i.reader.Close()
	i.op.names.Release((*names.Namer).Close)
	return err
}

// PostStop logs the summary. All rows have been passed on by then.
func (i *instance) PostStop(operators.GadgetContext) error {
	if i.stopped {
		i.summarize()
	}
	return nil
}

// Close implements operators.DataOperatorInstance.
func (i *instance) Close(gadgetCtx operators.GadgetContext) error { return i.Stop(gadgetCtx) }

// run reads, classifies and adds up captures, until stop is closed.
func (i *instance) run(stop <-chan struct{}) {
	defer close(i.done)
	runtime.LockOSThread() // the kernel counts CPU time per thread
	defer runtime.UnlockOSThread()
	paced, cpu := time.Now(), patience.ThreadTime()
	for {
		select {
		case <-stop:
			i.finish()
			return
		default:
		}
		i.readUntil(time.Now().Add(tick))
		i.retry(stackPatience)
		if now := time.Now(); now.Sub(paced) >= paceInterval || i.pace.early(i.counts.read+i.counts.lost) {
			i.count()
			i.tellBlind()
			used := patience.ThreadTime()
			if err := i.pace.look(i.counts.read+i.counts.lost, now.Sub(paced), used-cpu); err != nil {
				i.warn(err)
			}
			paced, cpu = now, used
		}
	}
}

// readUntil reads captures until the given time, or after a Flush, until all captures before it were read.
func (i *instance) readUntil(until time.Time) {
	i.reader.SetDeadline(until)
	var rec ringbuf.Record
	for time.Now().Before(until) {
		switch err := i.reader.ReadInto(&rec); {
		case err == nil:
			i.counts.read++
			if w := (waiting{data: rec.RawSample}); !i.take(&w, false) {
				i.wait(w)
			}
		case errors.Is(err, ringbuf.ErrFlushed):
			return
		case !errors.Is(err, os.ErrDeadlineExceeded):
			i.warn(fmt.Errorf("reading the gadget's sampled events: %w", err))
			time.Sleep(time.Until(until))
		}
	}
}

// drain reads the captures that were written before the call, but not longer than until.
func (i *instance) drain(until time.Time) {
	if err := i.reader.Flush(); err != nil {
		i.warn(fmt.Errorf("reading the gadget's last sampled events: %w", err))
		return
	}
	i.readUntil(until)
}

// wait keeps a copy of a capture for later.
func (i *instance) wait(w waiting) {
	if len(i.waiting) >= mostWaiting {
		i.take(&i.waiting[0], true)
		i.waiting = i.waiting[1:]
	}
	w.data, w.since = append([]byte(nil), w.data[:headSize+i.layout.key+i.layout.value]...), time.Now()
	i.waiting = append(i.waiting, w)
}

// retry handles captures whose stack or names have arrived, or that have waited for the given time.
func (i *instance) retry(patience time.Duration) {
	now := time.Now()
	i.stacks.Read(i.arrive)
	kept := i.waiting[:0]
	for _, w := range i.waiting {
		if !i.take(&w, now.Sub(w.since) >= patience) {
			kept = append(kept, w)
		}
	}
	clear(i.waiting[len(kept):])
	i.waiting = kept
	for id, a := range i.arrived {
		if now.Sub(a.since) >= stackPatience {
			delete(i.arrived, id)
		}
	}
}

// arrive stores a stack until its capture takes it.
func (i *instance) arrive(u wire.Unwound) {
	if len(i.arrived) < mostWaiting {
		i.arrived[u.ID] = arrival{u.Stack, time.Now()}
	}
}

// take adds a capture to its row. It returns false if the capture must wait for its stack or names. If last is set, it never
// returns false.
func (i *instance) take(w *waiting, last bool) bool {
	r, err := i.layout.parse(w.data)
	if err != nil {
		i.counts.bad++
		i.warn(err)
		return true
	}
	unwound := r.stackID() > fellBack
	if unwound && w.whole == nil {
		a, ok := i.arrived[r.stackID()]
		switch {
		case ok:
			delete(i.arrived, r.stackID())
			w.whole = a.stack
		case !last:
			return false
		default:
			i.counts.late++
			i.counts.lateValue += order.Uint64(r.value[i.layout.sums[0]:])
		}
	}
	var st *stack
	if w.whole != nil {
		st = &stack{whole: w.whole}
	} else if !unwound {
		st = i.sums.byFramePointers(&r)
	}
	i.frames = i.frames[:0]
	if i.classifier.wantsNames(&r, &i.layout) && !i.name(&r, st) && !last {
		return false
	}
	switch i.classifier.classify(&r, &i.layout, i.frames) {
	case inner:
		i.counts.inner++
		return true
	case other:
		i.counts.other++
		return true
	}
	i.counts.added++
	switch {
	case st == nil:
		i.counts.none++
	case st.whole != nil:
		i.counts.whole++
	default:
		i.counts.byFramePointers++
	}
	i.files.put(&r)
	process := r.process()
	i.sums.complete(&r, w.whole)
	if i.live != nil {
		i.live.add(&r, process, st)
	} else {
		i.sums.add(&r, st)
	}
	return true
}

// name finds the functions of a stack's innermost frames. It returns false if some names are still being read.
func (i *instance) name(r *record, st *stack) bool {
	switch {
	case st == nil:
		return true
	case st.whole == nil:
		addresses := st.frames[:kindFrames]
		if end := slices.Index(addresses, 0); end >= 0 {
			addresses = addresses[:end]
		}
		var pending bool
		i.resolved, pending = i.names.Resolve(i.resolved[:0], r.process(), r.time(), addresses)
		for _, f := range i.resolved {
			at := frame{name: f.Symbol.Name}
			if f.File != nil {
				at.file = f.File
			}
			i.frames = append(i.frames, at)
		}
		clear(i.resolved)
		return !pending
	}
	known := true
	for _, f := range st.whole.Frames[:min(len(st.whole.Frames), kindFrames)] {
		name, pending := i.stacks.Symbol(f)
		at := frame{name: name}
		if f.Mapping != nil && f.Mapping.File != nil {
			at.file = f.Mapping.File
		}
		i.frames = append(i.frames, at)
		known = known && !pending
	}
	return known
}

// If the classification needs function names, tellBlind logs once why they are unknown. The rows might not show the problem.
func (i *instance) tellBlind() {
	if i.classifier.kinds == nil || i.blind {
		return
	}
	const why = "their waits cannot be classified by function; grant CAP_SYS_PTRACE, and either CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN"
	if err := i.names.Err(); err != nil {
		i.blind = true
		i.log.Warnf("%s: no access to the processes so far (%v): %s", Name, err, why)
	} else if read, _ := i.names.Stats(); read.Denied > 0 {
		i.blind = true
		i.log.Warnf("%s: no access to %d processes so far: %s", Name, read.Denied, why)
	}
}

// finish handles the remaining captures at the end of the run.
func (i *instance) finish() {
	i.control.finish()
	until := time.Now().Add(lastPatience)
	i.drain(until)
	i.stacks.Finish(i.unmatched, i.arrive)
	i.drain(until)
	for i.retry(stackPatience); len(i.waiting) > 0 && time.Now().Before(until); i.retry(stackPatience) {
		i.readUntil(time.Now().Add(tick))
	}
	i.retry(0)
	i.count()
	i.tellBlind()
	i.ended.Store(true)
}

// unmatched reports whether any capture is waiting for a stack.
func (i *instance) unmatched() bool {
	return slices.ContainsFunc(i.waiting, func(w waiting) bool {
		id := order.Uint64(w.data[atStack:])
		_, there := i.arrived[id]
		return id > fellBack && w.whole == nil && !there
	})
}

// fill adds rows to the packets of ds, which Inspektor Gadget creates when it reads the gadget's maps. While it passes on the
// rows, their stacks are available.
func (i *instance) fill(ds datasource.DataSource, rows func() ([]row, error)) error {
	err := unwinder.Fill(ds, i.layout.key, i.layout.value, func(add func(key, value []byte, put func(datasource.Data))) {
		if !i.ready.Load() {
			return
		}
		all, err := rows()
		if err != nil {
			i.warn(err)
		}
		for _, r := range all {
			add(r.key, r.value, nil)
			if r.stack != nil && r.stack.whole != nil {
				i.stacks.Show(r.stack.whole)
			}
		}
	}, func() { i.stacks.Hide() })
	if err != nil {
		return fmt.Errorf("operator %s: %w", Name, err)
	}
	return nil
}

// warn logs the first error of each kind.
func (i *instance) warn(err error) { i.warnings.Tell(err) }
