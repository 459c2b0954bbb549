package allocator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/operators/captures"
	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/warnings"
)

const (
	tick = 20 * time.Millisecond
	// containersInterval is the time between two checks for new containers.
	containersInterval = 500 * time.Millisecond
	// readFirst is how long attaching to running processes is delayed at the start. In this time, the unwinder reads their files.
	readFirst = 300 * time.Millisecond
)

// control starts and stops sampling: see captures.Control.
type control interface {
	Always() error
	Open(share float64) error
	Close(weight float64) error
	Know(pid uint32)
}

// instance holds the operator's state for one run.
type instance struct {
	log        logger.Logger
	maxCost    float64 // CPUs
	everywhere bool
	live       bool

	filter  filter
	loaded  loaded
	finder  *finder
	store   *symbols.Store // requests the reading of files
	release func()         // releases the store
	control control
	counts  *ebpf.Map
	known   *ebpf.Map // maps PIDs to entries
	pacer   *pacer
	costs   costs

	processes map[uint32]*process
	slots     [mostProcesses + 1]bool // slots in use; slot 0 counts all processes
	paced     usage                   // usage of the probes that are attached only for stretches
	measured  time.Time               // when the cost of each process was measured
	attached  bool                    // whether probes for stretches are attached now
	before    counts                  // counts when the probes were attached
	probes    int                     // number of attached probes
	most      int                     // the highest number of watched processes, for the summary
	denied    int                     // processes that could not be accessed
	probed    int                     // how often a process's file got probes
	refused   time.Time               // when there was no room for a process
	swept     time.Time               // last search for exited processes
	rest      time.Time               // no process is inspected before this time
	warnings  warnings.Teller

	reader    *ringbuf.Reader
	newcomers chan uint32
	missed    atomic.Bool        // processes were missed because the channel newcomers was full
	stop      context.CancelFunc // nil before Start and after PreStop
	done      sync.WaitGroup
	// warned records which one-time warnings were logged.
	warned struct{ processes, probes, shares bool }
}

// Name implements operators.DataOperatorInstance.
func (*instance) Name() string { return Name }

// PreStart implements operators.PreStart.
func (i *instance) PreStart(gadgetCtx operators.GadgetContext) error {
	if !procfs.SharesPIDs() { // the PIDs would refer to other processes
		return fmt.Errorf("operator %s needs %s", Name, procfs.NeedPIDs)
	}
	i.live = tune.On(gadgetCtx, "live")
	var err error
	if i.filter, err = newFilter(gadgetCtx); err != nil {
		return err
	}
	if i.everywhere {
		return nil
	}
	return i.filter.check()
}

// Start attaches to the existing processes, and then to new ones. If that fails, Start ends the run instead of returning an
// error. After an error, Inspektor Gadget would wait forever for its own map readers.
func (i *instance) Start(gadgetCtx operators.GadgetContext) error {
	if err := i.begin(gadgetCtx); err != nil {
		tune.End(gadgetCtx, Name, err)
	}
	return nil
}

func (i *instance) begin(gadgetCtx operators.GadgetContext) error {
	found, err := tune.Maps(gadgetCtx, Name, "allocator_programs", "newcomers", "allocator_counts", "allocator_processes")
	if err != nil {
		return err
	}
	v, _ := gadgetCtx.GetVar(captures.ControlVar)
	if i.control, _ = v.(control); i.control == nil {
		return fmt.Errorf("operator %s: the gadget must also use the operator %s", Name, captures.Name)
	}
	i.counts, i.known = found["allocator_counts"], found["allocator_processes"]
	if i.counts.MaxEntries() < uint32(len(i.slots)) {
		return fmt.Errorf("operator %s: the gadget's map allocator_counts has %d entries, but needs %d: rebuild the gadget's image with this version of ig-otel-profiles", Name, i.counts.MaxEntries(), len(i.slots))
	}
	if i.loaded, err = load(found["allocator_programs"]); err != nil {
		return err
	}
	if i.reader, err = ringbuf.NewReader(found["newcomers"]); err != nil {
		i.loaded.close()
		return fmt.Errorf("reading the PIDs of new processes from the gadget: %w", err)
	}
	tables := unwinder.TablesOf(gadgetCtx)
	i.store, i.release = tables.Acquire(), tables.Release
	if i.costs, err = i.loaded.costs(i.store); err != nil {
		i.log.Warnf("%s: the cost of a probe cannot be measured, so %v to %v are assumed: %v", Name, i.costs.emulated, i.costs.stepped, err)
	}
	i.log.Infof("%s: a probe makes a call %v to %v slower on this machine", Name, i.costs.emulated, i.costs.stepped)
	i.pacer = &pacer{budget: i.maxCost, each: i.costs.emulated}
	var ctx context.Context
	ctx, i.stop = context.WithCancel(context.Background())
	i.finder = newFinder(ctx, i.store, i.used, i.warn)
	i.processes = map[uint32]*process{}
	i.attached = true
	i.newcomers = make(chan uint32, 1024)
	i.done.Add(2)
	go i.read()
	go i.run(func(err error) { tune.End(gadgetCtx, Name, err) }, ctx.Done())
	return nil
}

