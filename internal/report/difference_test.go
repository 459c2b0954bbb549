package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

func TestDifference(t *testing.T) {
	inflate, parse, read := receiver.Frame{Name: "inflate"}, receiver.Frame{Name: "parse"}, receiver.Frame{Name: "read"}
	before := Side{Scale: 0.1, Samples: []receiver.Sample{of(timer, "a", 50, inflate), of(timer, "a", 100, parse), of(timer, "b", 50, inflate)}}
	after := Side{Scale: 0.05, Samples: []receiver.Sample{of(timer, "a", 200, parse, inflate), of(timer, "a", 25, read)}}
	everything := Options{Group: func(receiver.Sample) string { return "" }}
	changes := Difference(before, after, everything)
	require.Len(t, changes, 3)
	for i, want := range []Change{{"", "inflate", 0.1, 0}, {"", "read", 0, 0.0125}, {"", "parse", 0.1, 0.1}} {
		require.Equal(t, want.Function, changes[i].Function)
		require.InDelta(t, want.Before, changes[i].Before, 1e-9)
		require.InDelta(t, want.After, changes[i].After, 1e-9)
	}

	var table strings.Builder
	require.NoError(t, WriteDifference(&table, before, after, 2, everything))
	lines := strings.Split(table.String(), "\n")
	require.Equal(t, []string{"BEFORE", "AFTER", "CHANGE", "SHARE", "POINTS", "FUNCTION"}, strings.Fields(lines[0]))
	require.Equal(t, []string{"0.100", "0", "-0.100", "50.0%", "→", "0.0%", "-50.0", "±7.2", "*", "inflate"}, strings.Fields(lines[1]))
	require.Equal(t, []string{"0", "0.0125", "+0.0125", "0.0%", "→", "11.1%", "+11.1", "±4.8", "*", "read"}, strings.Fields(lines[2]))
	require.Equal(t, []string{"0.100", "0.100", "0", "all", "others"}, strings.Fields(lines[3]))
	require.Equal(t, []string{"0.200", "0.113", "-0.0875", "in", "all", "(-44%)"}, strings.Fields(lines[4]))

	// The same function in two programs has two rows. Each share is of its own program.
	table.Reset()
	require.NoError(t, WriteDifference(&table, before, after, 2, Options{}))
	lines = strings.Split(table.String(), "\n")
	require.Equal(t, []string{"0.0500", "0", "-0.0500", "33.3%", "→", "0.0%"}, strings.Fields(lines[1])[:6])
	require.True(t, strings.HasSuffix(lines[1], "  inflate in a"), lines[1])
	require.Equal(t, []string{"0.0500", "0", "-0.0500"}, strings.Fields(lines[2])[:3])
	require.True(t, strings.HasSuffix(lines[2], "  inflate in b"), lines[2])

	table.Reset()
	again := before
	again.Scale *= 1 + 1e-8
	require.NoError(t, WriteDifference(&table, before, again, 2, Options{}))
	require.Equal(t, "no difference: 0.200 before and after, and the same in each function\n", table.String(), "the lengths of runs are rounded")

	require.Empty(t, Difference(Side{}, Side{}, Options{}))
	require.NoError(t, WriteDifference(&table, Side{}, Side{}, 2, Options{}))
	require.ErrorIs(t, WriteDifference(failingWriter{}, before, after, 2, Options{}), errWrite)
}

// A side without own functions must count the same frames as the other side. The verdict is about the functions in the table.
func TestDifferenceOfOwn(t *testing.T) {
	native := func(name, file string) receiver.Frame {
		return receiver.Frame{Name: name, Type: "native", Mapping: file}
	}
	recv, wait, ask := native("recv", "/usr/lib/libc.so.6"), native("futex_wait", "/usr/lib/libc.so.6"), native("ask", "/srv/shop")
	before := Side{Scale: 100, Samples: []receiver.Sample{of(timer, "a", 100, recv), of(timer, "a", 60, wait)}}
	after := Side{Scale: 100, Samples: []receiver.Sample{of(timer, "a", 160, recv, ask), of(timer, "a", 50, wait)}}
	opts := Options{Own: true}
	require.Equal(t, []Change{{"a", "ask", 0, 160}, {"a", NotOwn, 160, 50}}, Difference(before, after, opts))
	var table strings.Builder
	require.NoError(t, WriteDifference(&table, before, after, 2, opts))
	require.Regexp(t, `-76\.\d ±\d+\.\d \*.*\[no function of its own\]`, table.String())
	var judged []string
	for _, j := range Judge([][]receiver.Sample{before.Samples}, [][]receiver.Sample{after.Samples}, true, opts).Rows {
		judged = append(judged, string(j.Measure)+" "+j.Function)
	}
	require.ElementsMatch(t, []string{"self ask", "total ask", "self " + NotOwn, "total " + NotOwn}, judged)
}

func TestDifferenceQuotesNames(t *testing.T) {
	var table strings.Builder
	side := Side{Scale: 1, Samples: []receiver.Sample{of(timer, "a", 1, receiver.Frame{Name: "a\x1b[31mb"})}}
	require.NoError(t, WriteDifference(&table, side, Side{}, 2, Options{}))
	require.NotContains(t, table.String(), "\x1b")
	require.Contains(t, table.String(), `a\x1b[31mb`)
}
