package otelprofiles

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/metrics"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/bounded"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// instruments holds this operator's metrics, which are in the same registry as Inspektor Gadget's own. Gauges panic in v0.55.0,
// so they are up-down counters. A reporter adds changes at intervals, outside gadgets' callbacks.
type instruments struct {
	ofExporter    []instrument
	requests      metric.Int64Counter
	rowsDelivered metric.Int64Counter
	rowsPartial   metric.Int64Counter
	rowsRead      metric.Int64Counter
	rowsDropped   metric.Int64Counter
	eventsLost    metric.Int64Counter
	userFrames    metric.Int64Counter
	replaced      metric.Int64Counter
	readerEnds    metric.Int64Counter
	fates         [len(profile.Fates{})]metric.Int64Counter // rows by their stack's fate; nil for whole stacks
	failed        metric.Int64UpDownCounter
	mistakes      metric.Int64UpDownCounter
	dataSources   metric.Int64UpDownCounter
	duration      metric.Float64Histogram
}

// instrument is a metric for one figure of exporters.
type instrument struct {
	add   func(n int64, attrs ...attribute.KeyValue)
	value func(figures) int64
}

// figures holds an exporter's statistics, and the age of its oldest data in seconds.
type figures struct {
	export.Stats
	age int64
}

var theInstruments = sync.OnceValue(func() *instruments {
	counter := func(name, unit, what string) metric.Int64Counter {
		c, _ := metrics.Int64Counter("ig_otel_profiles_"+name, metric.WithUnit(unit), metric.WithDescription(what))
		return c
	}
	upDown := func(name, unit, what string) metric.Int64UpDownCounter {
		c, _ := metrics.Int64UpDownCounter("ig_otel_profiles_"+name, metric.WithUnit(unit), metric.WithDescription(what))
		return c
	}
	counting := func(c metric.Int64Counter, value func(figures) int64) instrument {
		return instrument{func(n int64, attrs ...attribute.KeyValue) { count(c, n, attrs...) }, value}
	}
	changing := func(c metric.Int64UpDownCounter, value func(figures) int64) instrument {
		return instrument{func(n int64, attrs ...attribute.KeyValue) { change(c, n, attrs...) }, value}
	}
	duration, _ := metrics.Float64Histogram("ig_otel_profiles_request_duration", metric.WithUnit("s"),
		metric.WithDescription("Time from sending a request to receiving its response"))
	return &instruments{
		ofExporter: []instrument{
			counting(counter("exporter_sent_profile_samples", "{sample}", "Samples in requests that the receiver accepted"), func(f figures) int64 { return f.SentSamples }),
			counting(counter("exporter_send_failed_profile_samples", "{sample}", "Samples that were dropped because they could not be sent"), func(f figures) int64 { return f.FailedSamples }),
			counting(counter("exporter_enqueue_failed_profile_samples", "{sample}", "Samples that were dropped because the queue could not hold them"), func(f figures) int64 { return f.EnqueueFailedSamples }),
			counting(counter("request_bytes", "By", "Size of sent requests before compression"), func(f figures) int64 { return f.RequestBytes }),
			counting(counter("request_wire_bytes", "By", "Size of sent requests after compression"), func(f figures) int64 { return f.WireBytes }),
			counting(counter("request_retries", "{request}", "Requests sent again after a failure"), func(f figures) int64 { return f.Retries }),
			counting(counter("exporter_corrupt_files", "{file}", "Files in the storage folder without usable content"), func(f figures) int64 { return f.CorruptFiles }),
			changing(upDown("exporter_queue_size", "By", "Bytes in the queue"), func(f figures) int64 { return f.QueueBytes }),
			changing(upDown("exporter_queue_capacity", "By", "Capacity of the queue in bytes"), func(f figures) int64 { return f.QueueCapacity }),
			changing(upDown("exporter_queue_requests", "{request}", "Requests in the queue"), func(f figures) int64 { return f.QueueMessages }),
			changing(upDown("exporter_queue_oldest_age", "s", "Age of the oldest data in the queue"), func(f figures) int64 { return f.age }),
			changing(upDown("exporter_not_stored", "{exporter}", "Exporters whose last write to the storage folder failed: a restart would lose their queue"), func(f figures) int64 { return one(f.NotStored) }),
			changing(upDown("exporter_waiting", "{exporter}", "Exporters that are not ready, because a file or folder is missing"), func(f figures) int64 { return one(f.Waiting) }),
		},
		requests:      counter("requests", "{request}", "Requests sent, including retries"),
		rowsDelivered: counter("rows_delivered", "{row}", "Rows in requests that the receiver accepted"),
		rowsPartial:   counter("rows_partial", "{row}", "Rows in requests that the receiver accepted only in part"),
		rowsRead:      counter("rows_read", "{row}", "Rows read from gadgets"),
		rowsDropped:   counter("rows_dropped", "{row}", "Rows that were dropped, by reason"),
		eventsLost:    counter("events_lost", "{event}", "Events that Inspektor Gadget did not read in time, so they are in no row"),
		userFrames:    counter("user_frames", "{frame}", "User frames of distinct frame-pointer stacks, by what is known about them"),
		replaced:      counter("texts_replaced", "{text}", "Names and attributes with control characters or invalid UTF-8, counted once for each stack or resource"),
		fates: [len(profile.Fates{})]metric.Int64Counter{
			profile.NoStack:    counter("rows_stack_none", "{row}", "Rows without any frame"),
			profile.Lost:       counter("rows_stack_lost", "{row}", "Rows whose stack is missing, completely or in part"),
			profile.Truncated:  counter("rows_stack_truncated", "{row}", "Rows whose stack is truncated, because it is too deep or cannot be unwound further"),
			profile.Incomplete: counter("rows_stack_incomplete", "{row}", "Rows whose stack does not end at a known entry point"),
		},
		failed:      upDown("gadgets_failed", "{gadget}", "Detached runs that have failed, or whose exporter did not start"),
		mistakes:    upDown("exporter_mistakes", "{mistake}", "Current errors in exporter settings; the log describes each"),
		dataSources: upDown("data_sources", "{data_source}", "Data sources that are being exported, counted once per exporter"),
		duration:    duration,
		readerEnds:  counter("reader_ends", "{end}", "Unexpected exits of the process that reads names from files"),
	}
})

