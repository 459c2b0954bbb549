package main

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// lostInKernel is the profiler's metric for samples that were lost because the ring buffer was full.
const lostInKernel = "bpf.errors.ringbuf_output"

// meter keeps the only profiler metric that is needed.
type meter struct {
	noop.Meter
	lost atomic.Uint64
}

// Int64Counter implements metric.Meter.
func (m *meter) Int64Counter(name string, options ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	if name == lostInKernel {
		return &counter{n: &m.lost}, nil
	}
	return m.Meter.Int64Counter(name, options...)
}

type counter struct {
	noop.Int64Counter
	n *atomic.Uint64
}

// Add implements metric.Int64Counter.
func (c *counter) Add(_ context.Context, n int64, _ ...metric.AddOption) {
	if n > 0 {
		c.n.Add(uint64(n))
	}
}
