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

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/flamepage"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

// report prints the result, writes the flame graph and lists the files. At the end, it returns an error if files could not be
// written.
func (r *result) report(out io.Writer) (err error) {
	defer func() { err = errors.Join(err, r.unwritten) }()
	samples := r.rcv.NewestSamples()
	if len(samples) == 0 {
		return r.nothing()
	}
	types, byType := byWeight(samples)
	for _, line := range r.unseen(samples) {
		fmt.Fprintln(out, "note:", line)
	}
	shows := map[string]string{}
	for i, t := range types { // before the tables, because the reader of the output can go away
		shows[pageName(i)] = title(t)
		r.unwritten = errors.Join(r.unwritten, writePage(filepath.Join(r.opts.dir, pageName(i)), pageOf(t, byType[t], r.run, r.opts.interpreters)))
	}
	for _, t := range types {
		if err := r.table(out, t, byType[t]); err != nil {
			return err
		}
	}
	stats := r.rcv.Stats()
	fmt.Fprintf(out, "  sent as %s in %s, %d bytes\n", plural(stats.Samples, "row"), plural(stats.Requests, "request"), stats.Bytes)
	if stats.Dropped > 0 {
		fmt.Fprintf(out, "  the first %d requests are only in %s: more arrived than this program keeps in memory\n", stats.Dropped, samplesFile)
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
		fmt.Fprintf(table, "  %s\t%s\n", path, describe(path, shows[file.Name()]))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("listing the results: %w", err)
	}
	fmt.Fprintf(out, "\nshow it:    %s open %s\n", os.Args[0], r.opts.dir)
	next := append(igrun.Prefix(), r.opts.install.ig)
	next = append(next, igArgs(r.opts, r.gadget, "localhost:4317")...)
	fmt.Fprintf(out, "to your own OpenTelemetry Collector:\n  %s\n", shellLine(next))

	if findings := r.rcv.Findings(); len(findings) > 0 {
		return fmt.Errorf("ig sent profiles that violate the protocol; please report this: %w", errors.Join(findings...))
	}
	return nil
}

// pageName returns the file name of the page for a type of a result.
func pageName(i int) string {
	if i == 0 {
		return pageFile
	}
	return fmt.Sprintf("flamegraph-%d.html", i+1)
}

// pageOf returns the flame graph page for one type's samples.
func pageOf(t receiver.Type, samples []receiver.Sample, run runInfo, interpreters bool) flamepage.Page {
	subtitle := run.Started.Format(time.DateTime + " MST")
	if run.Seconds > 0 {
		subtitle += fmt.Sprintf(", %.0f s", run.Seconds)
	}
	if run.Gadget != "" {
		subtitle += " with " + run.Gadget
	}
	return flamepage.Page{
		Title: title(t) + " of " + run.Target, Subtitle: subtitle, Sides: []flamepage.Side{{Samples: samples}}, Own: byOwn(t), Interpreters: interpreters,
	}
}

