package captures

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/walk"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/warnings"
)

const (
	// tick is how often the reader does something else than reading.
	tick = 50 * time.Millisecond
	// paceInterval is how often the step is looked at, where there is not too much before that.
	paceInterval = time.Second
	// walkPatience is how long a capture waits for the files of its process to be read. At the end of a run it is lastPatience.
	walkPatience = 3 * time.Second
	lastPatience = 2 * time.Second
	// mostWaiting is how many captures wait for that at a time, each with up to 20 KiB. The oldest goes with what is known.
	mostWaiting = 1024
)

// instance is the operator's part of one run.
type instance struct {
	op       *operator
	log      logger.Logger
	metadata *viper.Viper
	control  *Control
	step     uint64 // the gadget's own, 0 if it is not known

	layout layout
	maps   struct{ captures, counts *ebpf.Map }
	reader *ringbuf.Reader
	code   *code
	walker walk.Walker
	judge  judge
	files  *sharedFiles // nil: the gadget has no use for them
	sums   *sums
	live   *live // nil: the run shows what was allocated, and not what is in use
	pace   pace
	// ready is set while the gadget's maps are there, and ended when nothing will be added any more.
	ready, ended atomic.Bool

	stack    walk.Stack
	waiting  []waiting
	counts   counts
	warnings warnings.Teller
	full     string        // what the user can do where something finds no room in the gadget's maps
	told     bool          // that something did
	blind    bool          // functions that decide are not known, which was told
	stop     chan struct{} // nil before Start and after PreStop
	done     chan struct{} // nil before Start and after Stop
	stopped  bool
}

// waiting is a capture whose files are being read.
type waiting struct {
	data  []byte
	since time.Time
}

// Name implements operators.DataOperatorInstance.
func (*instance) Name() string { return Name }

// PreStart implements operators.PreStart.
func (i *instance) PreStart(gadgetCtx operators.GadgetContext) error {
	if err := i.setPeriod(gadgetCtx); err != nil {
		return err
	}
	spec, _ := gadgetCtx.GetVar(operators.MapSpecPrefix + "rows")
	rows, ok := spec.(*ebpf.MapSpec)
	if !ok {
		return fmt.Errorf("operator %s: the gadget has no map %q", Name, "rows")
	}
	var err error
	if i.judge, err = newJudge(gadgetCtx, i.metadata); err != nil {
		return fmt.Errorf("operator %s: reading the gadget's metadata: %w", Name, err)
	}
	if i.layout, err = layoutOf(rows, i.metadata.GetStringSlice("sums"), i.judge.field()); err != nil {
		return fmt.Errorf("operator %s: reading the types of the gadget's rows: %w", Name, err)
	}
	if i.files, err = newSharedFiles(i.metadata.Sub("shared"), rows, os.Getenv("HOST_ROOT")); err != nil {
		return fmt.Errorf("operator %s: reading the gadget's metadata: %w", Name, err)
	}
	i.sums = newSums(i.layout)
	source, rowsOf := i.metadata.GetString("source"), i.rows
	if param := i.metadata.GetString("live.param"); param != "" {
		if on, _ := tune.Value(gadgetCtx, param); on == "true" {
			i.live = newLive(i.sums, i.ended.Load)
			if room := i.metadata.GetString("live.map") + "_max_entries"; tune.Key(gadgetCtx, room) != room {
				i.full = fmt.Sprintf(": choose fewer processes, a larger --%s", tune.Key(gadgetCtx, room))
				if i.step > 0 {
					i.full += fmt.Sprintf(", or a larger --%s", tune.Key(gadgetCtx, i.metadata.GetString("step")))
				}
			}
			source, rowsOf = i.metadata.GetString("live.source"), i.inUse
		}
	}
	ds := gadgetCtx.GetDataSources()[source]
	if ds == nil {
		return fmt.Errorf("operator %s: the gadget has no data source %q", Name, source)
	}
	return fill(ds, &i.layout, rowsOf)
}

// Start begins to read. The gadget's programs have been loaded by then. Where it cannot, it ends the run: after an error Inspektor
// Gadget would wait for its own readers of maps, which nobody has told to end.
func (i *instance) Start(gadgetCtx operators.GadgetContext) error {
	if err := i.begin(gadgetCtx); err != nil {
		i.log.Errorf("%s: the run ends: %v", Name, err)
		gadgetCtx.Cancel()
	}
	return nil
}

func (i *instance) begin(gadgetCtx operators.GadgetContext) error {
	found := map[string]*ebpf.Map{}
	names := []string{"captures", "capture_settings", "capture_counts", "ig_ustack"}
	if i.live != nil {
		names = append(names, i.metadata.GetString("live.map"))
		if execs := i.metadata.GetString("live.execs"); execs != "" {
			names = append(names, execs)
		}
	}
	for _, name := range names {
		v, _ := gadgetCtx.GetVar(operators.MapPrefix + name)
		m, ok := v.(*ebpf.Map)
		if !ok || m == nil {
			return fmt.Errorf("operator %s: the gadget has no map %q", Name, name)
		}
		found[name] = m
	}
	if i.live != nil {
		if err := i.live.take(found, i.metadata); err != nil {
			return err
		}
	}
	i.maps.captures, i.maps.counts = found["captures"], found["capture_counts"]
	if err := i.control.start(found["capture_settings"], i.step); err != nil {
		return err
	}
	var err error
	if i.reader, err = ringbuf.NewReader(i.maps.captures); err != nil {
		return fmt.Errorf("reading captures: %w", err)
	}
	i.code = i.op.shared.acquire(gadgetCtx)
	i.walker = walk.Walker{Names: i.code.names, Rules: i.code.rules}
	i.sums.stacks = found["ig_ustack"]
	if err := i.judge.kinds.start(gadgetCtx); err != nil {
		i.op.shared.release()
		return errors.Join(err, i.reader.Close())
	}
	i.ready.Store(true)
	i.pace = newPace(i.step, i.control.setStep)
	i.stop, i.done = make(chan struct{}), make(chan struct{})
	go i.run(i.stop)
	return nil
}

