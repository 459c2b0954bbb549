package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

const diffUsage = `profile diff shows what has changed from one result to another, by function. Amounts are for each second
of the run, as the runs may differ in length; with --work for each unit of the work that was done.

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
		types, byType := receiver.ByType(samples)
		if i == 1 && !comparable(kind, types[0]) {
			return fmt.Errorf("%s measures %s and %s measures %s: that cannot be compared", flags.Arg(0), title(kind), path, title(types[0]))
		}
		kind, infos[i] = types[0], info
		sides[i] = report.Side{Samples: byType[kind], Scale: 1 / info.Seconds}
		if len(*work) == 2 {
			sides[i].Scale = 1 / (*work)[i]
		}
	}
	opts := report.Options{}
	if waits(kind) {
		opts.Leaf = report.Own
	}
	unit, per := "", "second of the run"
	if len(*work) == 2 {
		per = "unit of work"
	}
	if report.Unit(kind) == "SECONDS" {
		unit = "milliseconds of "
		for i := range sides {
			sides[i].Scale *= 1000
		}
		if len(*work) == 2 {
			unit = "microseconds of "
			for i := range sides {
				sides[i].Scale *= 1000
			}
		}
	}
	fmt.Fprintf(out, "%s%s for each %s\n  before: %s, %.0f s: %s\n  after:  %s, %.0f s: %s\n\n", unit, title(kind), per,
		infos[0].Target, infos[0].Seconds, flags.Arg(0), infos[1].Target, infos[1].Seconds, flags.Arg(1))
	_ = page
	return report.WriteDifference(out, sides[0], sides[1], *rows, opts)
}

// comparable reports whether two types measure the same, if not as often.
func comparable(a, b receiver.Type) bool {
	a.Period, b.Period = 0, 0
	return a == b
}