// PreStop removes all probes. The operator captures then reads the last captures.
func (i *instance) PreStop(gadgetCtx operators.GadgetContext) error { return i.Stop(gadgetCtx) }

// Stop removes all probes. Inspektor Gadget does not call PreStop for runs that failed to start.
func (i *instance) Stop(operators.GadgetContext) error {
	if i.stop == nil {
		return nil
	}
	i.stop()
	i.stop = nil
	_ = i.reader.Close()
	i.done.Wait()
	i.detach(true)
	i.finder.close()
	i.release()
	i.loaded.close()
	if n := i.warnings.Suppressed(); n > 0 {
		i.log.Warnf("%s: %d similar errors were not logged", Name, n)
	}
	switch {
	case i.probed == 0 && i.denied > 0:
		i.log.Warnf("%s: nothing was recorded, because access to %d processes was denied: grant CAP_SYS_PTRACE, and either CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN", Name, i.denied)
	case i.most == 0:
		i.log.Warnf("%s: nothing was recorded: there was no %s", Name, i.filter.about())
	case i.probed == 0:
		i.log.Warnf("%s: nothing was recorded: none of the selected processes (up to %d at a time) has mapped a file with the function malloc. Go programs do not use it, and in static, stripped programs it cannot be found: see the gadget's README", Name, i.most)
	default:
		i.log.Infof("%s: watched up to %d processes at a time; %s", Name, i.most, i.pacer.String())
	}
	return nil
}

// Close implements operators.DataOperatorInstance.
func (i *instance) Close(gadgetCtx operators.GadgetContext) error { return i.Stop(gadgetCtx) }

// read passes on the PIDs of new processes from the gadget's ring buffer.
func (i *instance) read() {
	defer i.done.Done()
	var rec ringbuf.Record
	for {
		if err := i.reader.ReadInto(&rec); err != nil {
			if !errors.Is(err, ringbuf.ErrClosed) {
				i.warn(fmt.Errorf("reading the PIDs of new processes from the gadget: %w", err))
			}
			return
		}
		if len(rec.RawSample) >= 4 {
			i.handOn(binary.LittleEndian.Uint32(rec.RawSample))
		}
	}
}

func (i *instance) handOn(pid uint32) {
	select {
	case i.newcomers <- pid:
	default: // with so many new processes, most exit before they are inspected
		i.missed.Store(true)
	}
}

// lookForMissed adds processes for which there was no room when they started. If the filter selects a name, it also adds
// processes with newly named threads.
func (i *instance) lookForMissed(now time.Time) {
	if i.missed.Swap(false) && i.refused.IsZero() {
		i.refused = now
	}
	if !i.refused.IsZero() && now.Sub(i.refused) >= lookInterval && len(i.processes) < mostProcesses {
		i.addRunning()
	}
}

// run inspects processes and limits the probes' cost until stop is closed. end ends the gadget's run.
func (i *instance) run(end func(error), stop <-chan struct{}) {
	defer i.done.Done()
	i.filter.grown()
	i.addRunning()
	if len(i.processes) == 0 {
		i.tellNone()
	} else {
		patience.Within(stop, readFirst) // stacks of running processes are cut until the unwinder has read their files
	}
	i.look()
	i.before = i.count()
	i.pacer.begin(time.Now(), i.before.usage())
	ticker, containers := time.NewTicker(tick), time.NewTicker(containersInterval)
	defer ticker.Stop()
	defer containers.Stop()
	for {
		select {
		case <-stop:
			i.lastStretch()
			return
		case pid := <-i.newcomers:
			if p := i.processes[pid]; p != nil {
				p.rescan(time.Now())
			} else {
				i.add(pid)
			}
		case <-containers.C:
			// Inspektor Gadget can detect a container after its program has started. Until then, the gadget's programs ignore
			// the container's processes.
			if i.filter.grown() {
				i.addRunning()
			}
		case <-ticker.C:
			i.lookForMissed(time.Now())
			i.look()
			if err := i.step(time.Now()); err != nil {
				end(err)
				i.detach(true) // immediately, because ending the run can be slow
				<-stop
				return
			}
		}
	}
}

