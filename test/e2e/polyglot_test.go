//go:build e2e

package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/polyglot"
)

// enoughStacks is how many samples of each program show its shares within 7 points, so that a function that is missing is noticed.
const enoughStacks = 500

// TestPolyglot compares whole stacks of programs in three languages with what is known of them, two of them without
// frame pointers. Each sample that the unwinder has taken is accounted for.
func TestPolyglot(t *testing.T) {
	igtest.NeedRoot(t)
	var running []*loads.Process
	for _, name := range []string{"c", "go", "python"} {
		load, err := loads.Find(name)
		require.NoError(t, err)
		program, err := load.Build(t.Context(), t.TempDir())
		require.NoError(t, err)
		process, err := program.Start(t.Context(), loads.DefaultLimit)
		require.NoError(t, err)
		t.Cleanup(func() { process.Stop() })
		running = append(running, process)
	}
	s := begin(t, igrun.Prefix(), igtest.Import(t, "profile_polyglot"), "--frequency=199")
	s.until("whole stacks of each program", func(samples []receiver.Sample) bool {
		for _, p := range running {
			if shares := sharesOf(p.Load, of(samples, p.PID)); total(shares[""]) < enoughStacks {
				return false
			}
		}
		return true
	})
	for _, p := range running {
		p.Stop()
	}
	r := s.stop("samples")
	books, err := polyglot.ReadBooks(r.log)
	require.NoError(t, err)
	require.NoError(t, books.Check(total(r.samples)))
	for _, p := range running {
		samples := of(r.samples, p.PID)
		shares := sharesOf(p.Load, samples)
		named := total(shares[""])
		t.Logf("%s: %d samples, %d of them with their callers", p.Name, total(samples), named)
		// The functions of an interpreter have no names in the first seconds.
		require.Greater(t, 10*named, 7*total(samples), p.Name)
		for _, want := range p.Shares {
			share := 100 * float64(total(shares[want.Function])) / float64(named)
			t.Logf("%s: %s %.1f%% (true: %.0f%%)", p.Name, want.Function, share, want.Percent)
			require.InDelta(t, want.Percent, share, 7, "%s: %s", p.Name, want.Function)
		}
	}
}

// sharesOf divides samples by the one of a program's functions that they are in, if all of its callers are above it, and
// puts those of all under the empty name.
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
