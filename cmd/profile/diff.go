package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/flamepage"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

const diffUsage = `profile diff shows what has changed from one result to another, by function. Amounts are for each second
of the run, as the runs may differ in length; with --work for each unit of the work that was done. Memory in use is that at the end.

  profile diff before after
  profile diff before after --work 12000,15000    # requests that were served meanwhile

`

// runDiff compares two results.
func runDiff(args []string, out io.Writer) error {
	flags := newFlags("diff", diffUsage)
	rows := flags.Int("rows", 15, "functions to list")
	work := flags.Float64Slice("work", nil, "what each run got done, two `numbers`: amounts are then for each unit of it")
	page := flags.StringP("output", "o", "difference.html", "`file` to draw the difference in; empty for none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return fmt.Errorf("diff takes two results, not %d: profile diff BEFORE AFTER", flags.NArg())
	}
	if *rows < 1 {
		return fmt.Errorf("--rows %d: takes 1 or more", *rows)
	}
	if len(*work) != 0 && (len(*work) != 2 || (*work)[0] <= 0 || (*work)[1] <= 0) {
		return errors.New("--work takes two numbers above 0, as in --work 12000,15000")
	}
	var sides [2]report.Side
	var kind receiver.Type
	var infos [2]runInfo
	for i, path := range flags.Args() {
		info, samples, err := load(path)
		if err != nil {
			return err
		}
		types, byType := byWeight(samples)
		if i == 1 && !sameKind(kind, types[0]) {
			return fmt.Errorf("%s measures %s and %s measures %s: that cannot be compared", flags.Arg(0), title(kind), path, title(types[0]))
		}
		kind, infos[i] = types[0], info
		sides[i] = report.Side{Samples: byType[kind], Scale: 1 / info.Seconds}
		switch {
		case len(*work) == 2:
			sides[i].Scale = 1 / (*work)[i]
		case isState(kind):
			sides[i].Scale = 1
		}
	}
	opts := report.Options{Leaf: report.Leaf}
	if byOwn(kind) {
		opts.Leaf = report.Own
	}
	unit, symbol, per := "", strings.ReplaceAll(kind.Type, "_", " "), "second of the run"
	if len(*work) == 2 {
		per = "unit of work"
	}
	if report.Unit(kind) == "SECONDS" {
		unit, symbol = "milliseconds of ", "ms"
		factor := 1e3
		if len(*work) == 2 {
			unit, symbol, factor = "microseconds of ", "µs", 1e6
		}
		for i := range sides {
			sides[i].Scale *= factor
		}
	}
	each := "for each " + per
	if isState(kind) && len(*work) == 0 {
		each = "at the end of the run"
	}
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
	if *page == "" {
		return nil
	}
	drawn := flamepage.Page{Title: "What has changed: " + title(kind) + " of " + infos[1].Target, Subtitle: strings.Join(lines, "; "), Unit: symbol + " " + strings.Replace(each, "for each", "per", 1)}
	for _, side := range sides {
		drawn.Sides = append(drawn.Sides, flamepage.Side{Samples: side.Samples, Scale: side.Scale})
	}
	if err := writePage(*page, drawn); err != nil {
		return err
	}
	fmt.Fprintf(out, "\ndrawn in %s: open it in a browser\n", *page)
	return nil
}

// sameKind reports whether two types measure the same, if not as often.
func sameKind(a, b receiver.Type) bool {
	a.Period, b.Period = 0, 0
	return a == b
}
