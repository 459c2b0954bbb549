package unwinder

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// UnwindName names the operator that provides whole stacks for a gadget's events, and its section in the metadata:
//
//	operator:
//	  unwind:
//	    source: offcpu                # the data source of the map rows
//	    sums: [off_cpu_raw, switches] # members of a row's value to add up, first the one by which events are sampled
//	    unit: nanoseconds             # unit of the first sum
//	    step: 100000                  # the step of sampling, in that unit
//	    budget: 100                   # the most stacks per CPU and second
//	    needs: sched_exit             # the parameter whose tracepoints or kprobes must exist, because their programs call the unwinder
//	    unless: single_events         # the parameter that turns off adding up
//	    above: [asm_exc_page_fault]   # kernel functions: stacks lose their frames up to the first of these
//
// The gadget's programs use gadgets/include/unwind.h.
const UnwindName = "unwind"

// ParamUnwind selects how stacks are collected.
const ParamUnwind = "unwind"

const (
	unwindAuto          = "auto"
	unwindWhole         = "whole"
	unwindFramePointers = "frame-pointers"
)

const (
	// slotsVar is the variable that holds the map of slots. Inspektor Gadget uses this name for maps that it replaces.
	slotsVar = "otel_generic_params"
	// sweepInterval is the time between two sweeps. A sweep passes on expired rows and reads the programs' counts.
	sweepInterval = time.Second
	// rowsInterval is the time between two reads of the gadget's rows. The gadget wakes the reader earlier only if the buffer
	// fills up.
	rowsInterval = 250 * time.Millisecond
	// namesPatience is how long a row waits for the names in its stack. Rows that are passed on without names never get them.
	namesPatience = 2 * time.Second
	// lastStacks is how long a run waits at its end for the stacks of its last rows, if other runs still use the unwinder.
	lastStacks = 1500 * time.Millisecond
	// textPriority makes the text formatter run after Inspektor Gadget's formatters (0) and before all consumers of text.
	textPriority = 60
)

type unwindOperator struct{ *operator }

// Name implements operators.DataOperator.
func (unwindOperator) Name() string { return UnwindName }

// InstanceParams implements operators.DataOperator. Inspektor Gadget shows the parameters only for gadgets whose metadata
// contains the section.
func (unwindOperator) InstanceParams() api.Params {
	return append(api.Params{UnwindParam()}, unwindParams()...)
}

// InstantiateDataOperator implements operators.DataOperator. It returns nil on a client, and for gadgets whose metadata lacks the
// section.
func (o unwindOperator) InstantiateDataOperator(gadgetCtx operators.GadgetContext, values api.ParamValues) (operators.DataOperatorInstance, error) {
	v := tune.Metadata(gadgetCtx)
	if gadgetCtx.IsClient() || v == nil || v.GetString("operator."+UnwindName+".source") == "" {
		return nil, nil
	}
	i := &unwindInstance{metadata: v.Sub("operator." + UnwindName)}
	// Timer samples have tracing functions at the leaf only if they interrupted the tracing itself.
	var err error
	if i.Stacks, err = newStacks(o.operator, gadgetCtx, values[ParamUnwind], i.metadata.GetString("unit"), newRows(fieldmap.IsSampler(v))); err != nil {
		return nil, err
	}
	if i.asked, err = readAsked(values); err != nil {
		return nil, err
	}
	i.nameless = !i.asked.native
	if ds := gadgetCtx.GetDataSources()[i.metadata.GetString("source")]; ds != nil && i.how != unwindFramePointers {
		if err := i.asked.register(ds); err != nil {
			return nil, fmt.Errorf("adding a field to the data source %q: %w", ds.Name(), err)
		}
	}
	gadgetCtx.SetVar(stacksVar, i)
	return i, nil
}

// unwindInstance is the operator's state for one run.
type unwindInstance struct {
	*Stacks
	metadata *viper.Viper
	asked    asked
	above    []string // kernel functions, see UnwindName
	unwound  *ringbuf.Reader

	mu     sync.Mutex // guards joiner, which run fills and the reader of the gadget's maps empties
	joiner *joiner
	last   bool // the next packet is the last one

	elsewhere struct{ events, value atomic.Uint64 } // rows of exited processes that name a later container

	before unwinder.Totals // totals at the start of the run
	most   unwinder.Totals // the highest memory so far
	stop   chan struct{}   // nil before Start and after Stop
	done   chan struct{}   // nil before Start and after PreStop
}

// Name implements operators.DataOperatorInstance.
func (*unwindInstance) Name() string { return UnwindName }