// observer records metrics for individual requests.
type observer struct{ exporter string }

// Request implements export.Observer.
func (o observer) Request(d time.Duration, bytes int, ok bool) {
	if h := theInstruments().duration; h != nil {
		h.Record(context.Background(), d.Seconds(), metric.WithAttributes(
			attribute.String("exporter", o.exporter), attribute.Bool("ok", ok)))
	}
}

const reportInterval = 5 * time.Second

// startReporting adds changes in the running exporters' figures to the metrics at intervals, until stop is called. stop does
// not wait for the reporter, because the caller can hold the lock that running needs.
func startReporting(running func() []*shared) (stop func()) {
	quit := make(chan struct{})
	go func() {
		t := time.NewTicker(reportInterval)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
				for _, s := range running() {
					s.report(false)
				}
			}
		}
	}()
	return func() { close(quit) }
}

// report adds the changes since the last report. end marks the last report. After it, the queue counts as empty.
func (s *shared) report(end bool) {
	s.reporting.Lock()
	defer s.reporting.Unlock()
	if s.ended {
		return
	}
	s.ended = end
	old, now := s.reported, figures{Stats: s.Stats()}
	if end {
		now.QueueBytes, now.QueueCapacity, now.QueueMessages, now.Oldest, now.Waiting, now.NotStored = 0, 0, 0, time.Time{}, false, false
	}
	if !now.Oldest.IsZero() {
		now.age = max(0, int64(time.Since(now.Oldest)/time.Second))
	}
	s.reported = now

	m := theInstruments()
	exporter := attribute.String("exporter", s.cfg.Name)
	for _, i := range m.ofExporter {
		i.add(i.value(now)-i.value(old), exporter)
	}
	for origin, n := range now.Origins {
		before, gadget := old.Origins[origin], attribute.String("gadget", origin)
		count(m.requests, n.Requests-before.Requests, exporter, gadget)
		count(m.rowsDelivered, n.Delivered-before.Delivered, exporter, gadget)
		count(m.rowsPartial, n.Partial-before.Partial, exporter, gadget)
		for reason, rows := range n.Dropped {
			count(m.rowsDropped, rows-before.Dropped[reason], exporter, gadget, attribute.String("reason", string(reason)))
		}
	}
}

// report adds the differences between a data source's counts and old to the metrics.
func (c Counts) report(old Counts, exporter, gadget attribute.KeyValue) {
	m := theInstruments()
	count(m.rowsRead, c.Read-old.Read, exporter, gadget)
	for fate := range c.Fates {
		count(m.fates[fate], c.Fates[fate]-old.Fates[fate], exporter, gadget)
	}
	for state := range c.Frames {
		count(m.userFrames, c.Frames[state]-old.Frames[state], exporter, gadget, attribute.String("state", names.State(state).String()))
	}
	count(m.replaced, c.Replaced-old.Replaced, exporter, gadget)
	for reason, n := range c.Dropped {
		count(m.rowsDropped, n-old.Dropped[reason], exporter, gadget, attribute.String("reason", string(reason)))
	}
}

// reportLost adds the events that Inspektor Gadget has lost since the last call. The caller holds flushing.
func (i *instance) reportLost() {
	lost := i.lost()
	count(theInstruments().eventsLost, lost-i.lostSoFar, i.label)
	i.lostSoFar = lost
}

// mostGadgets limits the values of the attribute gadget in a process, because a daemon's clients choose the gadgets.
const mostGadgets = 50

// gadgetNames assigns gadget names for metrics. It is safe for concurrent use.
type gadgetNames struct {
	mu   sync.Mutex
	seen *bounded.Sets[string]
}

var theGadgetNames = gadgetNames{seen: bounded.New[string](1, mostGadgets)}

// of returns the attribute for an image. Its value is the image's name without registry, tag and digest, or "other" if there are
// too many names.
func (g *gadgetNames) of(image string) attribute.KeyValue {
	const longest = 64
	name, _, _ := strings.Cut(image[strings.LastIndexByte(image, '/')+1:], "@")
	name, _, _ = strings.Cut(name, ":")
	name = strings.ToValidUTF8(name[:min(len(name), longest)], "")
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.seen.Add("", name) {
		name = "other"
	}
	return attribute.String("gadget", name)
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func count(c metric.Int64Counter, n int64, attrs ...attribute.KeyValue) {
	if c != nil && n > 0 {
		c.Add(context.Background(), n, metric.WithAttributes(attrs...))
	}
}

func change(c metric.Int64UpDownCounter, n int64, attrs ...attribute.KeyValue) {
	if c != nil && n != 0 {
		c.Add(context.Background(), n, metric.WithAttributes(attrs...))
	}
}