// tellNone logs at the start that there is no process to watch. For containers this is normal, because most nodes of a cluster
// run none of the selected containers.
func (i *instance) tellNone() {
	tell := i.log.Warnf
	if i.filter.namespaces != nil {
		tell = i.log.Infof
	}
	tell("%s: waiting for a %s to start", Name, i.filter.about())
}

// step carries out the pacer's next move. It returns an error if the run must end.
func (i *instance) step(now time.Time) error {
	i.watchAlways(now)
	used := i.usage()
	switch i.pacer.next(now, used, i.live) {
	case tooDear:
		return fmt.Errorf("the probes cost %s, which exceeds --%s=%.0f (percent of a CPU). With --live, the probes cannot be removed for some of the time: choose fewer processes, or omit --live",
			i.pacer.now(), ParamMaxCost, 100*i.maxCost)
	case pause:
		if i.pacer.plan.period == 0 {
			i.divide(now)
		} else {
			i.closeStretch(now)
			i.settled(now, i.pacer.since)
			uncounted := i.detach(false)
			i.pacer.detached(used, i.collect(), uncounted)
		}
		i.pacer.say(i.log)
	case resume:
		i.openStretch()
	case always:
		i.closeStretch(now)
		for _, p := range i.processes {
			p.skip = false
			i.pace(p, false)
		}
		i.attachAll()
		i.pacer.budget = i.maxCost
		i.before = i.count()
		i.pacer.begin(now, i.before.usage())
		if err := i.control.Always(); err != nil {
			i.warn(err)
		}
		i.log.Infof("%s: the probes now cost only %s, so they are attached all the time again", Name, i.pacer.now())
	case stay:
	}
	return nil
}

// openStretch attaches the probes for a stretch.
func (i *instance) openStretch() {
	i.before = i.count()
	for _, p := range i.processes {
		p.began = i.usedAt(p.slot)
	}
	before := i.collect()
	i.attachAll()
	i.pacer.opened(time.Now(), before, i.collect())
	if err := i.control.Open(i.pacer.share()); err != nil {
		i.warn(err)
	}
}

// lastStretch ends the open stretch at the end of a run. If no stretch is open, it can add a short stretch, which represents
// the time since the previous stretch.
func (i *instance) lastStretch() {
	if i.pacer.left(time.Now()) {
		i.openStretch()
		time.Sleep(shortest)
	}
	if i.pacer.open() {
		i.closeStretch(time.Now())
	}
}

// closeStretch ends the current stretch or permanent sampling.
func (i *instance) closeStretch(now time.Time) {
	if err := i.control.Close(i.pacer.close(now)); err != nil {
		i.warn(err)
	}
}

// divide switches the most expensive processes from permanent probes to stretches.
func (i *instance) divide(now time.Time) {
	if now.Sub(i.measured) >= shortest {
		i.measure(now)
	}
	chosen := i.split()
	if len(chosen) == 0 { // the expensive process has no slot, or has exited
		for _, p := range i.processes {
			i.pace(p, true)
		}
	}
	i.tellShares(chosen)
	i.pacer.cost = 0 // from now on, this is only the cost of processes with stretches
	for _, p := range i.processes {
		if p.paced {
			i.pacer.cost += p.cost
		}
	}
	i.closeStretch(now)
	before := i.collect()
	uncounted := i.detach(false)
	i.pacer.detached(before, i.collect(), uncounted)
}

// count returns the current totals that the gadget's programs have counted.
func (i *instance) count() counts { return i.countAt(0) }

func (i *instance) countAt(slot uint32) (n counts) {
	var perCPU []counts
	if err := i.counts.Lookup(slot, &perCPU); err != nil {
		i.warn(fmt.Errorf("reading the counters of the gadget's probes: %w", err))
	}
	for _, c := range perCPU {
		n.Drawn += c.Drawn
		for p, calls := range c.Calls {
			n.Calls[p] += calls
		}
	}
	return n
}

// warn logs the first error of each kind.
func (i *instance) warn(err error) { i.warnings.Tell(err) }
