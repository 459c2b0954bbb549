package main

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"

	pprof "github.com/google/pprof/profile"
	"gonum.org/v1/gonum/stat/distuv"
)

// pgoEnough is the share of the hot calls' weight that must be hot in both halves of the samples.
const pgoEnough = 0.9

// pgoMapping is a merged profile's only mapping. It has no addresses and no build ID, so builds share their lines.
var pgoMapping = &pprof.Mapping{ID: 1, HasFunctions: true, HasFilenames: true, HasLineNumbers: true}

// emptyPGOProfile returns a profile without samples. Go uses the first type that it knows. The first type is CPU time, because
// the sampling frequency can differ between hosts.
func emptyPGOProfile() *pprof.Profile {
	return &pprof.Profile{
		SampleType: []*pprof.ValueType{{Type: "cpu", Unit: "nanoseconds"}, {Type: "samples", Unit: "count"}},
		PeriodType: &pprof.ValueType{Type: "cpu", Unit: "nanoseconds"}, DefaultSampleType: "cpu",
	}
}

// pgoCall is a call in the form of Go's compiler. The line is relative to the caller's first line.
type pgoCall struct {
	caller, callee string
	offset         int64
}

// callsOf returns the calls of a stack that Go's compiler uses. These are the calls in the two innermost locations. See
// FromPProf in Go's cmd/internal/pgo, and NewGraph in internal/profile. In a valid profile, each line has a function.
func callsOf(locations []*pprof.Location) map[pgoCall]bool {
	calls := map[pgoCall]bool{}
	var parent pprof.Line
	for _, l := range slices.Backward(locations[:min(2, len(locations))]) {
		for _, line := range slices.Backward(l.Line) {
			recursive := parent.Function != nil && parent.Function.Name == line.Function.Name && parent.Function.StartLine == line.Function.StartLine && parent.Line == line.Line
			if parent.Function != nil && !recursive {
				calls[pgoCall{parent.Function.Name, line.Function.Name, parent.Line - parent.Function.StartLine}] = true
			}
			parent = line
		}
	}
	return calls
}

// hotCalls returns the calls that together have 99 % of the weight, as in Go's compiler.
func hotCalls(weights map[pgoCall]int64) map[pgoCall]bool {
	calls := slices.SortedFunc(maps.Keys(weights), func(a, b pgoCall) int {
		return cmp.Or(cmp.Compare(weights[b], weights[a]), cmp.Compare(a.caller, b.caller), cmp.Compare(a.callee, b.callee), cmp.Compare(a.offset, b.offset))
	})
	total, sum, hot := 0.0, 0.0, map[pgoCall]bool{}
	for _, w := range weights {
		total += float64(w)
	}
	for _, c := range calls {
		hot[c] = true
		if sum += float64(weights[c]); sum > 0.99*total {
			break
		}
	}
	return hot
}

// pgoAgreement returns the number of hot calls, and the share of their weight that is hot in both halves of the samples. The
// halves are random but reproducible. Their agreement predicts the agreement of two runs of half the length.
func pgoAgreement(p *pprof.Profile) (calls int, agree float64) {
	random := rand.NewPCG(1, 2)
	weights := [3]map[pgoCall]int64{{}, {}, {}} // of all samples, and of both halves
	for _, s := range p.Sample {
		n, cpu := float64(s.Value[1]), float64(s.Value[0])
		first := distuv.Binomial{N: n, P: 0.5, Src: random}.Rand()
		for c := range callsOf(s.Location) {
			for i, part := range []float64{n, first, n - first} {
				if part > 0 {
					weights[i][c] += int64(cpu / n * part)
				}
			}
		}
	}
	hot, inFirst, inSecond := hotCalls(weights[0]), hotCalls(weights[1]), hotCalls(weights[2])
	both, total := 0.0, 0.0
	for c := range hot {
		total += float64(weights[0][c])
		if inFirst[c] && inSecond[c] {
			both += float64(weights[0][c])
		}
	}
	return len(hot), both / max(total, 1) // without calls, both is 0, too
}
