package otelprofiles

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/metrics"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// instruments are this process's metrics in Inspektor Gadget's registry, so that they appear
// wherever its own do. Its gauges panic in v0.55.0: what goes up and down is an up-down counter.
// They are never touched in a gadget's callback; a reporter adds what has changed now and then.
type instruments struct {
	sent, failed, enqueueFailed metric.Int64Counter
	rowsRead, rowsDelivered     metric.Int64Counter
	rowsDropped, rowsPartial    metric.Int64Counter
	userFrames, textsReplaced   metric.Int64Counter
	fates                       [len(profile.Fates{})]metric.Int64Counter // rows by the fate of their stack; nil for whole stacks
	refused                     metric.Int64Counter
	mistakes                    metric.Int64UpDownCounter
	dataSources                 metric.Int64UpDownCounter
	queueSize, queueCapacity    metric.Int64UpDownCounter
	queueRequests, queueAge     metric.Int64UpDownCounter
	waiting                     metric.Int64UpDownCounter
	requests, requestBytes      metric.Int64Counter
	wireBytes, retries          metric.Int64Counter
	corruptFiles                metric.Int64Counter
	requestDuration             metric.Float64Histogram
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
	duration, _ := metrics.Float64Histogram("ig_otel_profiles_request_duration", metric.WithUnit("s"),
		metric.WithDescription("Time from sending a request to its answer"))
	return &instruments{
		sent:          counter("exporter_sent_profile_samples", "{sample}", "Samples in requests that the receiver accepted"),
		failed:        counter("exporter_send_failed_profile_samples", "{sample}", "Samples that were dropped because they could not be sent"),
		enqueueFailed: counter("exporter_enqueue_failed_profile_samples", "{sample}", "Samples that were dropped because the queue could not hold them"),
		rowsRead:      counter("rows_read", "{row}", "Rows that gadgets have handed over"),
		fates: [len(profile.Fates{})]metric.Int64Counter{
			profile.NoStack:    counter("rows_stack_none", "{row}", "Rows without any frame"),
			profile.Lost:       counter("rows_stack_lost", "{row}", "Rows that came without a stack, or a part of it, that they should have"),
			profile.CutOff:     counter("rows_stack_truncated", "{row}", "Rows whose stack is cut off: deeper than what is recorded, or not to be unwound further"),
			profile.Incomplete: counter("rows_stack_incomplete", "{row}", "Rows whose outermost function is none that programs and threads begin with"),
		},
		userFrames:      counter("user_frames", "{frame}", "Frames of programs in distinct stacks, by what is known of them"),
		textsReplaced:   counter("texts_replaced", "{text}", "Names and attributes that had control characters, or were not UTF-8, when a stack or resource first brought them"),
		rowsDelivered:   counter("rows_delivered", "{row}", "Rows in requests that the receiver accepted"),
		rowsPartial:     counter("rows_partial", "{row}", "Rows in requests that the receiver accepted only partly"),
		rowsDropped:     counter("rows_dropped", "{row}", "Rows that were dropped, by reason"),
		refused:         counter("gadgets_refused", "{gadget}", "Gadgets that did not start because of what they asked of an exporter"),
		mistakes:        upDown("exporter_mistakes", "{mistake}", "Mistakes in the settings of exporters now, each of which the log names"),
		dataSources:     upDown("data_sources", "{data_source}", "Data sources whose rows are exported now, once for each exporter"),
		queueSize:       upDown("exporter_queue_size", "By", "Bytes that wait to be sent"),
		queueCapacity:   upDown("exporter_queue_capacity", "By", "Bytes that may wait to be sent"),
		queueRequests:   upDown("exporter_queue_requests", "{request}", "Requests that wait to be sent"),
		queueAge:        upDown("exporter_queue_oldest_age", "s", "Age of the oldest data that waits to be sent"),
		waiting:         upDown("exporter_waiting", "{exporter}", "Exporters that cannot start yet, because a file or folder is not there"),
		wireBytes:       counter("request_wire_bytes", "By", "Bytes of these, as they were sent"),
		retries:         counter("request_retries", "{request}", "Requests sent again after a failure"),
		corruptFiles:    counter("exporter_corrupt_files", "{file}", "Files of the storage folder that held nothing usable"),
		requests:        counter("requests", "{request}", "Requests sent, repeated ones included"),
		requestBytes:    counter("request_bytes", "By", "Bytes of these, uncompressed"),
		requestDuration: duration,
	}
})

// observer records what must be seen request by request.
type observer struct{ exporter string }

func observe(exporter string) export.Observer { return observer{exporter} }

