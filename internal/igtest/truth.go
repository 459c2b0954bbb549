package igtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// Truth is what a program itself has measured for one of its functions: a sum, for example of bytes, and the number of calls.
type Truth struct{ Sum, Calls int64 }

// ReadTruth reads a program's lines. Each has a function's name, which can contain spaces, the sum, and the number of calls.
func ReadTruth(t *testing.T, text string) map[string]Truth {
	t.Helper()
	truth := map[string]Truth{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		last := len(fields) - 2
		require.Positive(t, last, line)
		var own Truth
		_, err := fmt.Sscan(strings.Join(fields[last:], " "), &own.Sum, &own.Calls)
		require.NoError(t, err, line)
		truth[strings.Join(fields[:last], " ")] = own
	}
	return truth
}

// InUse returns how much memory in use has a function on its stack. The newest state counts, because memory in use is sent
// repeatedly. The sample type says what is counted.
func InUse(samples []receiver.Sample, sampleType, function string) int64 {
	if len(samples) == 0 {
		return 0
	}
	newest := slices.MaxFunc(samples, func(a, b receiver.Sample) int { return a.End.Compare(b.End) }).End
	state := slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool { return !s.End.Equal(newest) })
	return Total(Through(Typed(state, sampleType), function))
}