// PreStart starts the unwinder, and sets the gadget's variables.
func (i *unwindInstance) PreStart(gadgetCtx operators.GadgetContext) error {
	return i.choose(gadgetCtx, func() error { return i.prepare(gadgetCtx) })
}

func (i *unwindInstance) prepare(gadgetCtx operators.GadgetContext) error {
	if param := i.metadata.GetString("unless"); param != "" {
		if v, _ := tune.Value(gadgetCtx, param); v == "true" {
			return fmt.Errorf("%w, with --%s", errUnasked, tune.Key(gadgetCtx, param))
		}
	}
	i.above = i.metadata.GetStringSlice("above")
	where := ""
	if param := i.metadata.GetString("needs"); param != "" {
		events, err := tune.Found(gadgetCtx, param, tune.ThisMachine())
		if err != nil {
			return fmt.Errorf("the gadget cannot collect the stack of a waiting thread: %w", err)
		}
		where = ", collected at " + events.String()
		i.only = wire.ChainRawTracepoint.String()
		if events.Kprobes {
			i.only = wire.ChainKprobe.String()
		}
	}
	kernel, _ := tune.Value(gadgetCtx, "kernel_stacks")
	i.rows.userOnly = kernel == "false"
	spec := tune.MapSpec(gadgetCtx, "rows")
	if spec == nil {
		return errors.New("the gadget has no map \"rows\"")
	}
	layout, err := rowLayoutOf(spec, i.metadata.GetStringSlice("sums"))
	if err != nil {
		return fmt.Errorf("reading the types of the gadget's rows: %w", err)
	}
	ds := gadgetCtx.GetDataSources()[i.metadata.GetString("source")]
	if ds == nil {
		return fmt.Errorf("the gadget has no data source %q", i.metadata.GetString("source"))
	}
	if err := i.subscribe(gadgetCtx, ds, i.asked.settings); err != nil {
		return err
	}
	i.joiner = newJoiner(layout)
	i.joiner.said = i.asked.sayings
	if err := i.fill(ds); err != nil {
		return err
	}
	i.rows.containers.wrong = func(value uint64) { i.elsewhere.events.Add(1); i.elsewhere.value.Add(value) }
	if err := i.rows.containers.subscribe(ds, i.metadata.GetStringSlice("sums")[0]); err != nil {
		return fmt.Errorf("subscribing to the data source %q: %w", ds.Name(), err)
	}
	return i.call(gadgetCtx, i.metadata.GetUint32("step"), i.metadata.GetUint32("budget"), where)
}

// Start makes the gadget's programs, which are already loaded, call the unwinder. If that fails, Start ends the run instead of
// returning an error. After an error, Inspektor Gadget would wait forever for its own map readers.
func (i *unwindInstance) Start(gadgetCtx operators.GadgetContext) error {
	if i.sub == nil {
		return nil
	}
	if err := i.begin(gadgetCtx); err != nil {
		leave(&i.sub)
		tune.End(gadgetCtx, UnwindName, err)
	}
	return nil
}

func (i *unwindInstance) begin(gadgetCtx operators.GadgetContext) error {
	buffer := tune.Map(gadgetCtx, "unwound")
	if buffer == nil {
		return errors.New("the gadget has no map \"unwound\": rebuild the gadget's image")
	}
	var err error
	if i.unwound, err = ringbuf.NewReader(buffer); err != nil {
		return fmt.Errorf("reading the gadget's rows: %w", err)
	}
	if err := i.Stacks.Start(gadgetCtx); err != nil {
		return errors.Join(err, i.unwound.Close())
	}
	i.before = i.op.broker.Totals()
	i.stop, i.done = make(chan struct{}), make(chan struct{})
	go i.run()
	return nil
}

// readRows reads the gadget's rows until the reader is closed. After each Flush, it sends to drained once it has read all rows
// written before the Flush.
func (i *unwindInstance) readRows(drained chan<- struct{}) {
	defer close(drained)
	var record ringbuf.Record
	for {
		err := i.unwound.ReadInto(&record)
		switch {
		case err == nil:
			i.mu.Lock()
			i.joiner.row(record.RawSample, time.Now())
			i.mu.Unlock()
		case errors.Is(err, os.ErrDeadlineExceeded):
			i.unwound.SetDeadline(time.Now().Add(rowsInterval))
		case errors.Is(err, ringbuf.ErrFlushed):
			drained <- struct{}{}
		case errors.Is(err, os.ErrClosed):
			return
		default:
			i.log.Warnf("%s: reading the gadget's rows: %v", UnwindName, err)
			return
		}
	}
}

