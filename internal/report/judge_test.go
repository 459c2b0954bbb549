package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// program draws samples of a program. Its first function has a tenth of the time.
type program struct {
	rng       *rand.Rand
	functions int
	// grown is the increase of the first function's share. The others shrink in proportion.
	grown float64
	// noise is the variation of a function's share between runs: the standard deviation of its logarithm.
	noise func(function int) float64
}

// shares returns the functions' shares without variation between runs.
func (p program) shares() []float64 {
	shares, rest := []float64{0.1 * (1 + p.grown)}, 0.0
	for i := 1; i < p.functions; i++ {
		shares = append(shares, math.Pow(0.93, float64(i))) // for 50 functions from 6.5 to 0.2 %
		rest += shares[i]
	}
	for i := 1; i < p.functions; i++ {
		shares[i] *= (1 - shares[0]) / rest
	}
	return shares
}

func (p program) run(n int) []receiver.Sample {
	weights, sum := p.shares(), 0.0
	for i := range weights {
		if p.noise != nil {
			weights[i] *= math.Exp(p.noise(i) * p.rng.NormFloat64())
		}
		sum += weights[i]
	}
	samples := make([]receiver.Sample, 0, p.functions)
	left := n
	for i, w := range weights {
		k := left
		if i < p.functions-1 {
			k = int(distuv.Binomial{N: float64(left), P: min(1, w/sum), Src: p.rng}.Rand())
		}
		sum -= w
		left -= k
		if k > 0 {
			samples = append(samples, of(timer, "shop", int64(k), receiver.Frame{Name: fmt.Sprintf("f%d", i)}))
		}
	}
	return samples
}

func (p program) runs(several, n int) [][]receiver.Sample {
	var runs [][]receiver.Sample
	for range several {
		runs = append(runs, p.run(n))
	}
	return runs
}

// grown returns the functions whose shares have increased significantly.
func grown(v Verdict) (names []string) {
	for _, j := range v.Rows {
		if j.Significant && j.After > j.Before {
			names = append(names, j.Function)
		}
	}
	return names
}

// coverage counts the intervals of tested rows that contain the true change.
type coverage struct{ in, all int }

func (c *coverage) add(v Verdict, before, after []float64) {
	for _, j := range v.Rows {
		var i int
		if _, err := fmt.Sscanf(j.Function, "f%d", &i); err == nil && j.Tested {
			c.all++
			if change := after[i] - before[i]; j.Low <= change && change <= j.High {
				c.in++
			}
		}
	}
}

// published are the figures of the guide.
type published struct {
	alarms, alarmsOfTen int             // of 100 comparisons
	found               map[int]float64 // the smallest increase that 9 of 10 checks detected, by the function's samples
}

func readPublished(t *testing.T) published {
	t.Helper()
	page, err := os.ReadFile("../../docs/guides/check.md")
	require.NoError(t, err)
	m := regexp.MustCompile(`In a simulation, (\d+) of 100 comparisons of an unchanged program with 50 functions failed\. With ten functions and three runs on each side, up to (\d+) of 100 failed\.`).FindSubmatch(page)
	require.NotNil(t, m)
	number := func(text []byte) int {
		n, err := strconv.Atoi(strings.ReplaceAll(string(text), ",", ""))
		require.NoError(t, err)
		return n
	}
	p := published{number(m[1]), number(m[2]), map[int]float64{}}
	_, table, found := strings.Cut(string(page), "| samples of the function on each side | smallest increase")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range regexp.MustCompile(`(?m)^\| ([\d,]+) \| (\d+) % \|$`).FindAllSubmatch([]byte(table), -1) {
		p.found[number(row[1])] = float64(number(row[2])) / 100
	}
	require.Len(t, p.found, 3)
	return p
}

