package unwinder

import (
	"context"
	"sync"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/metrics"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// instruments are the unwinder's metrics in Inspektor Gadget's registry. The registry's gauges panic in v0.55.0, so the package
// uses up-down counters instead.
type instruments struct {
	taken, dropped, incomplete, frames, restarts, events, value metric.Int64Counter
	away                                                        metric.Float64Counter
	memory, runs                                                metric.Int64UpDownCounter
}

var theInstruments = sync.OnceValue(func() *instruments {
	counter := func(name, unit, what string) metric.Int64Counter {
		c, _ := metrics.Int64Counter("ig_otel_profiles_unwinder_"+name, metric.WithUnit(unit), metric.WithDescription(what))
		return c
	}
	away, _ := metrics.Float64Counter("ig_otel_profiles_unwinder_away", metric.WithUnit("s"),
		metric.WithDescription("Time without whole stacks because the unwinder restarted"))
	memory, _ := metrics.Int64UpDownCounter("ig_otel_profiles_unwinder_memory", metric.WithUnit("By"),
		metric.WithDescription("Memory used by the unwinder, in its process and in the kernel"))
	runs, _ := metrics.Int64UpDownCounter("ig_otel_profiles_unwinder_runs", metric.WithUnit("{run}"),
		metric.WithDescription("Runs of gadgets that can have whole stacks, by kind of stack"))
	return &instruments{
		taken:      counter("samples", "{sample}", "Samples collected by the unwinder"),
		dropped:    counter("samples_dropped", "{sample}", "Samples that were dropped, by reason"),
		incomplete: counter("stacks_incomplete", "{sample}", "Samples with an incomplete stack, by reason"),
		frames:     counter("samples_by_language", "{sample}", "Samples with at least one frame of a language"),
		restarts:   counter("restarts", "{restart}", "Restarts of the unwinder"),
		events:     counter("events", "{event}", "Events that needed a stack, by result"),
		value:      counter("events_value", "", "Time or bytes represented by events that needed a stack, by result and unit"),
		away:       away, memory: memory, runs: runs,
	}
})

// reporter adds changes in the broker's totals to the metrics.
type reporter struct {
	mu   sync.Mutex
	last unwinder.Totals
}

func (r *reporter) report(now unwinder.Totals) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.last
	r.last = now
	m, ctx := theInstruments(), context.Background()
	add := func(c metric.Int64Counter, now, was uint64, attrs ...attribute.KeyValue) {
		if now > was {
			c.Add(ctx, int64(now-was), metric.WithAttributes(attrs...))
		}
	}
	reason := func(text string) attribute.KeyValue { return attribute.String("reason", text) }
	add(m.taken, now.Taken, was.Taken)
	add(m.dropped, now.Full, was.Full, reason("full"))
	add(m.dropped, now.Failed, was.Failed, reason("failed"))
	add(m.dropped, now.Idle, was.Idle, reason("empty"))
	add(m.dropped, now.KernelLost, was.KernelLost, reason("kernel"))
	add(m.dropped, now.Crashed, was.Crashed, reason("crash"))
	for code, n := range now.Aborts {
		add(m.incomplete, n, was.Aborts[code], reason(unwinder.Reason(code)))
	}
	for t := range now.Languages {
		if name := wire.FrameType(t).String(); name != "" {
			add(m.frames, now.Languages[t].Frames, was.Languages[t].Frames, attribute.String("language", name))
		}
	}
	add(m.restarts, now.Restarts, was.Restarts)
	if d := now.Away - was.Away; d > 0 {
		m.away.Add(ctx, d.Seconds())
	}
	m.memory.Add(ctx, int64(now.Memory)-int64(was.Memory), metric.WithAttributes(attribute.String("where", "process")))
	m.memory.Add(ctx, int64(now.KernelMemory)-int64(was.KernelMemory), metric.WithAttributes(attribute.String("where", "kernel")))
}
