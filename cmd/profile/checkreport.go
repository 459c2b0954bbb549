package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

// reference is a function's share. The output says how much growth is detectable for such a function.
const reference = 0.1

// head describes the comparison, the growth that it can detect, and rules that need more samples.
func (c checked) head() []string {
	v := c.verdict
	lines := []string{title(c.kind) + ": each function's share of its program"}
	for i, name := range []string{"before:", "after: "} {
		inputs, n := c.inputs[i][0], len(c.inputs[i])
		if n > 1 {
			inputs += fmt.Sprintf(" and %d more", n-1)
		}
		lines = append(lines, fmt.Sprintf("%s %s, %s: %s", name, plural(int64(n), "run"), plural(int64(v.Samples[i]), "sample"), report.Shown(inputs, 120)))
	}
	found := func(share float64) string {
		d := v.Detectable(share)
		return fmt.Sprintf("%.1f points (%.0f %%) for a share of %.0f %%", 100*d, 100*d/share, 100*share)
	}
	lines = append(lines,
		fmt.Sprintf("the check tested %s. In 9 of 10 cases, it detects an increase of %s, or of %s", plural(int64(v.Tested), "share"), found(reference), found(reference/10)))
	for _, r := range c.rules {
		if found, least := v.Detectable(reference), r.allowed(reference); least > 0 && found > least {
			lines = append(lines, fmt.Sprintf("note: %s: for a share of %.0f %%, only an increase of %.1f points or more is detected: this rule requires %.0f times as many samples",
				r.text, 100*reference, 100*found, max(2, (found/least)*(found/least))))
		}
	}
	return lines
}

// conclusion returns the last line of the output.
func (c checked) conclusion() string {
	switch {
	case len(c.regressions) > 0:
		return plural(int64(len(c.regressions)), "regression")
	case len(c.rules) == 0:
		changes := slices.DeleteFunc(slices.Clone(c.verdict.Rows), func(j report.Judged) bool { return !j.Significant })
		return plural(int64(len(changes)), "change") + " beyond chance"
	}
	return "no regression"
}

// table returns the heading and the rows to show. Each begins with its name.
func (c checked) table() [][]string {
	several := slices.ContainsFunc(c.verdict.Rows, func(j report.Judged) bool { return j.Measure == report.Group })
	table := [][]string{{"FUNCTION", "BEFORE", "AFTER", "POINTS", "DETECTABLE", "", "OF"}}
	for _, j := range c.verdict.Rows[:min(c.rows, len(c.verdict.Rows))] {
		verdict := ""
		switch {
		case len(j.Broken) > 0:
			verdict = "REGRESSION"
		case report.Missing(j.Function):
			verdict = "not tested"
		case !j.Tested && len(c.inputs[0])+len(c.inputs[1]) == 2 && (j.Kernel || j.Small()):
			verdict = "needs runs"
		case !j.Tested:
			verdict = "too few samples"
		case j.Significant && j.After > j.Before:
			verdict = "more"
		case j.Significant:
			verdict = "less"
		}
		name := report.Shown(cmp.Or(j.Function, j.Group), 64)
		if several && j.Measure != report.Group {
			name += " in " + report.Shown(j.Group, 32)
		}
		table = append(table, []string{
			name, report.Percent(j.Before), report.Percent(j.After), j.Points(), fmt.Sprintf("%.1f", 100*j.Detectable), verdict, string(j.Measure),
		})
	}
	return table
}

const checkLegend = "± is the 95 % confidence interval of a change, in points. \"more\" and \"less\" are beyond chance, corrected for the number of tests. Kernel functions and shares below 0.5 % vary more between runs, so they are tested only with several runs. Missing parts of stacks are not tested."

func (c checked) text(w io.Writer) error {
	fmt.Fprintln(w, strings.Join(c.head(), "\n")+"\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, cells := range c.table() {
		fmt.Fprintf(t, "%s\t  %s\n", strings.Join(cells[1:], "\t"), cells[0])
	}
	_ = t.Flush() // runCheck's writer keeps its errors
	if n := len(c.verdict.Rows) - c.rows; n > 0 {
		fmt.Fprintf(w, "and %d more\n", n)
	}
	fmt.Fprintf(w, "\n%s\n\n%s\n", checkLegend, c.conclusion())
	for _, r := range c.regressions {
		fmt.Fprintln(w, " ", r)
	}
	return nil
}

// code quotes a workload's text for tables in Markdown.
func code(s string) string {
	return "`" + strings.NewReplacer("`", "'", "|", `\|`).Replace(s) + "`"
}

func (c checked) markdown(w io.Writer) error {
	fmt.Fprintf(w, "### Profile check: %s\n\n", c.conclusion())
	for _, r := range c.regressions {
		fmt.Fprintln(w, "- "+code(r))
	}
	fmt.Fprintln(w)
	for i, cells := range c.table() {
		name, rule := code(cells[0]), ""
		if i == 0 {
			name, rule = cells[0], "|---|"+strings.Repeat("--:|", len(cells)-1)+"\n"
		}
		fmt.Fprintf(w, "| %s | %s |\n%s", name, strings.Join(cells[1:], " | "), rule)
	}
	fmt.Fprintln(w)
	for _, line := range c.head() {
		fmt.Fprintf(w, "%s  \n", code(line))
	}
	fmt.Fprintln(w, checkLegend)
	return nil
}

func (c checked) json(w io.Writer) error {
	side := func(i int) map[string]any {
		return map[string]any{"inputs": c.inputs[i], "runs": len(c.inputs[i]), "samples": c.verdict.Samples[i]}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(map[string]any{
		"measures": title(c.kind), "confidence": report.Confidence, "tested": c.verdict.Tested, "regression": len(c.regressions) > 0, "shares": c.verdict.Rows,
		"before": side(0), "after": side(1),
	})
}