// TestWhatCanBeFound requires the guide's figures: the published change is found in 9 of 10 comparisons, and no more comparisons of
// an unchanged program than published name a function. A change as large as stated for a row must be found in about 9 of 10
// comparisons, and in at least 8 of 10 if the function varies more between runs than others. 95 % of the intervals must contain
// the true change.
func TestWhatCanBeFound(t *testing.T) {
	figures := readPublished(t)
	even := func(int) float64 { return 0.05 }
	uneven := func(i int) float64 { return []float64{0.02, 0.05, 0.02, 0.1}[i%4] }
	type simulation struct {
		name                     string
		functions, runs, samples int
		grown                    float64 // must be found, if not 0
		noise                    func(int) float64
	}
	simulations := []simulation{
		{"5 runs", 50, 5, 2_000, 0.24, nil},
		{"5 runs that differ", 50, 5, 2_000, 0.32, even},
		{"5 runs, some functions of which differ", 50, 5, 10_000, 0.16, uneven},
		{"3 runs", 50, 3, 2_000, 0, nil},
		{"3 runs that differ", 50, 3, 2_000, 0, even},
		{"3 runs of ten functions", 10, 3, 2_000, 0, nil},
		{"3 runs of ten functions that differ", 10, 3, 2_000, 0, even},
	}
	for n, share := range figures.found {
		simulations = append(simulations, simulation{fmt.Sprintf("%d samples of the function", n), 50, 1, 10 * n, share, nil})
	}
	for _, tt := range simulations {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			comparisons := 1000
			if tt.runs > 1 {
				if testing.Short() {
					t.Skip("it takes seconds")
				}
				comparisons = 15_000 / tt.functions
			}
			p := program{rng: rand.New(rand.NewPCG(32, 3)), functions: tt.functions, noise: tt.noise}
			alarms, hits, asStated, row, head := 0, 0, 0, 0.0, 0.0
			var intervals coverage
			slower := p
			slower.grown = tt.grown
			for range comparisons {
				before := p.runs(tt.runs, tt.samples)
				same := Judge(before, p.runs(tt.runs, tt.samples), false, Options{})
				if tt.grown > 0 && slices.Contains(grown(Judge(before, slower.runs(tt.runs, tt.samples), false, Options{})), "f0") {
					hits++
				}
				if len(grown(same)) > 0 {
					alarms++
				}
				i := slices.IndexFunc(same.Rows, func(j Judged) bool { return j.Function == "f0" })
				row += same.Rows[i].Detectable / float64(comparisons)
				head += same.Detectable(0.1) / float64(comparisons)
				intervals.add(same, p.shares(), p.shares())
			}
			stated := p
			stated.grown = row / 0.1
			for range comparisons {
				v := Judge(p.runs(tt.runs, tt.samples), stated.runs(tt.runs, tt.samples), false, Options{})
				if slices.Contains(grown(v), "f0") {
					asStated++
				}
				if tt.noise == nil { // otherwise the true shares differ from those without noise
					intervals.add(v, p.shares(), stated.shares())
				}
			}
			covered := float64(intervals.in) / float64(intervals.all)
			t.Logf("of %d comparisons, %d of the unchanged program name a slower function; %d find %.0f %% more; stated as detectable for the row: %.1f %%, which %d find; at the top: %.1f %%; %.1f %% of %d intervals contain the true change",
				comparisons, alarms, hits, 100*tt.grown, 1000*row, asStated, 1000*head, 100*covered, intervals.all)
			most := figures.alarms
			if tt.functions == 10 {
				most = figures.alarmsOfTen
			}
			require.LessOrEqual(t, alarms, comparisons*most/100)
			if tt.grown > 0 {
				require.GreaterOrEqual(t, hits, comparisons*9/10)
			}
			if tt.noise == nil { // otherwise a typical function varies less than this one, or more
				require.InEpsilon(t, row, head, 0.15)
			}
			least := 0.85
			if tt.noise != nil { // the estimate for this function also uses the smaller variation of the others
				least = 0.8
			}
			require.InDelta(t, (least+0.97)/2, float64(asStated)/float64(comparisons), (0.97-least)/2)
			require.GreaterOrEqual(t, covered, 0.94)
			require.LessOrEqual(t, covered, 0.985, "the intervals are too wide")
		})
	}
}

// TestEnough requires that, if a function has nearly all samples, the number of other samples decides.
func TestEnough(t *testing.T) {
	for share, tested := range map[float64]bool{0.04: false, 0.06: true, 0.94: true, 0.96: false} {
		side := draw{share, 100}
		require.Equal(t, tested, (&Judged{sides: [2]draw{side, side}}).enough(), "%v", share)
	}
}

// TestMissingParts requires that a larger share of samples without a stack is no significant change.
func TestMissingParts(t *testing.T) {
	side := func(work, missing int64) [][]receiver.Sample {
		part := func(n int64, name string) receiver.Sample { return of(timer, "shop", n, receiver.Frame{Name: name}) }
		return [][]receiver.Sample{{part(work, "work"), part(5000, "rest"), part(missing, "[truncated]")}}
	}
	v := Judge(side(500, 10), side(900, 300), false, Options{})
	require.Equal(t, []string{"work"}, grown(v))
	require.Equal(t, 2, v.Tested)
}

// TestSmallShares requires that a share below 0.5 % is tested only if a side has several runs.
func TestSmallShares(t *testing.T) {
	side := func(small int64) []receiver.Sample {
		return []receiver.Sample{of(timer, "shop", 9000, receiver.Frame{Name: "work"}), of(timer, "shop", small, receiver.Frame{Name: "main"})}
	}
	single := Judge([][]receiver.Sample{side(10)}, [][]receiver.Sample{side(60)}, false, Options{})
	require.Empty(t, grown(single))
	several := Judge(slices.Repeat([][]receiver.Sample{side(10)}, 5), slices.Repeat([][]receiver.Sample{side(60)}, 5), false, Options{})
	require.Equal(t, []string{"main"}, grown(several))
	long := []receiver.Sample{of(timer, "shop", 100_000, receiver.Frame{Name: "work"}), of(timer, "shop", 200, receiver.Frame{Name: "main"})}
	short := []receiver.Sample{of(timer, "shop", 3000, receiver.Frame{Name: "work"}), of(timer, "shop", 60, receiver.Frame{Name: "main"})}
	unequal := Judge([][]receiver.Sample{long}, [][]receiver.Sample{short}, false, Options{})
	require.Equal(t, []string{"main"}, grown(unequal))
	larger := Judge([][]receiver.Sample{side(10)}, [][]receiver.Sample{side(200)}, false, Options{})
	require.Equal(t, []string{"main"}, grown(larger))
}
