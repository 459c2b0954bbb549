package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// Measure defines the whole that a share is a part of.
type Measure string

// A function's own share, and its share with callees, are parts of its group. A group's share is a part of everything.
const (
	Self  Measure = "self"
	Total Measure = "total"
	Group Measure = "service"
)

// Judged compares two sides for one function of a group, or for a group.
type Judged struct {
	Measure  Measure `json:"of"`
	Group    string  `json:"service"`
	Function string  `json:"function,omitempty"`
	// Before and After are shares from 0 to 1. Low and High are the confidence limits of the difference.
	Before float64 `json:"before"`
	After  float64 `json:"after"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	// Kernel marks a kernel function. Interrupts and scheduling occur in bursts, so their samples are not independent. Only
	// several runs show their normal variation.
	Kernel bool `json:"kernel"`
	// Tested reports that there are enough samples for a test. Kernel functions and small shares also need several runs. Missing
	// parts of stacks are not tested, because they show a change of the profiler.
	Tested bool `json:"tested"`
	// P is the probability of such a difference without a change, corrected for the number of tests. It is 1 without a test.
	P float64 `json:"p"`
	// Detectable is the increase of the share that is significant in 9 of 10 cases.
	Detectable float64 `json:"found_from"`
	// Significant reports whether the difference is statistically significant.
	Significant bool `json:"significant"`
	// Broken lists the caller's rules that the difference breaks. Judge leaves it empty.
	Broken []string `json:"broken"`

	sides  [2]draw
	factor float64 // the variation of the runs, in units of the sampling variation
}

// Points returns the difference in percentage points with its random error.
func (j Judged) Points() string {
	d := j.After - j.Before
	return fmt.Sprintf("%+.1f ±%.1f", 100*d, 100*max(j.High-d, d-j.Low))
}

// Verdict compares two sides for all functions.
type Verdict struct {
	// Rows begins with significant differences and ends with untested functions.
	Rows []Judged
	// Tested is the number of rows with enough samples for a test.
	Tested int
	// Samples are the numbers of both sides.
	Samples [2]float64

	largest [2]float64 // samples of the largest group
	typical spread
}

// Detectable returns the increase of a share of the largest group that is significant in 9 of 10 cases.
func (v Verdict) Detectable(share float64) float64 {
	f := v.typical.factor
	return detectable(share, v.largest[0]/f, v.largest[1]/f, FalseAlarms/float64(max(1, v.Tested)), v.typical.freedom)
}

// tally is the sum of weights, and of their squares. A weight w in n samples adds n times (w/n)² to the squares.
type tally struct {
	weight, squares, samples float64
	kernel                   bool // the part is a kernel function
}

// of returns the share of a part, and the number of samples of equal weight with the same uncertainty.
func (t tally) of(all tally) draw {
	if all.weight <= 0 {
		return draw{}
	}
	p := t.weight / all.weight
	variance := (1-p)*(1-p)*t.squares + p*p*(all.squares-t.squares)
	if variance <= 0 || p >= 1 {
		return draw{p, all.weight * all.weight / all.squares}
	}
	return draw{p, p * (1 - p) * all.weight * all.weight / variance}
}

// tallyOf counts each hit of a timer. Other events can occur together, for example the faults of one call, so each sample
// counts once.
func tallyOf(s receiver.Sample) tally {
	weight, n := s.Amount(), max(1, float64(len(s.Timestamps)))
	switch {
	case isSampled(receiver.TypeOf(s)):
		n = float64(s.Total())
	case s.Unit == "nanoseconds" && s.PeriodUnit == s.Unit && s.PeriodType == s.Type && s.Period > 1:
		n = max(1, float64(s.Total())/float64(s.Period))
	}
	if weight <= 0 {
		return tally{}
	}
	return tally{weight: weight, squares: weight * weight / n, samples: n}
}

type judgedKey struct {
	measure         Measure
	group, function string
}

// whole returns the key of the whole that a part belongs to.
func (k judgedKey) whole() judgedKey {
	if k.measure == Group {
		return judgedKey{}
	}
	return judgedKey{Group, k.group, ""}
}

// run holds the sums of one run, or of all runs of a side. The empty key has the sum of everything.
type run map[judgedKey]tally

func (r run) add(k judgedKey, t tally) {
	old := r[k]
	r[k] = tally{old.weight + t.weight, old.squares + t.squares, old.samples + t.samples, old.kernel || t.kernel}
}

func (r run) share(k judgedKey) draw { return r[k].of(r[k.whole()]) }

// runOf adds up samples by function and, with totals, also by caller.
func runOf(samples []receiver.Sample, totals bool, opts Options) run {
	r := run{}
	for _, s := range samples {
		t, group := tallyOf(s), opts.Group(s)
		r.add(judgedKey{}, t)
		r.add(judgedKey{Group, group, ""}, t)
		leaf, at, _ := opts.leaf(s.Stack)
		t.kernel = at.Type == "kernel"
		r.add(judgedKey{Self, group, leaf}, t)
		if totals {
			for name, f := range opts.functions(s.Stack, leaf, at) {
				t.kernel = f.Type == "kernel"
				r.add(judgedKey{Total, group, name}, t)
			}
		}
	}
	return r
}

// sum adds up runs.
func sum(runs []run) run {
	all := run{}
	for _, r := range runs {
		for k, t := range r {
			all.add(k, t)
		}
	}
	return all
}

// Judge compares the runs of two sides. All samples must have the same type. It compares each function's own share, and the
// shares of several groups. With totals, it also compares each function's share with callees. Several runs of a side show the
// program's normal variation.
func Judge(before, after [][]receiver.Sample, totals bool, opts Options) Verdict {
	opts = opts.grouped().over(slices.Concat(before, after)...)
	var v Verdict
	var runs [2][]run
	var sums [2]run
	groups := map[string]bool{}
	for side, of := range [2][][]receiver.Sample{before, after} {
		for _, samples := range of {
			runs[side] = append(runs[side], runOf(samples, totals, opts))
		}
		sums[side] = sum(runs[side])
		v.Samples[side] = sums[side][judgedKey{}].samples
		for k, t := range sums[side] {
			if k.measure == Group && t.weight > 0 {
				groups[k.group] = true
				v.largest[side] = max(v.largest[side], t.weight*t.weight/t.squares)
			}
		}
	}
	freedom := float64(len(before) + len(after) - 2)
	var logs []float64 // of the tests' factors
	for k, part := range sum(sums[:]) {
		if k == (judgedKey{}) || k.measure == Group && len(groups) == 1 {
			continue
		}
		j := Judged{Measure: k.measure, Group: k.group, Function: k.function, Kernel: part.kernel, P: 1, sides: [2]draw{sums[0].share(k), sums[1].share(k)}}
		if j.Tested = j.enough() && (freedom > 0 || !j.Kernel && !j.Small()) && !Missing(j.Function); j.Tested {
			v.Tested++
			j.factor = j.differs(k, runs) / max(freedom, 1)
			logs = append(logs, math.Log(max(j.factor, 0.01))) // a single factor of 0 would dominate
		}
		v.Rows = append(v.Rows, j)
	}
	v.typical = moderate(logs, freedom)
	for i := range v.Rows {
		v.Rows[i].judge(v, freedom)
	}
	correct(v.Rows, v.Tested)
	v.typical = v.typical.with(v.typical.factor, freedom) // for a function with this spread
	return v
}

// correct corrects the probabilities for the number of tests, and sorts the rows: significant ones first, untested ones last. It
// uses Holm's method. With a limit on the results, at most that share of comparisons names a function by chance. The
// Benjamini–Hochberg method would limit the share of false names instead, but readers of a failed check believe each name.
func correct(rows []Judged, tests int) {
	slices.SortFunc(rows, func(a, b Judged) int { return cmp.Compare(a.P, b.P) })
	most := 0.0
	for i, j := range rows {
		if j.Tested {
			most = max(most, min(1, j.P*float64(tests)))
			rows[i].P, rows[i].Significant = most, most <= FalseAlarms
			tests--
		}
	}
	order := map[bool]int{true: 1, false: 2}
	change := func(j Judged) float64 { return math.Abs(j.After - j.Before) }
	slices.SortFunc(rows, func(a, b Judged) int {
		return cmp.Or(cmp.Compare(order[a.Significant], order[b.Significant]), cmp.Compare(order[a.Tested], order[b.Tested]), cmp.Compare(change(b), change(a)),
			cmp.Compare(a.Group, b.Group), cmp.Compare(a.Function, b.Function), cmp.Compare(a.Measure, b.Measure))
	})
}

// pooled returns the share of both sides together.
func (j *Judged) pooled() float64 {
	b, a := j.sides[0], j.sides[1]
	return (b.share*b.n + a.share*a.n) / max(b.n+a.n, 1)
}

// Small reports whether each side needs several runs for a test of this share. Both sides count equally.
func (j *Judged) Small() bool { return (j.sides[0].share+j.sides[1].share)/2 < leastShare }

// enough uses both sides together, so the choice of tests does not depend on their result.
func (j *Judged) enough() bool {
	p := j.pooled()
	return min(j.sides[0].n, j.sides[1].n)*min(p, 1-p) >= leastExpected
}

// differs returns the sum of squares of the runs' deviations from their side, in units of the sampling error.
func (j *Judged) differs(k judgedKey, runs [2][]run) (sum float64) {
	p := j.pooled()
	for side, of := range runs {
		for _, r := range of {
			d := r.share(k)
			off := d.share - j.sides[side].share
			sum += d.n * off * off / (p * (1 - p))
		}
	}
	return sum
}

// judge fills in the row, without the correction.
func (j *Judged) judge(v Verdict, freedom float64) {
	s := v.typical.with(j.factor, freedom)
	before, after := j.sides[0], j.sides[1]
	before.n, after.n = before.n/s.factor, after.n/s.factor
	j.Before, j.After = before.share, after.share
	j.Low, j.High = between(before, after, quantile(1-Confidence, s.freedom))
	j.Detectable = detectable(j.pooled(), before.n, after.n, FalseAlarms/float64(max(1, v.Tested)), s.freedom)
	if j.Tested {
		j.P = student(unchanged(before, after), s.freedom)
	}
}