// PreStop ends the reading. Between this and Stop Inspektor Gadget reads the gadget's maps for the last time: what has been captured
// has to be there.
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

// Stop gives back what the run has used.
func (i *instance) Stop(operators.GadgetContext) error {
	i.end()
	if i.done == nil {
		return nil
	}
	i.done, i.stopped = nil, true
	err := i.reader.Close()
	i.op.shared.release()
	return err
}

// PostStop writes the closing lines. All rows have been handed on by now.
func (i *instance) PostStop(operators.GadgetContext) error {
	if i.stopped {
		i.summarize()
	}
	return nil
}

// Close implements operators.DataOperatorInstance.
func (i *instance) Close(gadgetCtx operators.GadgetContext) error { return i.Stop(gadgetCtx) }

// run reads, walks and puts, until stop is closed.
func (i *instance) run(stop <-chan struct{}) {
	defer close(i.done)
	runtime.LockOSThread() // the kernel counts CPU time by thread
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
		i.retry(walkPatience)
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

// readUntil reads captures until a time.
func (i *instance) readUntil(until time.Time) {
	i.reader.SetDeadline(until)
	var rec ringbuf.Record
	for time.Now().Before(until) {
		if err := i.reader.ReadInto(&rec); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				i.warn(fmt.Errorf("reading captures: %w", err))
				time.Sleep(time.Until(until))
			}
			return
		}
		i.counts.read++
		if !i.take(rec.RawSample, false) {
			i.wait(rec.RawSample)
		}
	}
}

// wait keeps a capture for later.
func (i *instance) wait(data []byte) {
	if len(i.waiting) >= mostWaiting {
		i.take(i.waiting[0].data, true)
		i.waiting = i.waiting[1:]
	}
	used := min(len(data), headSize+i.layout.key+i.layout.value+int(order.Uint32(data[atCopied:])))
	i.waiting = append(i.waiting, waiting{append([]byte(nil), data[:used]...), time.Now()})
}

// retry takes the captures whose files have been read by now, and those that have waited for as long as that.
func (i *instance) retry(patience time.Duration) {
	kept := i.waiting[:0]
	for _, w := range i.waiting {
		if !i.take(w.data, time.Since(w.since) >= patience) {
			kept = append(kept, w)
		}
	}
	clear(i.waiting[len(kept):])
	i.waiting = kept
}

// take walks a capture and adds it to its row. It returns false where more will be known in some moments, but not if it is the last
// time.
func (i *instance) take(data []byte, last bool) bool {
	r, err := i.layout.parse(data)
	if err != nil {
		i.counts.bad++
		i.warn(err)
		return true
	}
	regs, stack, ok := r.thread()
	if ok {
		files, named := i.walker.Walk(&i.stack, r.process(), r.time(), regs, stack)
		if !last && (!files || !named && i.judge.wantsNames(&r, &i.layout)) {
			return false
		}
		i.counts.ends[i.stack.End]++
	} else {
		i.stack.Addresses, i.stack.Frames = i.stack.Addresses[:0], i.stack.Frames[:0]
	}
	switch i.judge.judge(&r, &i.layout, i.stack.Frames) {
	case inner:
		i.counts.inner++
		return true
	case other:
		i.counts.other++
		return true
	}
	i.counts.added++
	i.files.put(&r)
	st := i.sums.complete(&r, &i.stack)
	if i.live != nil {
		i.live.add(&r, st)
	} else {
		i.sums.add(&r, st)
	}
	return true
}

// finish takes what is left at the end.
func (i *instance) finish() {
	i.control.finish()
	until := time.Now().Add(lastPatience)
	i.readUntil(time.Now().Add(tick))
	for i.retry(walkPatience); len(i.waiting) > 0 && time.Now().Before(until); i.retry(walkPatience) {
		i.readUntil(time.Now().Add(tick))
	}
	i.retry(0)
	i.count()
	i.tellBlind()
	i.ended.Store(true)
}

// rows are those for the next packet of the gadget's sums, called where Inspektor Gadget reads its maps.
func (i *instance) rows() []row {
	if !i.ready.Load() {
		return nil
	}
	rows, err := i.sums.rows(i.control.weight)
	if err != nil {
		i.warn(fmt.Errorf("keeping stacks: %w", err))
	}
	return rows
}

// inUse are those of the packets that say what is in use.
func (i *instance) inUse() []row {
	if !i.ready.Load() {
		return nil
	}
	rows, err := i.live.snapshot()
	if err != nil {
		i.warn(fmt.Errorf("reading what is in use: %w", err))
	}
	return rows
}

// warn tells of the first error of each kind.
func (i *instance) warn(err error) { i.warnings.Tell(err) }
