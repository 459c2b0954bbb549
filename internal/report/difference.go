package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// Side is one of two profiles to compare.
type Side struct {
	Samples []receiver.Sample
	// Scale multiplies the amounts to make the two sides comparable, for example by the inverse of the run's length in seconds.
	// Amounts are seconds if the samples measure time.
	Scale float64
}

// Change holds a function's own scaled amounts in two profiles.
type Change struct {
	Group, Function string
	Before, After   float64
}

// amounts returns the own amount of each function of each group.
func (s Side) amounts(opts Options) map[[2]string]float64 {
	functions := map[[2]string]float64{}
	timed := len(s.Samples) > 0 && isTime(receiver.TypeOf(s.Samples[0]))
	for _, r := range Top(s.Samples, 0, opts) {
		amount := float64(r.Self)
		if timed {
			amount = r.Seconds
		}
		functions[[2]string{r.Group, r.Function}] += amount * s.Scale
	}
	return functions
}

// Difference returns the functions that have an own amount on either side, the largest change first.
func Difference(before, after Side, opts Options) []Change {
	opts = opts.over(before.Samples, after.Samples)
	b := before.amounts(opts)
	a := after.amounts(opts)
	functions := maps.Clone(b)
	maps.Copy(functions, a)
	changes := make([]Change, 0, len(functions))
	for f := range functions {
		if b[f] != 0 || a[f] != 0 {
			changes = append(changes, Change{f[0], f[1], b[f], a[f]})
		}
	}
	slices.SortFunc(changes, func(x, y Change) int {
		return cmp.Or(cmp.Compare(math.Abs(y.After-y.Before), math.Abs(x.After-x.Before)), cmp.Compare(x.Group, y.Group), cmp.Compare(x.Function, y.Function))
	})
	return changes
}

// WriteDifference writes the n largest changes as a table for a terminal. It adds one line for all other functions, and the
// sums. The function's shares, their change in points and a star for a statistically significant change are Judge's.
func WriteDifference(w io.Writer, before, after Side, n int, opts Options) error {
	changes := Difference(before, after, opts)
	// Some inputs have rounded run lengths, so their amounts per second are also rounded.
	const rounding = 1e-6
	if !slices.ContainsFunc(changes, func(c Change) bool { return math.Abs(c.After-c.Before) > rounding*max(c.Before, c.After) }) {
		sum := 0.0
		for _, c := range changes {
			sum += c.After
		}
		if _, err := fmt.Fprintf(w, "no difference: %s before and after, and the same in each function\n", short(sum)); err != nil {
			return fmt.Errorf("writing the difference: %w", err)
		}
		return nil
	}
	several, shares := false, map[[2]string]string{}
	for _, j := range Judge([][]receiver.Sample{before.Samples}, [][]receiver.Sample{after.Samples}, false, opts).Rows {
		several = several || j.Measure == Group
		mark := " "
		if j.Significant {
			mark = "*"
		}
		shares[[2]string{j.Group, j.Function}] = fmt.Sprintf("%s → %s\t%s %s", Percent(j.Before), Percent(j.After), j.Points(), mark)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(c Change, shares string) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t  %s\n", short(c.Before), short(c.After), signed(c.After-c.Before), shares, c.Function)
	}
	fmt.Fprintln(t, "BEFORE\tAFTER\tCHANGE\tSHARE\tPOINTS  \t  FUNCTION")
	n = min(n, len(changes))
	for _, c := range changes[:n] {
		of := shares[[2]string{c.Group, c.Function}]
		if c.Function = Shown(c.Function, maxFunction); several {
			c.Function += " in " + Shown(c.Group, maxGroup)
		}
		line(c, of)
	}
	rest, all := Change{Function: "all others"}, Change{Function: "in all"}
	for i, c := range changes {
		all.Before, all.After = all.Before+c.Before, all.After+c.After
		if i >= n {
			rest.Before, rest.After = rest.Before+c.Before, rest.After+c.After
		}
	}
	if n < len(changes) {
		line(rest, "\t")
	}
	if all.Before > 0 {
		all.Function += fmt.Sprintf(" (%+.0f%%)", 100*(all.After/all.Before-1))
	}
	line(all, "\t")
	if err := t.Flush(); err != nil {
		return fmt.Errorf("writing the difference: %w", err)
	}
	if _, err := fmt.Fprintln(w, "\nSHARE is a function's own share of its program; POINTS is its change, in percentage points; ± is its 95 % confidence interval\n* is beyond chance, corrected for the number of tests, as in profile check"); err != nil {
		return fmt.Errorf("writing the difference: %w", err)
	}
	return nil
}

// short writes an amount with three significant digits.
func short(v float64) string {
	digits := 0
	if a := math.Abs(v); a > 0 && a < 100 {
		digits = min(4, 2-int(math.Floor(math.Log10(a))))
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

func signed(v float64) string {
	s := short(v)
	if v > 0 {
		s = "+" + s
	}
	return s
}