// run reads rows and stacks until stop is closed. It then reads the remaining ones.
func (i *unwindInstance) run() {
	defer close(i.done)
	drained := make(chan struct{})
	i.unwound.SetDeadline(time.Now().Add(rowsInterval))
	go i.readRows(drained) // ends when the reader is closed below
	drain := func() {
		if err := i.unwound.Flush(); err == nil {
			<-drained
		}
	}
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	check := time.After(checkAfter)
	for stopped := false; !stopped; {
		select {
		case b := <-i.sub.C:
			i.take(b, i.stack)
		case <-sweep.C:
			i.Read(i.stack) // on a busy machine, stacks may have arrived that this goroutine has not read yet
			i.sweep(joinPatience)
		case <-check:
			now := i.op.broker.Totals()
			for _, l := range unseen(i.before.Stats, now.Stats, i.asked.settings) {
				i.log.Warnf("%s: %s (%s)", UnwindName, l, reasons(i.before, now))
			}
		case <-i.stop:
			stopped = true
		}
	}
	drain()
	i.Finish(func() bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		return len(i.joiner.rows) > 0
	}, i.stack)
	drain() // the last rows
	_ = i.unwound.Close()
	<-drained
	i.mu.Lock()
	i.last = true
	i.mu.Unlock()
	i.sweep(0)
}

func (i *unwindInstance) stack(u wire.Unwound) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.joiner.stack(u, time.Now())
}

// sweep passes on rows that have waited too long for their stacks, and updates the counters.
func (i *unwindInstance) sweep(patience time.Duration) {
	i.mu.Lock()
	i.joiner.expire(time.Now().Add(-patience))
	i.counted.joinCounts, i.counted.unlinked = i.joiner.counts, i.joiner.said.unlinked
	i.mu.Unlock()
	i.counted.elsewhere = unwindCount{i.elsewhere.events.Load(), i.elsewhere.value.Load()}
	i.count()
	now := i.op.broker.Totals()
	i.most.Memory, i.most.KernelMemory = max(i.most.Memory, now.Memory), max(i.most.KernelMemory, now.KernelMemory)
}

// fill adds the joined rows to the packets of ds.
func (i *unwindInstance) fill(ds datasource.DataSource) error {
	return Fill(ds, i.joiner.layout.key, i.joiner.layout.value, func(add func(key, value []byte, put func(datasource.Data))) {
		for _, r := range i.ready() {
			add(r.key, r.value, func(d datasource.Data) { i.joiner.said.put(d, r.said) })
		}
	}, i.Hide)
}

// ready returns the rows for the next packet, and makes their stacks available until the packet is passed on.
func (i *unwindInstance) ready() []*joined {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	rows := i.joiner.take(func(r *joined) bool {
		return !i.last && r.stack != nil && now.Sub(r.since) < namesPatience && i.rows.unnamed(r.stack, r.proc)
	})
	starts := make(map[uint32]uint64, len(rows))
	for _, r := range rows {
		if r.stack == nil {
			continue
		}
		i.rows.stacks[r.stack.ID] = cutAbove(r.stack, i.above)
		if known, ok := starts[r.proc.PID]; !ok || r.proc.Start < known {
			starts[r.proc.PID] = r.proc.Start
		}
	}
	i.rows.containers.begin(starts)
	return rows
}

// cutAbove returns a stack without the leaf frames up to and including the first of these kernel functions.
func cutAbove(s *wire.Stack, functions []string) *wire.Stack {
	for at, f := range s.Frames[:kernelFrames(s.Frames)] {
		if slices.Contains(functions, f.Function) {
			cut := *s
			cut.Frames = s.Frames[at+1:]
			return &cut
		}
	}
	return s
}

// PreStop stops reading. Inspektor Gadget reads the gadget's maps for the last time between PreStop and Stop, so all rows must be
// ready by then.
func (i *unwindInstance) PreStop(operators.GadgetContext) error {
	if i.done == nil {
		return nil
	}
	close(i.stop)
	<-i.done
	i.done = nil
	return nil
}

// Stop releases the run's resources.
func (i *unwindInstance) Stop(gadgetCtx operators.GadgetContext) error {
	err := i.PreStop(gadgetCtx)
	i.Stacks.Stop()
	if i.stop == nil { // not started, or already stopped
		return err
	}
	i.stop = nil
	i.sweep(0) // the last rows were passed on
	now := i.op.broker.Totals()
	now.Memory, now.KernelMemory = i.most.Memory, i.most.KernelMemory
	i.log.Infof("%s: %s", UnwindName, i.Summary())
	i.log.Infof("%s: for all gadgets together, the unwinder collected %s", UnwindName, work(i.before, now))
	return err
}

// Close implements operators.DataOperatorInstance.
func (i *unwindInstance) Close(gadgetCtx operators.GadgetContext) error { return i.Stop(gadgetCtx) }
