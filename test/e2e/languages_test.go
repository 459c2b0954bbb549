//go:build e2e

package e2e

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/polyglot"
)

// enoughStacks is the number of samples per program that the test waits for. It is enough to notice a missing function.
const enoughStacks = 700

// TestLanguages compares whole stacks of programs in three languages with their known functions. Two of the programs have no
// frame pointers. Each sample must be accounted for.
func TestLanguages(t *testing.T) {
	igtest.NeedRoot(t)
	var running []*loads.Process
	for _, name := range []string{"c", "go", "python"} {
		process, err := loads.Run(t.Context(), name, t.TempDir(), loads.DefaultLimit)
		require.NoError(t, err)
		t.Cleanup(func() { process.Stop() })
		running = append(running, process)
	}
	s := begin(t, igtest.Import(t, "profile_cpu"), "--unwind=whole", "--frequency=199")
	s.until("whole stacks of each program", func(samples []receiver.Sample) bool {
		for _, p := range running {
			if shares := sharesOf(p.Load, sinceNamed(p.Load, of(samples, p.PID))); igtest.Total(shares[""]) < enoughStacks {
				return false
			}
		}
		return true
	})
	for _, p := range running {
		p.Stop()
	}
	r := s.stop("samples")
	closing, err := polyglot.ReadClosingLines(r.log)
	require.NoError(t, err)
	require.NoError(t, closing.Check(igtest.Total(r.samples)))
	for _, p := range running {
		samples := sinceNamed(p.Load, of(r.samples, p.PID))
		shares := sharesOf(p.Load, samples)
		named := igtest.Total(shares[""])
		t.Logf("%s: %d samples, %d of them with their callers", p.Name, igtest.Total(samples), named)
		require.Greater(t, 10*named, 7*igtest.Total(samples), p.Name)
		for _, want := range p.Shares {
			requireShare(t, want.Percent, 100*float64(igtest.Total(shares[want.Function]))/float64(named), named, p.Name+": "+want.Function)
		}
	}
}

// sinceNamed leaves out the first samples, because an interpreter's functions have no names in the first seconds.
func sinceNamed(load loads.Load, samples []receiver.Sample) []receiver.Sample {
	named := sharesOf(load, samples)[""]
	if len(named) == 0 {
		return nil
	}
	first := slices.MinFunc(named, func(a, b receiver.Sample) int { return a.End.Compare(b.End) }).End
	return slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool { return s.Start.Before(first) })
}

// sharesOf groups samples by the program's function that they are in, if all of its callers are above it. The empty name
// represents all these samples.
func sharesOf(load loads.Load, samples []receiver.Sample) map[string][]receiver.Sample {
	by := map[string][]receiver.Sample{}
	for _, s := range samples {
		function, chain := "", load.Chain
		for _, f := range s.Stack {
			switch {
			case function == "":
				for _, want := range load.Shares {
					if loads.Is(f.Name, want.Function) {
						function = want.Function
					}
				}
			case len(chain) > 0 && loads.Is(f.Name, chain[len(chain)-1]):
				chain = chain[:len(chain)-1]
			}
		}
		if function != "" && len(chain) == 0 {
			by[function], by[""] = append(by[function], s), append(by[""], s)
		}
	}
	return by
}
