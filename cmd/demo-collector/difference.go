package main

import (
	"fmt"
	"io"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

// side returns the phase for a comparison in CPU microseconds per request. The profiler starts after the counters, so it sees
// less of the phase. So the kernel's CPU time is the total, and the samples only divide it.
func (p *phase) side() (report.Side, error) {
	if p.requests == 0 {
		return report.Side{}, fmt.Errorf("the Collector accepted no requests %s the change", p.name)
	}
	seconds := 0.0
	for _, s := range p.samples {
		amount, _ := s.Seconds()
		seconds += amount
	}
	if seconds == 0 {
		return report.Side{}, fmt.Errorf("the profiles %s the change have no CPU time", p.name)
	}
	return report.Side{Samples: p.samples, Scale: 1e6 * p.cpu.Seconds() / seconds / float64(p.requests)}, nil
}

// writeDifference writes the table of changes.
func writeDifference(w io.Writer, before, after *phase) error {
	b, err := before.side()
	if err != nil {
		return err
	}
	a, err := after.side()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "change from compression %s to %s, in microseconds of CPU per request:\n", before.compression, after.compression)
	if err := report.WriteDifference(w, b, a, tableRows, report.Options{}); err != nil {
		return err
	}
	for _, p := range []*phase{before, after} {
		_, err := fmt.Fprintf(w, "%s: %d requests, %.1f s of Collector CPU time (kernel), %d samples\n", p.name, p.requests, p.cpu.Seconds(), total(p.samples))
		if err != nil {
			return fmt.Errorf("writing the difference: %w", err)
		}
	}
	return nil
}

func total(samples []receiver.Sample) (n int64) {
	for _, s := range samples {
		n += s.Total()
	}
	return n
}
