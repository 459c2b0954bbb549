package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/flamepage"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

// report prints what has arrived, writes the flame graph and says where everything is.
func (r *result) report(out io.Writer) error {
	samples := r.rcv.NewestSamples()
	if len(samples) == 0 {
		return r.nothing()
	}
	types, byType := byWeight(samples)
	for i, t := range types {
		name := pageFile
		if i > 0 {
			name = fmt.Sprintf("flamegraph-%d.html", i+1)
		}
		err := writePage(filepath.Join(r.opts.dir, name), flamepage.Page{
			Title:    title(t) + " of " + r.run.Target,
			Subtitle: fmt.Sprintf("%s, %.0f s with %s", r.run.Started.Format(time.DateTime+" MST"), r.run.Seconds, r.run.Gadget),
			Sides:    []flamepage.Side{{Samples: byType[t]}},
		})
		if err != nil {
			return err
		}
		if err := r.table(out, t, byType[t]); err != nil {
			return err
		}
	}
	stats := r.rcv.Stats()
	requests := "requests"
	if stats.Requests == 1 {
		requests = "request"
	}
	fmt.Fprintf(out, "  %d samples in %d %s, %d bytes\n", stats.Samples, stats.Requests, requests, stats.Bytes)
	if stats.Dropped > 0 {
		fmt.Fprintf(out, "  the first %d requests are only in %s: more came than this program holds\n", stats.Dropped, samplesFile)
	}
	for _, line := range r.remarks(samples) {
		fmt.Fprintln(out, "note:", line)
	}

	fmt.Fprintln(out, "\nwritten:")
	files, err := os.ReadDir(r.opts.dir)
	if err != nil {
		return fmt.Errorf("listing the results: %w", err)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, file := range files {
		path := filepath.Join(r.opts.dir, file.Name())
		fmt.Fprintf(table, "  %s\t%s\n", path, describe(path))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("listing the results: %w", err)
	}
	fmt.Fprintf(out, "\nshow it:    %s open %s\n", os.Args[0], r.opts.dir)
	next := append(igrun.Prefix(), r.opts.install.ig)
	next = append(next, igArgs(r.opts, r.gadget, "localhost:4317")...)
	fmt.Fprintf(out, "to your own OpenTelemetry Collector:\n  %s\n", shellLine(next))

	findings := r.rcv.Findings()
	if len(findings) > 0 {
		return fmt.Errorf("what ig sent breaks the protocol, which is a defect: %w", errors.Join(findings...))
	}
	return nil
}

// byWeight sorts samples by their type. How much comes before how often: bytes before allocations, and time before waits.
func byWeight(samples []receiver.Sample) ([]receiver.Type, map[receiver.Type][]receiver.Sample) {
	types, byType := receiver.ByType(samples)
	slices.SortStableFunc(types, func(a, b receiver.Type) int {
		switch {
		case a.Unit == "count" && b.Unit != "count":
			return 1
		case a.Unit != "count" && b.Unit == "count":
			return -1
		}
		return 0
	})
	return types, byType
}

// isState reports whether a type measures what is, and not what happens in a time.
func isState(t receiver.Type) bool { return strings.HasPrefix(t.Type, "inuse_") }

// waits reports whether a type measures waiting.
func waits(t receiver.Type) bool {
	return strings.HasPrefix(t.Type, "off_cpu") || strings.HasPrefix(t.Type, "offcpu") || strings.HasPrefix(t.PeriodType, "off_cpu") || forLocks(t)
}

// byOwn reports whether what counts of a type is which function of the program it was, and not the functions of the
// system that all of it ends in.
func byOwn(t receiver.Type) bool { return waits(t) || forMemory(t) }

// forMemory reports whether a type measures memory of an allocator, in the words of Go's heap profiles.
func forMemory(t receiver.Type) bool { return memoryTitles[t.Type] != "" && t.PeriodType == "space" }

var memoryTitles = map[string]string{
	"alloc_objects": "allocations", "alloc_space": "bytes allocated", "inuse_objects": "objects in use", "inuse_space": "bytes in use",
}

// forLocks reports whether a type measures waits for locks, in the words of Go's profiles of mutexes.
func forLocks(t receiver.Type) bool { return t.PeriodType == "contentions" }

// title says what a type measures.
func title(t receiver.Type) string {
	switch {
	case forLocks(t) && t.Type == "delay":
		return "time waiting for locks"
	case forLocks(t):
		return "waits for locks"
	case forMemory(t):
		return memoryTitles[t.Type]
	case waits(t):
		return "time off the CPU"
	case t.PeriodType == "cpu":
		return "CPU time"
	case t.Type == "":
		return "samples"
	}
	return strings.ReplaceAll(t.Type, "_", " ")
}

func (r *result) table(out io.Writer, t receiver.Type, samples []receiver.Sample) error {
	opts, group := report.Options{Leaf: report.Leaf}, ""
	if r.opts.target.pid == 0 {
		opts.Group, group = report.Program, "PROGRAM"
	} else {
		opts.Group = func(receiver.Sample) string { return "" }
	}
	what := "by the function that did it"
	if byOwn(t) {
		opts.Leaf, what = report.Own, "by the first function of the program's own"
	}
	fmt.Fprintf(out, "\n%s of %s, %s:\n\n", title(t), r.run.Target, what)
	if err := report.WriteTop(out, t, group, report.Top(samples, r.opts.rows, opts)); err != nil {
		return err
	}
	seconds, total := 0.0, int64(0)
	for _, s := range samples {
		amount, _ := s.Seconds()
		seconds, total = seconds+amount, total+s.Total()
	}
	switch {
	case isState(t):
		fmt.Fprintf(out, "\n  %d in all at the end, of what began in these %.0f s\n", total, r.run.Seconds)
	case seconds > 0:
		fmt.Fprintf(out, "\n  %.2f seconds in all, in %.0f s\n", seconds, r.run.Seconds)
	default:
		fmt.Fprintf(out, "\n  %d in all, in %.0f s\n", total, r.run.Seconds)
	}
	return nil
}

func writePage(path string, page flamepage.Page) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("writing the flame graph: %w", err)
	}
	return errors.Join(flamepage.Write(f, page), f.Close())
}

func describe(file string) string {
	switch {
	case strings.HasSuffix(file, ".html"):
		return "flame graph: open it in a browser"
	case strings.HasSuffix(file, ".pb.gz"):
		return "pprof: go tool pprof -http=localhost:8080 " + file
	case strings.HasSuffix(file, ".jsonl"):
		return "the requests as OTLP JSON, one a line"
	case strings.HasSuffix(file, runFile):
		return "what was sampled, and for how long"
	}
	return ""
}

// shellLine quotes what a shell would take apart.
func shellLine(args []string) string {
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = arg
		if strings.ContainsAny(arg, " $&\"'();<>|*?") {
			quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
