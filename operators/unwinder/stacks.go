package unwinder

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// shared is the operator whose unwinder all gadgets in this process share.
var shared *operator

// Stacks receives the stacks of one gadget's events from the unwinder. Another operator, which creates the gadget's rows, uses
// it. The gadget's programs use gadgets/include/unwind.h. If a method's comment says so, only the goroutine that reads the
// gadget's data source can call the method. The other methods must not be called concurrently.
type Stacks struct {
	op   *operator
	log  logger.Logger
	how  string
	unit string
	only string // the only chain that the gadget's attached programs call; "": all of its chains

	sub *unwinder.Subscription // nil: frame-pointer stacks
	way string                 // unwindWhole or unwindFramePointers while the metric counts the run, otherwise ""
	// nameless leaves native functions without names. named is true while rows.names is in use.
	nameless, named bool
	results, over   *ebpf.Map       // unwind_counts and unwind_over of gadgets/include/unwind.h
	programs        []*ebpf.Program // the programs that use results
	text            struct{ user, kernel, id datasource.FieldAccessor }
	rows            rows // rows of the current packet

	counted, reported unwindTotals
}

// UnwindParam returns the parameter --unwind for an operator that uses Stacks.
func UnwindParam() *api.Param {
	return &api.Param{
		Key: ParamUnwind, DefaultValue: unwindAuto, PossibleValues: []string{unwindAuto, unwindWhole, unwindFramePointers},
		Description: "How to collect stacks: whole (all languages that the unwinder supports), frame-pointers (cheaper), or auto (whole if this machine allows it)",
	}
}

// NewStacks returns the Stacks for a run. how is the value of UnwindParam. unit is the unit of the events' values.
func NewStacks(gadgetCtx operators.GadgetContext, how, unit string) (*Stacks, error) {
	s, err := newStacks(shared, gadgetCtx, how, unit, newRows(false))
	if err != nil {
		return nil, err
	}
	gadgetCtx.SetVar(stacksVar, s)
	return s, nil
}

func newStacks(op *operator, gadgetCtx operators.GadgetContext, how, unit string, r rows) (*Stacks, error) {
	switch how {
	case "":
		how = unwindAuto
	case unwindAuto, unwindWhole, unwindFramePointers:
	default:
		return nil, fmt.Errorf("parameter %q: got %q, expected %s, %s or %s", ParamUnwind, how, unwindAuto, unwindWhole, unwindFramePointers)
	}
	return &Stacks{op: op, log: gadgetCtx.Logger(), how: how, unit: unit, rows: r}, nil
}

// PreStart starts the unwinder, and makes the gadget's programs call it at most budget times per second and CPU. ds is the data
// source of the rows.
func (s *Stacks) PreStart(gadgetCtx operators.GadgetContext, ds datasource.DataSource, budget uint32) error {
	return s.choose(gadgetCtx, func() error {
		if err := s.subscribe(gadgetCtx, ds, unwinder.Settings{Languages: "all"}); err != nil {
			return err
		}
		s.text.kernel = nil // this gadget's kernel stacks do not come from the unwinder
		return s.call(gadgetCtx, 1, budget, "")
	})
}

// choose prepares whole stacks. If that fails, a run with "auto" falls back to frame-pointer stacks.
func (s *Stacks) choose(gadgetCtx operators.GadgetContext, prepare func() error) error {
	if s.how == unwindFramePointers {
		s.goes(unwindFramePointers)
		return nil
	}
	err := errUnasked
	if v, _ := tune.Value(gadgetCtx, "collect_ustack"); v == "false" {
		err = fmt.Errorf("%w, with --%s=false", err, tune.Key(gadgetCtx, "collect_ustack"))
	} else {
		err = prepare()
	}
	if err == nil {
		s.goes(unwindWhole)
		tune.UnwindsAll(gadgetCtx)
		return nil
	}
	leave(&s.sub)
	if gadgetCtx.Context().Err() != nil {
		return nil // the run ended during the wait, which is not a failure
	}
	if s.how == unwindWhole {
		return fmt.Errorf("--%s=%s: %w", ParamUnwind, unwindWhole, err)
	}
	s.goes(unwindFramePointers)
	say := s.log.Warnf
	if errors.Is(err, errUnasked) {
		say = s.log.Infof
	}
	say("%s: stacks use frame pointers: %v", UnwindName, err)
	return nil
}

// errUnasked is the error for runs whose flags leave nothing to unwind.
var errUnasked = errors.New("user stacks are turned off")

// goes counts the run in the metric by the kind of its stacks. With "", the run is not counted.
func (s *Stacks) goes(way string) {
	countRuns(s.way, -1)
	countRuns(way, 1)
	s.way = way
}

