package unwinder

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadgets"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// emitInterval is about how often rows are handed on. That happens when a batch has come, as the process is awake
	// then anyway: the unwinder writes about as often. A batch that comes less than emitEarly before the time is
	// handed on at once.
	emitInterval = time.Second
	emitEarly    = 300 * time.Millisecond
	// reportInterval is how often metrics are brought up to date.
	reportInterval = 5 * time.Second
)

// instance is the operator's part of one run.
type instance struct {
	op       *operator
	broker   *unwinder.Broker
	log      logger.Logger
	settings unwinder.Settings
	text     string // the parameter ParamText
	native   bool   // native functions get names
	filter   filter
	rows     rows

	sub      *unwinder.Subscription // nil after Stop
	source   *unwinder.Subscription // the same, for run
	before   unwinder.Totals
	counts   counts
	memory   struct{ user, kernel uint64 } // the most that was seen
	reported time.Time                     // when metrics were brought up to date
	dropped  dropped                       // what metrics have of it
	stop     chan struct{}
	done     chan struct{}
}

// counts are one run's samples: received = emitted + filtered + left out + full. Of those emitted, rows.otherContainer were discarded.
type counts struct{ received, emitted, filtered, leftOut, full uint64 }

// Name implements operators.DataOperatorInstance.
func (i *instance) Name() string { return Name }

// PreStart is called when all operators have added their fields.
func (i *instance) PreStart(operators.GadgetContext) error {
	if err := i.rows.containers.subscribe(i.rows.ds, "samples"); err != nil {
		return fmt.Errorf("watching the rows of the data source %q: %w", sourceName, err)
	}
	return nil
}

// Start asks for samples. Where there cannot be any, the error says what is missing.
func (i *instance) Start(gadgetCtx operators.GadgetContext) error {
	if on, _ := gadgetCtx.GetVar(gadgets.FilterByMntNsName); on == true {
		m, _ := gadgetCtx.GetVar(gadgets.MntNsFilterMapName)
		watched, ok := m.(*ebpf.Map)
		if !ok || watched == nil {
			return fmt.Errorf("the containers to watch are not known: the variable %s holds a %T", gadgets.MntNsFilterMapName, m)
		}
		i.filter.namespaces = watched
		i.filter.look()
	}
	i.rows.text = i.text == "true" || i.text == textAuto && tune.ReadingOf(gadgetCtx).Anybody(sourceName)
	i.before = i.broker.Totals()
	var err error
	if i.sub, err = i.broker.Subscribe(gadgetCtx.Context(), i.settings); err != nil {
		return err
	}
	i.source = i.sub
	if i.native {
		i.rows.names = i.op.names.acquire(tablesOf(gadgetCtx))
	}
	i.stop, i.done = make(chan struct{}), make(chan struct{})
	go i.run(i.sub.C)
	return nil
}

// Stop ends the run. The samples that have been taken are handed on.
func (i *instance) Stop(operators.GadgetContext) error {
	if i.sub == nil {
		return nil
	}
	sub := i.sub
	i.sub = nil
	close(i.stop)
	<-i.done
	sub.Close()
	// Batches that came while the program was ending.
	for {
		select {
		case b := <-sub.C:
			i.take(b)
			continue
		default:
		}
		break
	}
	i.emit()
	if i.native {
		i.op.names.release()
	}
	i.summarize()
	return nil
}

// Close implements operators.DataOperatorInstance.
func (i *instance) Close(gadgetCtx operators.GadgetContext) error { return i.Stop(gadgetCtx) }

// run hands on what arrives, until Stop.
func (i *instance) run(batches <-chan unwinder.Batch) {
	defer close(i.done)
	var emitted time.Time
	emit := time.NewTimer(reportInterval)
	defer emit.Stop()
	var look <-chan time.Time
	if i.filter.namespaces != nil {
		ticker := time.NewTicker(lookInterval)
		defer ticker.Stop()
		look = ticker.C
	}
	check := time.NewTimer(checkAfter)
	defer check.Stop()
	for {
		select {
		case b := <-batches:
			i.take(b)
			if left := time.Until(emitted.Add(emitInterval)); left > emitEarly {
				emit.Reset(left)
				continue
			}
			i.emit()
			emitted = time.Now()
			emit.Reset(reportInterval)
		case <-emit.C:
			i.emit()
			emitted = time.Now()
			emit.Reset(reportInterval)
		case <-look:
			i.filter.look()
		case <-check.C:
			i.check()
		case <-i.stop:
			return
		}
	}
}

