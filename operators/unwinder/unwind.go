package unwinder

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/params"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// UnwindName is the name of the operator that gives a gadget's own events whole stacks, and its section in a gadget's metadata:
//
//	operator:
//	  unwind:
//	    source: offcpu                # the data source of the map rows
//	    sums: [off_cpu_raw, switches] # members of a row's value that add up, what is drawn by first
//	    unit: nanoseconds             # that of the first one
//	    step: 100000                  # the least that is drawn once
//	    budget: 100                   # stacks of each CPU in a second
//	    needs: sched_exit             # a parameter that has to find its tracepoints
//	    unless: single_events         # a parameter with which rows do not add up
//	    above: [asm_exc_page_fault]   # functions of the kernel: frames of the kernel begin behind the first of them that a stack has
//
// The gadget's programs use gadgets/include/unwind.h.
const UnwindName = "unwind"

// ParamUnwind says how stacks are taken.
const ParamUnwind = "unwind"

// The values of ParamUnwind.
const (
	unwindAuto          = "auto"
	unwindWhole         = "whole"
	unwindFramePointers = "frame-pointers"
)

const (
	// slotsVar is the variable with the map of slots: Inspektor Gadget has this one name for maps that it replaces.
	slotsVar = "otel_generic_params"
	// sweepInterval is how often it is looked what has waited for too long, and what the kernel counts.
	sweepInterval = time.Second
	// lastStacks is how long the end of a run waits for the stacks of its last rows, where the unwinder goes on for others.
	lastStacks = 1500 * time.Millisecond
	// textPriority is behind that of Inspektor Gadget's formatters, 0, and before all that reads text.
	textPriority = 60
)

type unwindOperator struct{ *operator }

// Name implements operators.DataOperator.
func (unwindOperator) Name() string { return UnwindName }

// Priority implements operators.DataOperator.
func (unwindOperator) Priority() int { return operatorPriority }

// Init implements operators.DataOperator.
func (unwindOperator) Init(*params.Params) error { return nil }

// GlobalParams implements operators.DataOperator: there are none.
func (unwindOperator) GlobalParams() api.Params { return nil }

// InstanceParams implements operators.DataOperator. Inspektor Gadget shows them for gadgets with the section only.
func (unwindOperator) InstanceParams() api.Params {
	return append(api.Params{{
		Key: ParamUnwind, DefaultValue: unwindAuto, PossibleValues: []string{unwindAuto, unwindWhole, unwindFramePointers},
		Description: "How stacks are taken: whole, in every language that the unwinder knows; frame-pointers, which costs less; auto, which takes them whole where this machine allows that",
	}}, unwindParams()...)
}

// InstantiateDataOperator implements operators.DataOperator. It returns nil for gadgets without the section, and on a client.
func (o unwindOperator) InstantiateDataOperator(gadgetCtx operators.GadgetContext, values api.ParamValues) (operators.DataOperatorInstance, error) {
	cfg, _ := gadgetCtx.GetVar("config")
	v, ok := cfg.(*viper.Viper)
	if gadgetCtx.IsClient() || !ok || v.GetString("operator."+UnwindName+".source") == "" {
		return nil, nil
	}
	i := &unwindInstance{op: o.operator, log: gadgetCtx.Logger(), metadata: v.Sub("operator." + UnwindName), how: values[ParamUnwind]}
	switch i.how {
	case "":
		i.how = unwindAuto
	case unwindAuto, unwindWhole, unwindFramePointers:
	default:
		return nil, fmt.Errorf("parameter %q: %q is none of %s, %s and %s", ParamUnwind, i.how, unwindAuto, unwindWhole, unwindFramePointers)
	}
	// A timer's stacks have nothing of the tracing on top, but can be of the tracing itself.
	i.rows = newRows(slices.ContainsFunc(v.AllKeys(), func(key string) bool {
		return strings.HasPrefix(key, "programs.") && strings.Contains(key, ".sampler.")
	}))
	var err error
	if i.asked, err = readAsked(values); err != nil {
		return nil, err
	}
	if ds := gadgetCtx.GetDataSources()[i.metadata.GetString("source")]; ds != nil && i.how != unwindFramePointers {
		if err := i.asked.register(ds); err != nil {
			return nil, fmt.Errorf("adding to the data source %q: %w", ds.Name(), err)
		}
	}
	gadgetCtx.SetVar(stacksVar, i)
	return i, nil
}

