package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// program draws samples of a program with 50 functions. The first function has a tenth of the time.
type program struct {
	rng *rand.Rand
	// grown is the increase of the first function's share. The others shrink in proportion.
	grown float64
	// noise is the variation of a function's share between runs: the standard deviation of its logarithm.
	noise func(function int) float64
}

const functions = 50

func (p program) run(n int) []receiver.Sample {
	weights, rest := [functions]float64{0.1 * (1 + p.grown)}, 0.0
	for i := 1; i < functions; i++ {
		weights[i] = math.Pow(0.93, float64(i)) // from 6.5 to 0.2 %
		rest += weights[i]
	}
	sum := 0.0
	for i := range weights {
		if i > 0 {
			weights[i] *= (1 - weights[0]) / rest
		}
		if p.noise != nil {
			defer func(w float64) { weights[i] = w }(weights[i])
			weights[i] *= math.Exp(p.noise(i) * p.rng.NormFloat64())
		}
		sum += weights[i]
	}
	samples := make([]receiver.Sample, 0, functions)
	left := n
	for i, w := range weights {
		k := left
		if i < functions-1 {
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

// TestWhatCanBeFound finds the stated change in 9 of 10 comparisons. At most 1 of 100 comparisons of an unchanged program names
// a function. The page contains the same figures.
func TestWhatCanBeFound(t *testing.T) {
	even := func(int) float64 { return 0.05 }
	uneven := func(i int) float64 { return []float64{0.02, 0.05, 0.02, 0.1}[i%4] }
	for _, tt := range []struct {
		name          string
		runs, samples int
		grown         float64
		noise         func(int) float64
	}{
		{"1,000 samples of the function", 1, 10_000, 0.22, nil},
		{"10,000 samples of the function", 1, 100_000, 0.07, nil},
		{"1,000 samples in all", 1, 1_000, 0.80, nil},
		{"5 runs", 5, 2_000, 0.24, nil},
		{"5 runs that differ", 5, 2_000, 0.32, even},
		{"5 runs, some functions of which differ", 5, 10_000, 0.16, uneven},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			comparisons := 1000
			if tt.runs > 1 {
				if testing.Short() {
					t.Skip("it takes seconds")
				}
				comparisons = 300
			}
			p := program{rng: rand.New(rand.NewPCG(32, 3)), noise: tt.noise}
			slower := p
			slower.grown = tt.grown
			alarms, hits, detectable := 0, 0, 0.0
			for range comparisons {
				before := p.runs(tt.runs, tt.samples)
				same, changed := Judge(before, p.runs(tt.runs, tt.samples), false, Options{}), Judge(before, slower.runs(tt.runs, tt.samples), false, Options{})
				if len(grown(same)) > 0 {
					alarms++
				}
				if slices.Contains(grown(changed), "f0") {
					hits++
				}
				i := slices.IndexFunc(same.Rows, func(j Judged) bool { return j.Function == "f0" })
				detectable += same.Rows[i].Detectable / 0.1 / float64(comparisons)
			}
			t.Logf("of %d comparisons, %d of the unchanged program name a slower function; %d find %.0f %% more; stated as detectable: %.1f %%", comparisons, alarms, hits, 100*tt.grown, 100*detectable)
			require.LessOrEqual(t, alarms, comparisons/100)
			require.GreaterOrEqual(t, hits, comparisons*9/10)
		})
	}
}

// TestEnough requires that, if a function has nearly all samples, the number of other samples decides.
func TestEnough(t *testing.T) {
	for share, tested := range map[float64]bool{0.04: false, 0.06: true, 0.94: true, 0.96: false} {
		side := draw{share, 100}
		require.Equal(t, tested, (&test{sides: [2]draw{side, side}}).enough(), "%v", share)
	}
}
