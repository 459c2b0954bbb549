//go:build e2e

package names

import (
	"cmp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

const (
	// barShare is the allowed difference between a function's measured and true share, in percentage points.
	barShare = 3.0
	// minShared is the number of samples, in functions with known shares, that are enough to compare the shares. The random
	// error is then below one percentage point.
	minShared = 5000
)

// shared counts a load's samples by function, for functions with a known share.
type shared struct {
	loads.Counts
	judged bool
}

// sharesOf counts samples by the innermost frame that has a function's name. Without frame pointers, profile_cpu finds no
// callers.
func sharesOf(load loads.Load, judged bool, samples []receiver.Sample) shared {
	s := shared{loads.Counts{Load: load, At: map[string]int64{}}, judged && load.Known()}
	for _, sample := range samples {
		if function := s.function(sample.Stack); function != "" {
			s.At[function] += sample.Total()
		}
	}
	return s
}

func (s shared) function(stack []receiver.Frame) string {
	for _, f := range stack {
		if function := cmp.Or(s.Load.Shared(f.Name), s.Load.Shared(ofPerfMap(f.Name))); function != "" {
			return function
		}
	}
	return ""
}

// ofPerfMap returns the function in a name such as "JS:*heavy /home/load.js:12:15", which Node.js writes into its perf map.
func ofPerfMap(name string) string {
	_, name, ok := strings.Cut(name, ":")
	if !ok {
		return ""
	}
	name, _, _ = strings.Cut(strings.TrimLeft(name, "~^+*"), " ")
	return name
}

// enough reports whether there are enough samples.
func (s shared) enough() bool { return !s.judged || s.Total() >= minShared }

// String returns a cell of the table. It is empty for programs without known shares.
func (s shared) String() string {
	switch {
	case !s.Load.Known():
		return ""
	case s.judged || s.Total() == 0:
		return s.Counts.String()
	}
	return s.Counts.String() + ", not judged"
}

func (s shared) require(t *testing.T) {
	t.Helper()
	if !s.judged {
		return
	}
	require.GreaterOrEqual(t, s.Total(), int64(minShared), "%s: samples in functions of known shares", s.Load.What)
	require.LessOrEqual(t, s.Off(), barShare, "%s: found %s", s.Load.What, s)
}

// TestSharesOf checks that the innermost function counts, that names of perf maps are recognized, and that swapped names differ
// much.
func TestSharesOf(t *testing.T) {
	load := loads.Load{Shares: []loads.Share{{Function: "heavy", Percent: 60}, {Function: "light", Percent: 40}}}
	sample := func(n int64, names ...string) receiver.Sample {
		s := receiver.Sample{Values: []int64{n}}
		for _, name := range names {
			s.Stack = append(s.Stack, receiver.Frame{Name: name})
		}
		return s
	}
	right := []receiver.Sample{sample(3, "memset", "heavy", "light"), sample(3, "JS:*heavy /a/load.js:1:2"), sample(4, "light"), sample(9, "start")}
	s := sharesOf(load, true, right)
	require.Equal(t, map[string]int64{"heavy": 6, "light": 4}, s.At)
	require.Zero(t, s.Off())
	swapped := []receiver.Sample{sample(6, "light"), sample(4, "main.heavy")}
	require.InDelta(t, 20, sharesOf(load, true, swapped).Off(), 0.01)
	require.Equal(t, "-", sharesOf(load, true, nil).String())
}
