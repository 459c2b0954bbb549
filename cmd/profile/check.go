package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

const checkUsage = `profile check finds functions whose share of their program's samples has grown, and tests whether chance explains the
difference. If all functions become slower at the same rate, it finds nothing. Give one result for each side, or several runs on both sides of "--". Several runs show
how much the program varies by itself. It takes the same inputs as profile diff.

  profile check before after --fail-on 'share>+3pp'
  profile check --fail-on 'total>+10%' --format markdown base-1 base-2 base-3 -- new-1 new-2 new-3

A rule of --fail-on is [PROGRAM:]WHAT>+N, with N in percentage points (pp) or in percent of the share before (%). WHAT is
  share or self   a function's own share
  total           its share, including the functions that it calls
  service         the share of a program, or of a container's service, in all samples
A regression is an increase in a share that exceeds the rule and that chance does not explain. The test corrects for the number of
functions (Holm). In a simulation, 1 of 100 comparisons of an unchanged program with 50 functions fails, and up to 2 of 100 with ten functions
and three runs for each side. On a busy machine more fail, because samples there are not independent: give three or more runs for each side.

Exit code: 0 no regression, 1 a regression, 2 anything else, such as a file that cannot be read.

`

var (
	// errRegression makes main exit with 1.
	errRegression = errors.New("regression")
	// errCheck is any other error of check. It makes main exit with 2.
	errCheck = errors.New("cannot check")
)

// rule is a rule of --fail-on.
type rule struct {
	text, group string
	measure     report.Measure
	least       float64
	relative    bool
}

var ruleText = regexp.MustCompile(`^ *(?:(.*[^ ]) *:)? *(?:share|(self|total|service)) *> *\+? *([0-9]+(?:\.[0-9]+)?) *(pp|%) *$`)

func parseRules(texts []string) (rules []rule, err error) {
	for _, text := range texts {
		m := ruleText.FindStringSubmatch(text)
		if m == nil {
			return nil, fmt.Errorf("--fail-on %q: write a rule such as 'share>+3pp', 'total>+10%%' or 'shop:share>+3pp'", text)
		}
		least, _ := strconv.ParseFloat(m[3], 64) // a number, by the expression
		rules = append(rules, rule{
			text: text, group: m[1], measure: cmp.Or(report.Measure(m[2]), report.Self), least: least / 100, relative: m[4] == "%",
		})
	}
	return rules, nil
}

// allowed returns the increase of a share that the rule allows.
func (r rule) allowed(before float64) float64 {
	if r.relative {
		return r.least * before
	}
	return r.least
}

// broken reports whether a change is a regression.
func (r rule) broken(j report.Judged) bool {
	return j.Measure == r.measure && (r.group == "" || r.group == j.Group) && j.Significant && j.After-j.Before > r.allowed(j.Before)
}

// described describes a regression.
func described(j report.Judged, rule string) string {
	of := map[report.Measure]string{report.Self: "own share", report.Total: "share with its callees", report.Group: "share of all samples"}[j.Measure]
	text := fmt.Sprintf("%s: %s %s → %s, %s points", report.Shown(cmp.Or(j.Function, j.Group), 200), of, report.Percent(j.Before), report.Percent(j.After), j.Points())
	if j.Before > 0 {
		text += fmt.Sprintf(" (%+.0f %%)", 100*(j.After/j.Before-1))
	}
	return text + ", " + rule
}

// checked is the result of a check.
type checked struct {
	kind        receiver.Type
	inputs      [2][]string
	verdict     report.Verdict
	rules       []rule
	regressions []string
	rows        int
}

// runCheck judges two results, or two sets of runs.
func runCheck(args []string, out io.Writer) (err error) {
	defer func() {
		if err != nil && !errors.Is(err, errRegression) {
			err = fmt.Errorf("%w: %w", errCheck, err)
		}
	}()
	flags := newFlags("check", checkUsage)
	failOn := flags.StringSlice("fail-on", nil, "`rule` for an increase that counts as a regression; separate several rules with commas, or repeat the flag")
	formats := map[string]func(checked, io.Writer) error{"text": checked.text, "json": checked.json, "markdown": checked.markdown}
	format := flags.String("format", "text", "output format: text, json, or markdown (for a pull request)")
	var c checked
	flags.IntVar(&c.rows, "rows", 15, "number of functions to list; json lists all")
	interpreters := false
	addInterpreters(flags, &interpreters)
	if err := parse(flags, args); err != nil {
		return err
	}
	write := formats[*format]
	if write == nil {
		return meant(fmt.Errorf("--format %s: must be text, json or markdown", *format), *format, []string{"text", "json", "markdown"})
	}
	if c.rules, err = parseRules(*failOn); err != nil {
		return err
	}
	inputs := flags.Args()
	first := flags.ArgsLenAtDash()
	if first < 0 && len(inputs) == 2 {
		first = 1
	}
	if first < 1 || first == len(inputs) {
		return errors.New("check takes two results, or several runs on both sides of \"--\": profile check BEFORE… -- AFTER…")
	}
	c.inputs = [2][]string{inputs[:first], inputs[first:]}
	var runs [][]receiver.Sample
	if c.kind, _, runs, err = loadAlike(inputs, load); err != nil {
		return err
	}
	runs = alike(runs, first, interpreters)
	totals := slices.ContainsFunc(c.rules, func(r rule) bool { return r.measure == report.Total })
	c.verdict = report.Judge(runs[:first], runs[first:], totals, report.Options{Own: byOwn(c.kind), Group: report.Program})
	if err := c.apply(); err != nil {
		return err
	}
	w := bufio.NewWriter(out)
	if err := cmp.Or(write(c, w), w.Flush()); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	if n := len(c.regressions); n > 1 {
		return fmt.Errorf("%w: %s; and %d more", errRegression, c.regressions[0], n-1)
	} else if n == 1 {
		return fmt.Errorf("%w: %s", errRegression, c.regressions[0])
	}
	return nil
}

// apply applies the rules. A rule about an unknown program is an error, because no change could break it.
func (c *checked) apply() error {
	names := map[string]bool{}
	for i, j := range c.verdict.Rows {
		names[j.Group] = true
		broken := []string{}
		for _, r := range c.rules {
			if r.broken(j) {
				broken = append(broken, r.text)
				c.regressions = append(c.regressions, described(j, r.text))
			}
		}
		c.verdict.Rows[i].Broken = broken
	}
	for _, r := range c.rules {
		if r.group != "" && !names[r.group] {
			return meant(fmt.Errorf("--fail-on %s: the results have no program %q", r.text, r.group), r.group, slices.Sorted(maps.Keys(names)))
		}
	}
	return nil
}
