package unwinder

import (
	"context"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// unwindCount mirrors struct unwind_count in gadgets/include/unwind.h.
type unwindCount struct{ Events, Value uint64 }

func (c unwindCount) minus(o unwindCount) unwindCount {
	return unwindCount{c.Events - o.Events, c.Value - o.Value}
}

// resultNames describes the results of sampled events, in words and as the metrics' attribute.
var resultNames = [wire.Results]struct{ attribute, words string }{
	wire.ResultNoChain:        {"no_unwinder", "without an unwinder"},
	wire.ResultDone:           {"unwound", "unwound"},
	wire.ResultUnknownProcess: {"unknown_process", "of processes that the unwinder had not detected yet"},
	wire.ResultBusy:           {"busy", "not unwound because the CPU was unwinding another stack"},
	wire.ResultNoRoom:         {"no_room", "lost because the gadget's buffer was full"},
	wire.ResultOverBudget:     {"over_budget", "over the limit of stacks per CPU and second"},
}

// unwindTotals counts the results of one run's events.
type unwindTotals struct {
	joinCounts
	results   [wire.Results]unwindCount
	overrun   uint64      // stacks that were not read in time
	unlinked  uint64      // events that lost their span because there were too many spans
	elsewhere unwindCount // rows of exited processes that name a later container
	missed    uint64      // calls of the gadget's programs that the kernel has skipped
	others    uint64      // rows of Inspektor Gadget's own gadgets that contained the ID of another event
}

// since returns how otelStacks' counts have changed since was.
func (t unwindTotals) since(was unwindTotals) unwindTotals {
	for r := range t.results {
		t.results[r] = t.results[r].minus(was.results[r])
	}
	t.lost, t.lostValue, t.others = t.lost-was.lost, t.lostValue-was.lostValue, t.others-was.others
	return t
}

// ended returns the counts of all outcomes: the results in the kernel, and stacks that were lost afterwards.
func (t *unwindTotals) ended() map[string]unwindCount {
	all := map[string]unwindCount{}
	for r, c := range t.results {
		all[resultNames[r].attribute] = c
	}
	all["container"] = t.elsewhere
	all["skipped"] = unwindCount{Events: t.missed}
	all["other_event"] = unwindCount{t.others, t.others}
	all["lost"] = unwindCount{t.lost + t.full, t.lostValue + t.fullValue}
	return all
}

// countRuns adds n to the number of runs with a kind of stacks. way is a value of ParamUnwind, or "" for none.
func countRuns(way string, n int64) {
	if way != "" {
		theInstruments().runs.Add(context.Background(), n, metric.WithAttributes(attribute.String("stacks", way)))
	}
}

// report adds the differences from was to the metrics.
func (t *unwindTotals) report(was unwindTotals, unit string) {
	m, before := theInstruments(), was.ended()
	for result, now := range t.ended() {
		if b := before[result]; now.Events > b.Events {
			m.events.Add(context.Background(), int64(now.Events-b.Events), metric.WithAttributes(attribute.String("result", result)))
			m.value.Add(context.Background(), int64(now.Value-b.Value), metric.WithAttributes(attribute.String("result", result), attribute.String("unit", unit)))
		}
	}
}

// summary describes the results of the run's events.
func (t *unwindTotals) summary(unit string) string {
	var sum unwindCount
	for _, c := range t.results {
		sum.Events += c.Events
		sum.Value += c.Value
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d events sampled", sum.Events)
	share := func(c unwindCount, words string) {
		if c.Events > 0 {
			fmt.Fprintf(&b, ", %d %s (%.1f %% of the %s)", c.Events, words, 100*float64(c.Value)/float64(max(sum.Value, 1)), unit)
		}
	}
	share(t.results[wire.ResultDone], resultNames[wire.ResultDone].words)
	for r, c := range t.results {
		if r != wire.ResultDone {
			share(c, resultNames[r].words)
		}
	}
	share(unwindCount{t.lost + t.full, t.lostValue + t.fullValue}, "whose stack did not arrive")
	if t.elsewhere.Events > 0 {
		fmt.Fprintf(&b, ", %d %s of a container that had exited", t.elsewhere.Value, unit)
	}
	if t.others > 0 {
		fmt.Fprintf(&b, ", %d rows with the stack ID of another event", t.others)
	}
	if t.unlinked > 0 {
		fmt.Fprintf(&b, ", %d without their span because there were too many spans", t.unlinked)
	}
	if t.missed > 0 {
		fmt.Fprintf(&b, "; %d events skipped by the kernel before the gadget saw them", t.missed)
	}
	if t.bad+t.strays+t.overrun > 0 {
		fmt.Fprintf(&b, "; %d rows not decoded, %d stacks without a row, %d stacks dropped because they were not read in time", t.bad, t.strays, t.overrun)
	}
	return b.String()
}