// unwindInstance is the operator's part of one run.
type unwindInstance struct {
	op       *operator
	log      logger.Logger
	metadata *viper.Viper
	how      string
	asked    asked
	events   string   // in what programs stacks are unwound, for the log
	above    []string // functions of the kernel, see UnwindName

	sub     *unwinder.Subscription // nil: stacks by frame pointers
	unwound *ringbuf.Reader
	results *ebpf.Map
	text    struct{ user, kernel, id datasource.FieldAccessor }
	rows    rows // of the packet that is being handed on: names, kernel and stacks

	mu     sync.Mutex // joiner is filled by one goroutine and emptied by that which reads the gadget's maps
	joiner *joiner

	way       string                                // unwindWhole or unwindFramePointers while the run is counted as that, else empty
	elsewhere struct{ events, value atomic.Uint64 } // rows of containers whose name cannot be told any more

	before   unwinder.Totals // at the start
	most     unwinder.Totals // the most memory that was seen
	counted  unwindTotals
	reported unwindTotals
	stop     chan struct{}
	done     chan struct{} // nil before Start and after PreStop
}

// Name implements operators.DataOperatorInstance.
func (*unwindInstance) Name() string { return UnwindName }

// PreStart starts the unwinder, and sets the gadget's variables.
func (i *unwindInstance) PreStart(gadgetCtx operators.GadgetContext) error {
	if i.how == unwindFramePointers {
		i.goes(unwindFramePointers)
		return nil
	}
	err := i.prepare(gadgetCtx)
	if err == nil {
		i.goes(unwindWhole)
		return nil
	}
	i.leave()
	if gadgetCtx.Context().Err() != nil {
		return nil // the run was ended meanwhile, which is no failure
	}
	if i.how == unwindWhole {
		return fmt.Errorf("--%s=%s: %w", ParamUnwind, unwindWhole, err)
	}
	i.goes(unwindFramePointers)
	say := i.log.Warnf
	if errors.Is(err, errUnasked) {
		say = i.log.Infof
	}
	say("%s: stacks are taken by frame pointers: %v", UnwindName, err)
	return nil
}

// goes has the run counted among those whose stacks are taken in a way, "" for none.
func (i *unwindInstance) goes(way string) {
	countRuns(i.way, -1)
	countRuns(way, 1)
	i.way = way
}

// errUnasked says that the run's other flags leave nothing to unwind.
var errUnasked = errors.New("no whole stacks are asked for")

