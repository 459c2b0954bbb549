package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// spent is a sample of n hits of a timer of 1 ms in a function.
func spent(function string, n int64) receiver.Sample {
	return receiver.Sample{
		Type: "samples", Unit: "count", PeriodType: "cpu", PeriodUnit: "nanoseconds", Period: int64(time.Millisecond),
		Values: []int64{n}, Stack: []receiver.Frame{{Name: function}, {Name: "main.main"}},
	}
}

func TestDifference(t *testing.T) {
	before := &phase{name: "before", compression: "gzip", requests: 100, cpu: 400 * time.Millisecond,
		samples: []receiver.Sample{spent("inflate", 50), spent("parse", 100), spent("inflate", 50)}}
	after := &phase{name: "after", compression: "none", requests: 200, cpu: 450 * time.Millisecond,
		samples: []receiver.Sample{spent("parse", 200), spent("read", 25)}}

	functions, all, err := before.perRequest()
	require.NoError(t, err)
	require.Equal(t, 4*time.Millisecond, all, "400 ms for 100 requests, although the profiler saw 200 ms only")
	require.Equal(t, map[string]time.Duration{"inflate": 2 * time.Millisecond, "parse": 2 * time.Millisecond, "main.main": 0}, functions)

	later, _, err := after.perRequest()
	require.NoError(t, err)
	require.Equal(t, []change{
		{"inflate", 2 * time.Millisecond, 0},
		{"read", 0, 250 * time.Microsecond},
		{"main.main", 0, 0},
		{"parse", 2 * time.Millisecond, 2 * time.Millisecond},
	}, difference(functions, later))

	var table strings.Builder
	require.NoError(t, writeDifference(&table, before, after))
	lines := strings.Split(table.String(), "\n")
	require.Equal(t, "what the change from compression gzip to none did, in microseconds of CPU for each request of the load:", lines[0])
	require.Equal(t, []string{"2000", "0", "-2000", "inflate"}, strings.Fields(lines[2]))
	require.Equal(t, []string{"0", "250", "+250", "read"}, strings.Fields(lines[3]))
	require.Equal(t, []string{"4000", "2250", "-1750", "in", "all", "(-44%)"}, strings.Fields(lines[7]))
}

func TestDifferenceOfNothing(t *testing.T) {
	idle := &phase{name: "before", requests: 1, cpu: time.Second}
	refused := &phase{name: "after", samples: []receiver.Sample{spent("parse", 1)}}
	err := writeDifference(&strings.Builder{}, idle, refused)
	require.ErrorContains(t, err, "the profiles before the change hold no CPU time")
	require.ErrorContains(t, err, "the Collector took no request after the change")
}

func TestOneLine(t *testing.T) {
	require.Equal(t, "a?[31mb", oneLine("a\x1b[31mb"))
	require.Equal(t, strings.Repeat("x", 69)+"…", oneLine(strings.Repeat("x", 200)))
}