// subscribe starts the unwinder with the chains that the gadget's programs call, for the rows of ds.
func (s *Stacks) subscribe(gadgetCtx operators.GadgetContext, ds datasource.DataSource, settings unwinder.Settings) error {
	var chains []string
	for kind := range wire.ChainKinds {
		if tune.MapSpec(gadgetCtx, arrayOf(kind)) != nil && s.calls(kind) {
			chains = append(chains, kind.String())
		}
	}
	if len(chains) == 0 {
		return errors.New("the gadget's programs do not call the unwinder: define one of the macros UNWIND_FROM_… (see gadgets/include/unwind.h), and rebuild the gadget's image")
	}
	settings.Chains = strings.Join(chains, ",")
	var err error
	if s.sub, err = s.op.broker.Subscribe(gadgetCtx.Context(), settings); err != nil {
		return err
	}
	s.text.user, s.text.kernel, s.text.id = ds.GetField("user_stack_raw.symbols"), ds.GetField("kern_stack"), ds.GetField("unwound_id")
	if s.text.id != nil && tune.ReadingOf(gadgetCtx).Anybody(ds.Name()) {
		return ds.Subscribe(s.format, textPriority)
	}
	return nil
}

// call makes the gadget's programs sample events, and logs this. It must be the last step, because nothing must fail
// afterwards.
func (s *Stacks) call(gadgetCtx operators.GadgetContext, step, budget uint32, where string) error {
	slots, err := s.op.broker.Slots()
	if err != nil {
		return err
	}
	variables := map[string]uint32{"unwind_on": 1, "unwind_run": s.sub.Run(), "unwind_step": step, "unwind_budget": budget}
	for name := range variables {
		if v, _ := gadgetCtx.GetVar(name); v != uint32(0) {
			return fmt.Errorf("the gadget has no variable %s: rebuild the gadget's image", name)
		}
	}
	for name, value := range variables {
		gadgetCtx.SetVar(name, value)
	}
	gadgetCtx.SetVar(slotsVar, slots)
	s.log.Infof("%s: stacks are whole%s", UnwindName, where)
	return nil
}

// leave ends a subscription, if any.
func leave(sub **unwinder.Subscription) {
	if *sub != nil {
		(*sub).Close()
		*sub = nil
	}
}

// Start makes the gadget's programs, which are already loaded, call the unwinder.
func (s *Stacks) Start(gadgetCtx operators.GadgetContext) error {
	if s.sub == nil {
		return nil
	}
	found, err := tune.Maps(gadgetCtx, UnwindName, "unwind_counts", "unwind_over")
	if err != nil {
		return err
	}
	s.results, s.over = found["unwind_counts"], found["unwind_over"]
	s.programs = programsOf(s.results)
	for kind := range wire.ChainKinds {
		if array := tune.Map(gadgetCtx, arrayOf(kind)); array != nil && s.calls(kind) {
			if err := s.sub.Serve(kind, array); err != nil {
				return err
			}
		}
	}
	if !s.nameless {
		s.rows.names, s.named = s.op.acquireNames(gadgetCtx), true
	}
	return nil
}

// Stop releases the run's resources. Call Finish first, unless Start has failed.
func (s *Stacks) Stop() {
	s.goes("")
	leave(&s.sub)
	s.counted.missed = max(s.counted.missed, skipped(s.programs))
	for _, p := range s.programs {
		_ = p.Close()
	}
	s.programs = nil
	if s.named {
		s.named = false
		s.op.names.Release((*names.Namer).Close)
	}
}

// Know makes the unwinder read the files of a process before its first event. Any goroutine can call it between Start and
// Finish.
func (s *Stacks) Know(pid uint32) {
	if s.sub != nil {
		s.sub.Read(pid)
	}
}

// Read passes on the received stacks without waiting.
func (s *Stacks) Read(take func(wire.Unwound)) {
	for s.sub != nil {
		select {
		case b := <-s.sub.C:
			s.take(b, take)
		default:
			return
		}
	}
}

// Finish passes on the stacks of the last events while wanted returns true. No stacks are passed on afterwards.
func (s *Stacks) Finish(wanted func() bool, take func(wire.Unwound)) {
	if s.sub == nil {
		return
	}
	s.end()
	last := time.After(lastStacks)
	for wait := !s.sub.Last() && wanted(); wait; {
		select {
		case b := <-s.sub.C:
			s.take(b, take)
			wait = wanted()
		case <-last:
			wait = false
		}
	}
	// The last subscriber of the unwinder gets all remaining stacks when it leaves.
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.sub.Close()
	}()
	for left := false; !left; {
		select {
		case b := <-s.sub.C:
			s.take(b, take)
		case <-closed:
			left = true
		}
	}
	s.Read(take)
	s.counted.overrun = s.sub.Overrun()
	s.sub = nil
}