func (i *unwindInstance) prepare(gadgetCtx operators.GadgetContext) error {
	if v, _ := tune.Value(gadgetCtx, "collect_ustack"); v == "false" {
		return fmt.Errorf("%w, with --%s=false", errUnasked, tune.Key(gadgetCtx, "collect_ustack"))
	}
	if param := i.metadata.GetString("unless"); param != "" {
		if v, _ := tune.Value(gadgetCtx, param); v == "true" {
			return fmt.Errorf("%w, with --%s", errUnasked, tune.Key(gadgetCtx, param))
		}
	}
	i.above = i.metadata.GetStringSlice("above")
	if param := i.metadata.GetString("needs"); param != "" {
		events := tune.Found(gadgetCtx, param, tune.ThisMachine())
		if len(events) == 0 {
			return fmt.Errorf("no event that this kernel has runs in the thread whose stack is wanted, or --%s is false", tune.Key(gadgetCtx, param))
		}
		i.events = ", taken at the tracepoint " + strings.Join(events, ", ")
	}
	kernel, _ := tune.Value(gadgetCtx, "kernel_stacks")
	i.rows.userOnly = kernel == "false"
	v, _ := gadgetCtx.GetVar(operators.MapSpecPrefix + "rows")
	spec, ok := v.(*ebpf.MapSpec)
	if !ok {
		return errors.New("the gadget has no map rows")
	}
	layout, err := rowLayoutOf(spec, i.metadata.GetStringSlice("sums"))
	if err != nil {
		return fmt.Errorf("reading the types of the gadget's rows: %w", err)
	}
	slots, err := i.op.broker.Slots()
	if err != nil {
		return err
	}
	var chains []string
	for kind := range wire.ChainKinds {
		if v, _ := gadgetCtx.GetVar(operators.MapSpecPrefix + arrayOf(kind)); v != nil {
			chains = append(chains, kind.String())
		}
	}
	if len(chains) == 0 {
		return errors.New("the gadget's programs call no chain: build its image with UNWIND_FROM_… as gadgets/include/unwind.h says")
	}
	i.asked.settings.Chains = strings.Join(chains, ",")
	if i.sub, err = i.op.broker.Subscribe(gadgetCtx.Context(), i.asked.settings); err != nil {
		return err
	}
	i.joiner = newJoiner(layout)
	i.joiner.said = i.asked.sayings
	ds := gadgetCtx.GetDataSources()[i.metadata.GetString("source")]
	if ds == nil {
		return fmt.Errorf("the gadget has no data source %q", i.metadata.GetString("source"))
	}
	i.text.user, i.text.kernel, i.text.id = ds.GetField("user_stack_raw.symbols"), ds.GetField("kern_stack"), ds.GetField("unwound_id")
	if i.text.id != nil && tune.ReadingOf(gadgetCtx).Anybody(ds.Name()) {
		if err := ds.Subscribe(i.format, textPriority); err != nil {
			return err
		}
	}
	if err := fill(ds, "user_stack_raw", layout, i.ready, i.joiner.said.put, func() { clear(i.rows.stacks) }); err != nil {
		return err
	}
	i.rows.containers.wrong = func(value uint64) { i.elsewhere.events.Add(1); i.elsewhere.value.Add(value) }
	if err := i.rows.containers.subscribe(ds, i.metadata.GetStringSlice("sums")[0]); err != nil {
		return fmt.Errorf("watching the rows of the data source %q: %w", ds.Name(), err)
	}
	// Nothing fails any more once the gadget has been told to draw.
	variables := map[string]uint32{
		"unwind_on": 1, "unwind_run": i.sub.Run(), "unwind_step": i.metadata.GetUint32("step"), "unwind_budget": i.metadata.GetUint32("budget"),
	}
	for name := range variables {
		if v, _ := gadgetCtx.GetVar(name); v != uint32(0) {
			return fmt.Errorf("the gadget has no variable %s: build its image again", name)
		}
	}
	for name, value := range variables {
		gadgetCtx.SetVar(name, value)
	}
	gadgetCtx.SetVar(slotsVar, slots)
	i.log.Infof("%s: stacks are whole%s", UnwindName, i.events)
	return nil
}

// leave gives up the unwinder.
func (i *unwindInstance) leave() {
	if i.sub != nil {
		i.sub.Close()
		i.sub = nil
	}
}

// Start has the gadget's programs call the unwinder. They were loaded by now. Where it cannot, it ends the run: after an error Inspektor
// Gadget would wait for its own readers of maps, which nobody has told to end.
func (i *unwindInstance) Start(gadgetCtx operators.GadgetContext) error {
	if i.sub == nil {
		return nil
	}
	if err := i.begin(gadgetCtx); err != nil {
		i.log.Errorf("%s: the run ends: %v", UnwindName, err)
		i.leave()
		gadgetCtx.Cancel()
	}
	return nil
}

