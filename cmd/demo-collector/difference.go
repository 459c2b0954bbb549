package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// change is what one function took of the Collector's CPU, for one request of the load.
type change struct {
	function      string
	before, after time.Duration
}

// perRequest returns the CPU time by function and in all, for one request. The profiler sees less
// of the phase than the counters, as it starts after them: so the time is the kernel's count, and
// the samples only share it out.
func (p *phase) perRequest() (functions map[string]time.Duration, all time.Duration, err error) {
	if p.requests == 0 {
		return nil, 0, fmt.Errorf("the Collector took no request %s the change", p.name)
	}
	seconds := 0.0
	rows := receiver.Top(p.samples, 0)
	for _, r := range rows {
		seconds += r.Seconds
	}
	if seconds == 0 {
		return nil, 0, fmt.Errorf("the profiles %s the change hold no CPU time", p.name)
	}
	scale := p.cpu.Seconds() / seconds / float64(p.requests)
	functions = map[string]time.Duration{}
	for _, r := range rows {
		d := time.Duration(r.Seconds * scale * float64(time.Second))
		functions[r.Function] += d
		all += d
	}
	return functions, all, nil
}

// difference returns the functions whose CPU time has changed most, largest change first.
func difference(before, after map[string]time.Duration) []change {
	changes := make([]change, 0, len(before)+len(after))
	for f, d := range before {
		changes = append(changes, change{f, d, after[f]})
	}
	for f, d := range after {
		if _, both := before[f]; !both {
			changes = append(changes, change{f, 0, d})
		}
	}
	slices.SortFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare((b.after-b.before).Abs(), (a.after-a.before).Abs()), cmp.Compare(a.function, b.function))
	})
	return changes
}

// writeDifference writes the table of what has changed.
func writeDifference(w io.Writer, before, after *phase) error {
	b, allBefore, errBefore := before.perRequest()
	a, allAfter, errAfter := after.perRequest()
	if err := errors.Join(errBefore, errAfter); err != nil {
		return err
	}
	changes := difference(b, a)
	fmt.Fprintf(w, "what the change from compression %s to %s did, in microseconds of CPU for each request of the load:\n", before.compression, after.compression)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(before, after time.Duration, name string) {
		fmt.Fprintf(t, "%d\t%d\t%+d\t  %s\n", micros(before), micros(after), micros(after)-micros(before), name)
	}
	fmt.Fprintln(t, "BEFORE\tAFTER\tCHANGE\t  FUNCTION")
	for _, c := range changes[:min(tableRows, len(changes))] {
		line(c.before, c.after, oneLine(c.function))
	}
	rest := change{function: "all others"}
	for _, c := range changes[min(tableRows, len(changes)):] {
		rest.before += c.before
		rest.after += c.after
	}
	line(rest.before, rest.after, rest.function)
	line(allBefore, allAfter, fmt.Sprintf("in all (%+.0f%%)", 100*(allAfter.Seconds()/allBefore.Seconds()-1)))
	if err := t.Flush(); err != nil {
		return fmt.Errorf("writing the difference: %w", err)
	}
	for _, p := range []*phase{before, after} {
		_, err := fmt.Fprintf(w, "%s: %d requests, %.1f CPU seconds of the Collector by the kernel's count, %d samples\n", p.name, p.requests, p.cpu.Seconds(), total(p.samples))
		if err != nil {
			return fmt.Errorf("writing the difference: %w", err)
		}
	}
	return nil
}

func micros(d time.Duration) int64 { return int64(math.Round(float64(d) / float64(time.Microsecond))) }

func total(samples []receiver.Sample) (n int64) {
	for _, s := range samples {
		n += s.Total()
	}
	return n
}