// take adds what passes the filters.
func (i *instance) take(b unwinder.Batch) {
	for n := range b.Samples {
		s := &b.Samples[n]
		i.counts.received += s.Count
		if !i.filter.pass(s) {
			i.counts.filtered += s.Count
			continue
		}
		count := share(s.Count, i.settings.Hz, b.Hz)
		i.counts.leftOut += s.Count - count
		if count > 0 && !i.rows.add(s, count) {
			i.counts.full += count
		}
	}
}

// share returns this run's part of n samples, if more are taken in a second (have) than it wants. The fraction of a
// sample that is left is rounded at random, so that the sum is right in the long run.
func share(n uint64, want, have int) uint64 {
	if have <= want {
		return n
	}
	part := n / uint64(have) * uint64(want)
	rest := n % uint64(have) * uint64(want)
	part += rest / uint64(have)
	if rand.Uint64N(uint64(have)) < rest%uint64(have) {
		part++
	}
	return part
}

func (i *instance) emit() {
	t := i.broker.Totals()
	if now := time.Now(); now.Sub(i.reported) >= reportInterval {
		i.reported = now
		i.op.report.report(t)
		i.reportDropped()
	}
	i.memory.user, i.memory.kernel = max(i.memory.user, t.Memory), max(i.memory.kernel, t.KernelMemory)
	n, err := i.rows.emit()
	i.counts.emitted += n
	if err != nil {
		i.log.Warnf("%s: handing on rows: %v", Name, err)
	}
}

// reportDropped brings metrics up to date with what this run has not handed on.
func (i *instance) reportDropped() {
	now := dropped{i.counts.full, i.source.Overrun(), i.rows.otherContainer}
	now.report(i.dropped)
	i.dropped = now
}

// check warns of languages whose functions are not seen.
func (i *instance) check() {
	now := i.broker.Totals()
	for _, l := range unseen(i.before.Stats, now.Stats, i.settings) {
		i.log.Warnf("%s: %s (%s)", Name, l, reasons(i.before, now))
	}
}

// summarize writes the closing line.
func (i *instance) summarize() {
	now, was, c := i.broker.Totals(), i.before, i.counts
	i.op.report.report(now)
	i.reportDropped()
	var langs []string
	for t := range now.Languages {
		if n := now.Languages[t].Frames - was.Languages[t].Frames; n > 0 {
			langs = append(langs, fmt.Sprintf("%s %d", language(wire.FrameType(t)), n))
		}
	}
	if now.Starts == was.Starts && now.Taken == was.Taken {
		i.log.Warnf("%s: the run was over before the first sample: loading the unwinder into the kernel takes some seconds", Name)
	}
	i.log.Infof("%s: %d samples taken, %d handed on, %d filtered out, %d left out for a lower frequency, %d of a container that had gone, %d without a stack, lost: %d here, %d in the unwinder, %d in the kernel, %d in %d restarts (%.1f s without samples); samples with frames of: %s; %s; %d of processes that could not be told, %d without their span because there were too many; it takes %d MiB of memory and %d MiB of the kernel's",
		Name, now.Taken-was.Taken, c.emitted-i.rows.otherContainer, c.filtered, c.leftOut, i.rows.otherContainer, now.Idle-was.Idle, c.full+i.source.Overrun(),
		now.Full+now.Failed-was.Full-was.Failed, now.KernelLost-was.KernelLost, now.Crashed-was.Crashed, now.Restarts-was.Restarts, (now.Away - was.Away).Seconds(),
		strings.Join(langs, ", "), reasons(i.before, now), now.NoProcess-was.NoProcess, i.rows.said.unlinked, i.memory.user>>20, i.memory.kernel>>20)
}