// end makes the gadget's programs drop events until they are detached, because there is no longer an unwinder.
func (s *Stacks) end() {
	if s.over == nil { // Start has failed
		return
	}
	if err := s.over.Put(uint32(0), uint32(1)); err != nil {
		s.log.Warnf("%s: the last stacks of the run use frame pointers: %v", UnwindName, err)
	}
}

func (s *Stacks) take(batch []wire.Unwound, take func(wire.Unwound)) {
	for _, u := range batch {
		// Open the files immediately, because the process can exit.
		s.rows.want(u.Stack, u.Proc)
		take(u)
	}
}

// Count updates the counters. lost is the number of unwound events whose stack did not arrive. lostValue is the sum of their
// values.
func (s *Stacks) Count(lost, lostValue uint64) {
	if s.results == nil {
		return
	}
	s.counted.lost, s.counted.lostValue = lost, lostValue
	s.count()
}

// count reads the counts of the gadget's programs and the unwinder, and updates the metrics.
func (s *Stacks) count() {
	if s.sub != nil {
		s.counted.overrun = s.sub.Overrun()
	}
	for result := range uint32(wire.Results) {
		var counts []unwindCount
		if err := s.results.Lookup(result, &counts); err != nil {
			continue // the run is ending
		}
		s.counted.results[result] = unwindCount{}
		for _, c := range counts {
			s.counted.results[result].Events += c.Events
			s.counted.results[result].Value += c.Value
		}
	}
	s.counted.missed = max(s.counted.missed, skipped(s.programs))
	s.op.report.report(s.op.broker.Totals())
	s.counted.report(s.reported, s.unit)
	s.reported = s.counted
}

// Summary describes how the run's events were handled. It returns "" if the run does not use the unwinder.
func (s *Stacks) Summary() string {
	if s.results == nil {
		return ""
	}
	return s.counted.summary(s.unit)
}

// RowID returns the value for a row's field unwound_id. st is nil for a lost stack.
func RowID(st *wire.Stack) uint64 {
	if st == nil {
		return stackLost
	}
	return st.ID + stackReserved
}

// Show makes a stack available for the rows of a packet. Only the goroutine that reads the data source can call it.
func (s *Stacks) Show(st *wire.Stack) { s.rows.stacks[st.ID] = st }

// Hide reverts Show for all stacks. Only the goroutine that reads the data source can call it.
func (s *Stacks) Hide() { clear(s.rows.stacks) }

// Symbol returns the symbol name of a native frame's function, or "" for other frames. If pending is true, the name can become
// known later.
func (s *Stacks) Symbol(f *wire.Frame) (name string, pending bool) {
	switch {
	case f.Type != wire.FrameNative && f.Type != wire.FrameGo && f.Type != wire.FrameUnknown:
		return "", false
	case !byAddress(f):
		return f.Function, false
	}
	symbol, pending := s.rows.lookup(f.Mapping.File, nil, f.Address)
	return symbol.Name, pending
}

// Frames implements fieldmap.Stacks.
func (s *Stacks) Frames(dst []profile.Frame, id uint64, form fieldmap.FileForm) (frames []profile.Frame, outcome stack.Outcome, unnamed fieldmap.Unnamed) {
	switch {
	case id == stackNone:
		return dst, stack.Empty, nil
	case id == stackFellBack:
		return dst, stack.Partial, nil
	case id < stackReserved:
		return dst, stack.Lost, nil
	}
	return s.rows.framesOf(dst, s.rows.stacks[id-stackReserved], form)
}

// format writes a stack's text into a row.
func (s *Stacks) format(_ datasource.DataSource, d datasource.Data) error {
	id, err := s.text.id.Uint64(d)
	if err != nil || id < stackReserved {
		return nil
	}
	st := s.rows.stacks[id-stackReserved]
	if st == nil {
		return nil
	}
	kernel := kernelFrames(st.Frames)
	if s.text.user != nil {
		_ = s.text.user.PutString(d, s.rows.format(st.Frames[kernel:]))
	}
	if s.text.kernel != nil {
		var b strings.Builder
		for _, f := range s.rows.inKernel(nil, st.Frames[:kernel]) {
			b.WriteString(f.Name + "; ")
		}
		_ = s.text.kernel.PutString(d, b.String())
	}
	return nil
}

// calls reports whether the gadget's attached programs call a chain. The gadget must have the chain's array.
func (s *Stacks) calls(kind wire.ChainKind) bool { return s.only == "" || s.only == kind.String() }

// arrayOf returns the name of the gadget's map for a chain's entry: UNWIND_ENTRY of gadgets/include/unwind.h.
func arrayOf(kind wire.ChainKind) string { return "unwind_" + kind.String() }