func (i *unwindInstance) begin(gadgetCtx operators.GadgetContext) error {
	loaded := func(name string) *ebpf.Map {
		v, _ := gadgetCtx.GetVar(operators.MapPrefix + name)
		m, _ := v.(*ebpf.Map)
		return m
	}
	if i.results = loaded("unwind_counts"); i.results == nil {
		return errors.New("the gadget has no map unwind_counts")
	}
	buffer := loaded("unwound")
	if buffer == nil {
		return errors.New("the gadget has no map unwound")
	}
	var err error
	if i.unwound, err = ringbuf.NewReader(buffer); err != nil {
		return fmt.Errorf("reading the gadget's rows: %w", err)
	}
	for kind := range wire.ChainKinds {
		if array := loaded(arrayOf(kind)); array != nil {
			if err := i.sub.Serve(kind, array); err != nil {
				return errors.Join(err, i.unwound.Close())
			}
		}
	}
	if i.asked.native {
		i.rows.names = i.op.names.acquire(tablesOf(gadgetCtx))
	}
	i.before = i.op.broker.Totals()
	i.stop, i.done = make(chan struct{}), make(chan struct{})
	go i.run()
	return nil
}

// arrayOf is the name of the gadget's map that a chain's entry is put into: UNWIND_ENTRY of gadgets/include/unwind.h.
func arrayOf(kind wire.ChainKind) string { return "unwind_" + kind.String() }

// run reads rows and stacks until stop is closed, and then what belongs to them.
func (i *unwindInstance) run() {
	defer close(i.done)
	records := make(chan struct{})
	go func() { // ends when the reader is closed
		defer close(records)
		var record ringbuf.Record
		for {
			if err := i.unwound.ReadInto(&record); err != nil {
				if !errors.Is(err, os.ErrClosed) {
					i.log.Warnf("%s: reading the gadget's rows: %v", UnwindName, err)
				}
				return
			}
			i.mu.Lock()
			i.joiner.row(record.RawSample, time.Now())
			i.mu.Unlock()
		}
	}()
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	check := time.NewTimer(checkAfter)
	defer check.Stop()
	for {
		select {
		case b := <-i.sub.C:
			i.take(b)
			continue
		case <-sweep.C:
			i.sweep(joinPatience)
			continue
		case <-check.C:
			now := i.op.broker.Totals()
			for _, l := range unseen(i.before.Stats, now.Stats, i.asked.settings) {
				i.log.Warnf("%s: %s (%s)", UnwindName, l, reasons(i.before, now))
			}
			continue
		case <-i.stop:
		}
		break
	}
	i.finish()
	_ = i.unwound.Close()
	<-records
	i.sweep(0)
}

// finish takes the stacks of the last rows. The last one who leaves the unwinder gets all that it has.
func (i *unwindInstance) finish() {
	last := time.NewTimer(lastStacks)
	defer last.Stop()
	for wait := !i.sub.Last(); wait; {
		select {
		case b := <-i.sub.C:
			i.take(b)
			i.mu.Lock()
			wait = len(i.joiner.rows) > 0
			i.mu.Unlock()
		case <-last.C:
			wait = false
		}
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		i.sub.Close()
	}()
	for {
		select {
		case b := <-i.sub.C:
			i.take(b)
			continue
		case <-closed:
		}
		break
	}
	for len(i.sub.C) > 0 {
		i.take(<-i.sub.C)
	}
}

func (i *unwindInstance) take(b unwinder.Batch) {
	now := time.Now()
	for _, u := range b.Unwound {
		// The files are opened while the process may still be there.
		i.rows.want(u.Stack, u.Proc)
		i.mu.Lock()
		i.joiner.stack(u, now)
		i.mu.Unlock()
	}
}

