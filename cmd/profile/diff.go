package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/flamepage"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

const diffUsage = `profile diff shows what has changed from one result to another, by function. Amounts are per second
of the run, because runs can differ in length. With --work, amounts are per unit of work. Memory in use is the value at the end.
SHARE and POINTS show a function's own share of its program, and the change of the share in percentage points, as profile check
does. profile check also judges several runs.
A result is a folder of this program, OTLP profiles in a file or in a folder of the file exporter, or a pprof profile.

  profile diff before after
  profile diff 13:05+5m 14:05+5m --service shop   # two times in the history
  profile diff before after --work 12000,15000    # requests that were served in each run

`

// runDiff compares two results.
func runDiff(args []string, out io.Writer) error {
	flags := newFlags("diff", diffUsage)
	rows := flags.Int("rows", 15, "number of functions to list")
	work := flags.Float64Slice("work", nil, "units of work in the two runs, as two `numbers`; amounts are then per unit of work")
	page := flags.StringP("output", "o", "", "`file` for a picture of the difference, or none; by default next to the later result")
	interpreters := false
	addInterpreters(flags, &interpreters)
	var p past
	p.addFlags(flags)
	if err := parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return fmt.Errorf("diff takes two results, not %d: profile diff BEFORE AFTER", flags.NArg())
	}
	if len(*work) != 0 && (len(*work) != 2 || (*work)[0] <= 0 || (*work)[1] <= 0) {
		return errors.New("--work must be two numbers above 0, such as --work 12000,15000")
	}
	kind, infos, runs, err := loadAlike(flags.Args(), p.load)
	if err != nil {
		return err
	}
	each, unit, symbol, factor := "for each second of the run", "milliseconds of ", "ms", 1e3
	switch {
	case len(*work) == 2:
		each, unit, symbol, factor = "for each unit of work", "microseconds of ", "µs", 1e6
	case isState(kind):
		each = "at the end of the run"
	}
	if report.Unit(kind) != "SECONDS" {
		unit, symbol, factor = "", strings.ReplaceAll(kind.Type, "_", " "), 1
	}
	var sides [2]report.Side
	for i, samples := range alike(runs, 1, interpreters) {
		sides[i] = report.Side{Samples: samples, Scale: factor / infos[i].Seconds}
		switch {
		case len(*work) == 2:
			sides[i].Scale = factor / (*work)[i]
		case isState(kind):
			sides[i].Scale = factor
		case infos[i].Seconds <= 0:
			return fmt.Errorf("%s has no duration: %s is missing, and no profile has a duration; compare per unit of work with --work", flags.Arg(i), runFile)
		}
	}
	opts := report.Options{Own: byOwn(kind), Group: report.Program}
	fmt.Fprintf(out, "%s%s %s\n", unit, title(kind), each)
	lines := make([]string, 0, 2)
	for i, name := range []string{"before:", "after: "} {
		lines = append(lines, fmt.Sprintf("%s %s, %.0f s: %s", name, report.Shown(infos[i].Target, 80), infos[i].Seconds, flags.Arg(i)))
		fmt.Fprintln(out, " ", lines[i])
	}
	fmt.Fprintln(out)
	if err := report.WriteDifference(out, sides[0], sides[1], *rows, opts); err != nil {
		return err
	}
	if hint := workHint(kind, sides, len(*work) == 2); hint != "" {
		fmt.Fprintln(out, "\n"+hint)
	}
	switch *page {
	case "none":
		return nil
	case "":
		*page = beside(flags.Arg(0), flags.Arg(1))
	}
	drawn := flamepage.Page{Title: "Changes: " + title(kind) + " of " + infos[1].Target, Subtitle: strings.Join(lines, "; "), Unit: symbol + " " + strings.Replace(each, "for each", "per", 1), Own: opts.Own, Interpreters: interpreters}
	for i, samples := range oneRoot(runs, 1) { // the page itself hides interpreters' frames
		drawn.Sides = append(drawn.Sides, flamepage.Side{Samples: samples, Scale: sides[i].Scale})
	}
	if err := writePage(*page, drawn); err != nil {
		return fmt.Errorf("%w: name another file with -o, or use -o none", err)
	}
	fmt.Fprintf(out, "\nflame graph of the difference in %s: open it in a browser\n", *page)
	return nil
}

