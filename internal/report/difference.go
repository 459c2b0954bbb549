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
	Function      string
	Before, After float64
}

// amounts returns each function's own amount.
func (s Side) amounts(opts Options) map[string]float64 {
	opts.Group = func(receiver.Sample) string { return "" }
	functions := map[string]float64{}
	timed := len(s.Samples) > 0 && isTime(receiver.TypeOf(s.Samples[0]))
	for _, r := range Top(s.Samples, 0, opts) {
		amount := float64(r.Self)
		if timed {
			amount = r.Seconds
		}
		functions[r.Function] += amount * s.Scale
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
			changes = append(changes, Change{f, b[f], a[f]})
		}
	}
	slices.SortFunc(changes, func(x, y Change) int {
		return cmp.Or(cmp.Compare(math.Abs(y.After-y.Before), math.Abs(x.After-x.Before)), cmp.Compare(x.Function, y.Function))
	})
	return changes
}

// WriteDifference writes the n largest changes as a table for a terminal. It adds one line for all other functions, and the
// sums. Points are the change of the function's share, as in Judge. A star marks a statistically significant difference.
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
	opts.Group = func(receiver.Sample) string { return "" }
	points := map[string]string{}
	for _, j := range Judge([][]receiver.Sample{before.Samples}, [][]receiver.Sample{after.Samples}, false, opts).Rows {
		points[j.Function] = j.Points() + "  "
		if j.Significant {
			points[j.Function] = j.Points() + " *"
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(c Change, points string) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t  %s\n", short(c.Before), short(c.After), signed(c.After-c.Before), points, c.Function)
	}
	fmt.Fprintln(t, "BEFORE\tAFTER\tCHANGE\tPOINTS  \t  FUNCTION")
	n = min(n, len(changes))
	for _, c := range changes[:n] {
		of := points[c.Function]
		c.Function = Shown(c.Function, maxFunction)
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
		line(rest, "")
	}
	if all.Before > 0 {
		all.Function += fmt.Sprintf(" (%+.0f%%)", 100*(all.After/all.Before-1))
	}
	line(all, "")
	if err := t.Flush(); err != nil {
		return fmt.Errorf("writing the difference: %w", err)
	}
	if _, err := fmt.Fprintln(w, "\nPOINTS is the change of a function's share, in percentage points; ± is its 95 % confidence interval\n* is beyond chance, corrected for the number of functions"); err != nil {
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
