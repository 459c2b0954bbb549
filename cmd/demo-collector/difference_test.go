package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// spent returns a sample of n hits of a 1 ms timer in a function.
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

	var table strings.Builder
	require.NoError(t, writeDifference(&table, before, after))
	lines := strings.Split(table.String(), "\n")
	require.Equal(t, "change from compression gzip to none, in microseconds of CPU per request:", lines[0])
	require.Equal(t, []string{"2000", "0", "-2000", "-50.0", "±7.2", "*", "inflate"}, strings.Fields(lines[2]))
	require.Equal(t, []string{"0", "250", "+250", "+11.1", "±4.8", "*", "read"}, strings.Fields(lines[3]))
	require.Equal(t, []string{"4000", "2250", "-1750", "in", "all", "(-44%)"}, strings.Fields(lines[5]))
}

func TestDifferenceOfNothing(t *testing.T) {
	idle := &phase{name: "before", requests: 1, cpu: time.Second}
	refused := &phase{name: "after", samples: []receiver.Sample{spent("parse", 1)}}
	served := &phase{name: "before", requests: 1, cpu: time.Second, samples: []receiver.Sample{spent("parse", 1)}}
	require.ErrorContains(t, writeDifference(&strings.Builder{}, idle, refused), "the profiles before the change have no CPU time")
	require.ErrorContains(t, writeDifference(&strings.Builder{}, served, refused), "the Collector accepted no requests after the change")
}