// sweep gives up what has waited for too long, and brings counters up to date.
func (i *unwindInstance) sweep(patience time.Duration) {
	i.mu.Lock()
	i.joiner.expire(time.Now().Add(-patience))
	i.counted.joinCounts, i.counted.unlinked = i.joiner.counts, i.joiner.said.unlinked
	i.mu.Unlock()
	i.counted.overrun = i.sub.Overrun()
	i.count()
	now := i.op.broker.Totals()
	i.most.Memory, i.most.KernelMemory = max(i.most.Memory, now.Memory), max(i.most.KernelMemory, now.KernelMemory)
	i.op.report.report(now)
	i.counted.report(i.reported, i.metadata.GetString("unit"))
	i.reported = i.counted
}

// count reads what the gadget's programs and the rows' other readers have counted.
func (i *unwindInstance) count() {
	i.counted.elsewhere = unwindCount{i.elsewhere.events.Load(), i.elsewhere.value.Load()}
	for result := range uint32(wire.Results) {
		var counts []unwindCount
		if err := i.results.Lookup(result, &counts); err != nil {
			continue // the run is at its end
		}
		i.counted.results[result] = unwindCount{}
		for _, c := range counts {
			i.counted.results[result].Events += c.Events
			i.counted.results[result].Value += c.Value
		}
	}
}

// ready returns the rows for the next packet, and has their stacks at hand until it is handed on.
func (i *unwindInstance) ready() []*joined {
	i.mu.Lock()
	defer i.mu.Unlock()
	rows := i.joiner.take()
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

// cutAbove returns a stack without its frames up to the first of these functions of the kernel.
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

// Frames implements fieldmap.Stacks.
func (i *unwindInstance) Frames(dst []profile.Frame, id uint64) (frames []profile.Frame, outcome stack.Outcome, pending bool) {
	switch {
	case id == stackNone:
		return dst, stack.Empty, false
	case id == stackFellBack:
		return dst, stack.Partial, false
	case id < stackReserved:
		return dst, stack.Lost, false
	}
	return i.rows.Frames(dst, id-stackReserved)
}

// format puts the text of a stack into a row.
func (i *unwindInstance) format(_ datasource.DataSource, d datasource.Data) error {
	id, err := i.text.id.Uint64(d)
	s := i.rows.stacks[id-stackReserved]
	if err != nil || id < stackReserved || s == nil {
		return nil
	}
	kernel := kernelFrames(s.Frames)
	if i.text.user != nil {
		_ = i.text.user.PutString(d, i.rows.format(s.Frames[kernel:]))
	}
	if i.text.kernel != nil {
		var b strings.Builder
		for _, f := range i.rows.inKernel(nil, s.Frames[:kernel]) {
			b.WriteString(f.Name + "; ")
		}
		_ = i.text.kernel.PutString(d, b.String())
	}
	return nil
}

// PreStop ends the reading. Between this and Stop Inspektor Gadget reads the gadget's maps for the last time: all rows have to be there.
func (i *unwindInstance) PreStop(operators.GadgetContext) error {
	if i.done == nil {
		return nil
	}
	close(i.stop)
	<-i.done
	i.done = nil
	return nil
}

// Stop gives back what the run has used.
func (i *unwindInstance) Stop(gadgetCtx operators.GadgetContext) error {
	i.goes("")
	if i.sub == nil {
		return nil
	}
	if i.stop == nil { // Start has not been called
		i.leave()
		return nil
	}
	err := i.PreStop(gadgetCtx)
	i.sub = nil
	if i.asked.native {
		i.op.names.release()
	}
	i.count() // the last rows have been handed on
	i.counted.report(i.reported, i.metadata.GetString("unit"))
	i.reported = i.counted
	now := i.op.broker.Totals()
	i.op.report.report(now)
	now.Memory, now.KernelMemory = i.most.Memory, i.most.KernelMemory
	i.log.Infof("%s: %s", UnwindName, i.counted.summary(i.metadata.GetString("unit")))
	i.log.Infof("%s: of all gadgets, the unwinder had %s", UnwindName, work(i.before, now))
	return err
}

// Close implements operators.DataOperatorInstance.
func (i *unwindInstance) Close(gadgetCtx operators.GadgetContext) error { return i.Stop(gadgetCtx) }