// loadAlike loads the samples of the results' most informative type. All results must have the same type. Samples can have
// different periods.
func loadAlike(paths []string, load func(string) (runInfo, []receiver.Sample, error)) (kind receiver.Type, infos []runInfo, runs [][]receiver.Sample, err error) {
	for i, path := range paths {
		info, samples, err := load(path)
		if err != nil {
			return kind, nil, nil, err
		}
		types, byType := byWeight(samples)
		kind.Period = types[0].Period
		if i > 0 && kind != types[0] {
			return kind, nil, nil, fmt.Errorf("%s measures %s and %s measures %s: these cannot be compared", paths[0], title(kind), path, title(types[0]))
		}
		kind = types[0]
		var run []receiver.Sample
		for _, t := range types {
			like := t
			if like.Period = kind.Period; like == kind {
				run = append(run, byType[t]...)
			}
		}
		infos, runs = append(infos, info), append(runs, run)
	}
	return kind, infos, runs, nil
}

// beside returns the file name of a page. The page is stored next to the later result. The name of a range, such as 14:05+5m, loses
// the characters that need quotes in a shell, or that some file systems refuse.
func beside(before, after string) string {
	name := func(path string) string {
		base := filepath.Base(filepath.Clean(path))
		return strings.NewReplacer(":", "", " ", "-").Replace(strings.TrimSuffix(strings.TrimSuffix(base, filepath.Ext(base)), ".pb"))
	}
	return filepath.Join(filepath.Dir(filepath.Clean(after)), "difference-"+name(before)+"-"+name(after)+".html")
}

// workHint suggests --work if a program has possibly done more or less work than before.
func workHint(kind receiver.Type, sides [2]report.Side, given bool) string {
	if given || isState(kind) {
		return ""
	}
	var amounts [2]float64
	for i, side := range sides {
		for _, s := range side.Samples {
			amounts[i] += float64(s.Total()) * side.Scale
		}
	}
	const unlike = 0.1
	if low := min(amounts[0], amounts[1]); low > 0 && max(amounts[0], amounts[1])/low < 1+unlike {
		return ""
	}
	return "the sums differ: if the amounts of work differ, too, set them with --work BEFORE,AFTER, for example as served requests"
}

// alike returns runs whose functions can be compared: without an interpreter's own frames, and with one name for a program that was
// renamed.
func alike(runs [][]receiver.Sample, first int, interpreters bool) [][]receiver.Sample {
	runs = slices.Clone(runs)
	for i := range runs {
		if !interpreters {
			runs[i] = report.Fold(runs[i])
		}
	}
	return oneRoot(runs, first)
}

// oneRoot gives all runs the same program name if exactly one program was renamed, for example from shop-1.2 to shop-1.3. The
// runs before the index first are the earlier side.
func oneRoot(runs [][]receiver.Sample, first int) [][]receiver.Sample {
	type names struct{ service, program string }
	of := func(runs [][]receiver.Sample) []names {
		all := map[names]bool{}
		for _, run := range runs {
			for _, s := range run {
				all[names{s.Service, report.Program(s)}] = true
			}
		}
		return slices.Collect(maps.Keys(all))
	}
	before, after := of(runs[:first]), of(runs[first:])
	if len(before) != 1 || len(after) != 1 || before[0] == after[0] {
		return runs
	}
	joined := func(names ...string) string { return strings.Join(slices.Compact(names), " → ") }
	service, program := joined(before[0].service, after[0].service), joined(before[0].program, after[0].program)
	runs = slices.Clone(runs)
	for i, run := range runs {
		runs[i] = slices.Clone(run)
		for j, s := range run {
			was, attributes := report.Program(s), maps.Clone(s.Attributes)
			attributes["process.executable.name"] = program
			s.Service, s.Attributes, s.Stack = service, attributes, slices.Clone(s.Stack)
			for k, f := range s.Stack { // frames without a name show the file's name
				if filepath.Base(f.Mapping) == was {
					s.Stack[k].Mapping = program
				}
			}
			runs[i][j] = s
		}
	}
	return runs
}