// Request implements export.Observer.
func (o observer) Request(d time.Duration, bytes int, ok bool) {
	if h := theInstruments().requestDuration; h != nil {
		h.Record(context.Background(), d.Seconds(), metric.WithAttributes(
			attribute.String("exporter", o.exporter), attribute.Bool("ok", ok)))
	}
}

const reportInterval = 5 * time.Second

// reporter adds the changes of the running exporters' figures to the metrics.
type reporter struct{ quit chan struct{} }

func startReporter(running func() []*shared) *reporter {
	r := &reporter{quit: make(chan struct{})}
	go func() {
		t := time.NewTicker(reportInterval)
		defer t.Stop()
		for {
			select {
			case <-r.quit:
				return
			case <-t.C:
				for _, s := range running() {
					s.report(false)
				}
			}
		}
	}()
	return r
}

// stop does not wait: the reporter may be about to ask for the list that the caller has locked.
func (r *reporter) stop() { close(r.quit) }

// report adds what has changed since the last report. With end it is the last one: the queue then counts as empty.
func (s *shared) report(end bool) {
	s.reporting.Lock()
	defer s.reporting.Unlock()
	if s.ended {
		return
	}
	s.ended = end
	old, now := s.reported, s.Stats()
	if end {
		now.QueueBytes, now.QueueCapacity, now.QueueMessages, now.Oldest, now.Waiting = 0, 0, 0, time.Time{}, false
	}
	age := int64(0)
	if !now.Oldest.IsZero() {
		age = max(0, int64(time.Since(now.Oldest)/time.Second))
	}
	s.reported = now

	m := theInstruments()
	exporter := attribute.String("exporter", s.cfg.Name)
	count(m.sent, now.SentSamples-old.SentSamples, exporter)
	count(m.failed, now.FailedSamples-old.FailedSamples, exporter)
	count(m.enqueueFailed, now.EnqueueFailedSamples-old.EnqueueFailedSamples, exporter)
	count(m.rowsDelivered, now.Rows.Delivered-old.Rows.Delivered, exporter)
	count(m.rowsPartial, now.Rows.Partial-old.Rows.Partial, exporter)
	for reason, n := range now.Rows.Dropped {
		count(m.rowsDropped, n-old.Rows.Dropped[reason], exporter, attribute.String("reason", string(reason)))
	}
	count(m.requests, now.Requests-old.Requests, exporter)
	count(m.requestBytes, now.RequestBytes-old.RequestBytes, exporter)
	change(m.queueSize, now.QueueBytes-old.QueueBytes, exporter)
	change(m.queueCapacity, now.QueueCapacity-old.QueueCapacity, exporter)
	change(m.queueRequests, now.QueueMessages-old.QueueMessages, exporter)
	change(m.queueAge, age-s.age, exporter)
	s.age = age
	change(m.waiting, one(now.Waiting)-one(old.Waiting), exporter)
	count(m.wireBytes, now.WireBytes-old.WireBytes, exporter)
	count(m.retries, now.Retries-old.Retries, exporter)
	count(m.corruptFiles, now.CorruptFiles-old.CorruptFiles, exporter)
}

// report adds what has changed in a data source's counts since old.
func (c Counts) report(old Counts, exporter, gadget attribute.KeyValue) {
	m := theInstruments()
	count(m.rowsRead, c.Read-old.Read, exporter, gadget)
	for fate := range c.Fates {
		count(m.fates[fate], c.Fates[fate]-old.Fates[fate], exporter, gadget)
	}
	for state := range c.Frames {
		count(m.userFrames, c.Frames[state]-old.Frames[state], exporter, gadget, attribute.String("state", names.State(state).String()))
	}
	count(m.textsReplaced, c.Replaced-old.Replaced, exporter, gadget)
	for reason, n := range c.Dropped {
		count(m.rowsDropped, n-old.Dropped[reason], exporter, gadget, attribute.String("reason", string(reason)))
	}
}

// mostGadgets bounds the values of the attribute gadget in a process: clients of a daemon choose them.
const mostGadgets = 50

// gadgetNames gives gadgets their name in metrics. It is safe for concurrent use.
type gadgetNames struct {
	mu   sync.Mutex
	seen map[string]bool
}

var theGadgetNames gadgetNames

// of returns the attribute of a gadget with that image: the image's name without registry, tag and digest, or "other" where there are
// too many names.
func (g *gadgetNames) of(image string) attribute.KeyValue {
	const longest = 64
	name, _, _ := strings.Cut(image[strings.LastIndexByte(image, '/')+1:], "@")
	name, _, _ = strings.Cut(name, ":")
	name = strings.ToValidUTF8(name[:min(len(name), longest)], "")
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.seen[name] {
		if len(g.seen) >= mostGadgets {
			name = "other"
		} else {
			if g.seen == nil {
				g.seen = map[string]bool{}
			}
			g.seen[name] = true
		}
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