func plural(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// byWeight groups samples by type. Amounts come before counts: bytes before allocations, time before waits.
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

// isState reports whether a type measures a state, not events over time.
func isState(t receiver.Type) bool { return strings.HasPrefix(t.Type, "inuse_") }

// waits reports whether a type measures waiting.
func waits(t receiver.Type) bool {
	return strings.HasPrefix(t.Type, "off_cpu") || strings.HasPrefix(t.Type, "offcpu") || strings.HasPrefix(t.PeriodType, "off_cpu") || forLocks(t)
}

// byOwn reports whether a type's table is sorted by the program's own functions. If it were sorted by leaf, the system's
// functions would always come first.
func byOwn(t receiver.Type) bool { return waits(t) || forMemory(t) || t.Type == "page_faults" }

// forMemory reports whether a type measures an allocator's memory. The types' names are the same as in Go's heap profiles.
func forMemory(t receiver.Type) bool { return memoryTitles[t.Type] != "" && t.PeriodType == "space" }

var memoryTitles = map[string]string{
	"alloc_objects": "allocations", "alloc_space": "bytes allocated", "inuse_objects": "objects in use", "inuse_space": "bytes in use",
}

// forLocks reports whether a type measures waits for locks. The type's name is the same as in Go's mutex profiles.
func forLocks(t receiver.Type) bool { return t.PeriodType == "contentions" }

// title returns a type's title.
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
	opts, group := report.Options{Own: byOwn(t), Width: width(out)}, ""
	if !r.opts.interpreters {
		samples = report.Fold(samples)
	}
	switch {
	case r.byService:
		opts.Group, group = func(s receiver.Sample) string { return s.Service }, "SERVICE"
	case r.opts.target.one() == 0:
		opts.Group, group = report.Program, "PROGRAM"
	default:
		opts.Group = func(receiver.Sample) string { return "" }
	}
	what := "by the function that did it"
	switch {
	case opts.Own && !report.HasOwn(samples):
		what = "by the innermost function, because no stack has a function of the program itself"
	case opts.Own:
		what = "by the innermost function of the program itself, not of libraries, allocators and runtimes"
	}
	fmt.Fprintf(out, "\n%s of %s, %s:\n\n", title(t), r.run.Target, what)
	rows := report.Top(samples, r.opts.rows, opts)
	if err := report.WriteTop(out, t, group, rows, opts); err != nil {
		return err
	}
	if slices.ContainsFunc(rows, func(r report.Row) bool { return r.Error > 0 }) {
		fmt.Fprintln(out, "\n  ± is the 95 % confidence interval in points: sample for longer to reduce it. A TOTAL has the same interval as an equal SELF")
	}
	shown := 0.0
	for _, r := range rows {
		shown += r.SelfShare
	}
	if shown < 1-remarkable {
		fmt.Fprintf(out, "\n  these rows cover %.0f %% of the sum: --rows lists more, and the flame graph shows all\n", 100*shown)
	}
	if lines := explained(rows); len(lines) > 0 {
		fmt.Fprintf(out, "\n  %s\n", strings.Join(lines, "\n  "))
	}
	seconds, total := 0.0, int64(0)
	for _, s := range samples {
		amount, _ := s.Seconds()
		seconds, total = seconds+amount, total+s.Total()
	}
	switch {
	case isState(t):
		fmt.Fprintf(out, "\n  %d in all at the end, counted since the start of the run %.0f s earlier\n", total, r.run.Seconds)
	case seconds > 0:
		counted := ""
		if t.Unit == "count" {
			counted = " (" + plural(total, "sample") + ")"
		}
		fmt.Fprintf(out, "\n  %.2f seconds%s in all, in %.0f s\n", seconds, counted, r.run.Seconds)
	default:
		fmt.Fprintf(out, "\n  %d in all, in %.0f s\n", total, r.run.Seconds)
	}
	return nil
}

// width returns a terminal's width in columns, or 0 for other outputs.
func width(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// explained returns the meanings of the marks in a table's rows.
func explained(rows []report.Row) []string {
	var lines []string
	for _, mark := range report.Marks {
		if slices.ContainsFunc(rows, func(r report.Row) bool { return r.Function == mark[0] }) {
			lines = append(lines, mark[0]+": "+mark[1])
		}
	}
	var files, ends []string
	for _, r := range rows {
		if file := report.Shown(r.Function, 40); r.Nameless && len(files) < 6 && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	if len(files) > 0 {
		lines = append(lines, strings.Join(files, ", ")+": functions in a file with this name; no symbols were found, or they were read too late")
	}
	for _, r := range rows {
		if r.Function != report.NotOwn || len(ends) >= 6 {
			continue
		}
		for _, end := range r.Ends {
			ends = append(ends, report.Shown(end, 40))
		}
		if r.Group != "" && len(r.Ends) > 0 {
			ends[len(ends)-1] += " (" + report.Shown(r.Group, 32) + ")"
		}
	}
	if len(ends) > 0 {
		lines = append(lines, fmt.Sprintf("%s: these stacks end in %s. They belong to a runtime's threads that do no work for the program, or their callers were not found", report.NotOwn, strings.Join(ends, ", ")))
	}
	return lines
}

func writePage(path string, page flamepage.Page) error {
	if err := create(path, func(w io.Writer) error { return flamepage.Write(w, page) }); err != nil {
		return fmt.Errorf("writing the flame graph: %w", err)
	}
	return nil
}

// describe returns the description of a result's file. shows is the subject of the flame graph.
func describe(file, shows string) string {
	switch {
	case strings.HasSuffix(file, ".html"):
		return "flame graph of " + shows + ": open it in a browser"
	case strings.HasSuffix(file, ".svg"):
		return "flame graph of the demo's programs, as a picture for documents"
	case strings.HasSuffix(file, ".pb.gz"):
		return "pprof: go tool pprof -http=localhost:8080 " + file
	case strings.HasSuffix(file, ".jsonl"):
		return "the requests as OTLP JSON, one per line"
	case strings.HasSuffix(file, runFile):
		return "the target and the length of the run"
	}
	return ""
}

// shellLine returns a command line, quoted for a shell.
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
