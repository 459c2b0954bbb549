//go:build e2e

package names

import (
	"fmt"
	"math"
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
	load   loads.Load
	judged bool
	at     map[string]int64
}

// sharesOf counts samples by the innermost frame that has a function's name. Without frame pointers, profile_cpu finds no
// callers.
func sharesOf(load loads.Load, judged bool, samples []receiver.Sample) shared {
	s := shared{load: load, judged: judged && load.Known(), at: map[string]int64{}}
	for _, sample := range samples {
		if function := s.function(sample.Stack); function != "" {
			s.at[function] += sample.Total()
		}
	}
	return s
}

func (s shared) function(stack []receiver.Frame) string {
	for _, f := range stack {
		for _, share := range s.load.Shares {
			if loads.Is(f.Name, share.Function) || loads.Is(ofPerfMap(f.Name), share.Function) {
				return share.Function
			}
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

func (s shared) all() (n int64) {
	for _, at := range s.at {
		n += at
	}
	return n
}

// enough reports whether there are enough samples.
func (s shared) enough() bool { return !s.judged || s.all() >= minShared }

// off returns the largest difference from the true shares, in percentage points.
func (s shared) off() float64 {
	worst := 0.0
	for _, share := range s.load.Shares {
		worst = math.Max(worst, math.Abs(s.percent(share.Function)-share.Percent))
	}
	return worst
}

func (s shared) percent(function string) float64 {
	return 100 * float64(s.at[function]) / float64(max(s.all(), 1))
}

// String returns a cell of the table. The cell is empty for real programs, and a dash if no function has a name.
func (s shared) String() string {
	if !s.load.Known() {
		return ""
	}
	if s.all() == 0 {
		return "–"
	}
	var parts []string
	for _, share := range s.load.Shares {
		parts = append(parts, fmt.Sprintf("%.1f", s.percent(share.Function)))
	}
	text := strings.Join(parts, " / ")
	if !s.judged {
		text += ", not judged"
	}
	return text
}

func (s shared) require(t *testing.T) {
	t.Helper()
	if !s.judged {
		return
	}
	require.GreaterOrEqual(t, s.all(), int64(minShared), "%s: samples in functions of known shares", s.load.What)
	require.LessOrEqual(t, s.off(), barShare, "%s: found %s", s.load.What, s)
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
	require.Equal(t, map[string]int64{"heavy": 6, "light": 4}, s.at)
	require.Zero(t, s.off())
	swapped := []receiver.Sample{sample(6, "light"), sample(4, "main.heavy")}
	require.InDelta(t, 20, sharesOf(load, true, swapped).off(), 0.01)
	require.Equal(t, "–", sharesOf(load, true, nil).String())
}
