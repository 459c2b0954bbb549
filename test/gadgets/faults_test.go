//go:build e2e

package gadgets

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// pageFaults is the type of profile_pagefault's samples.
var pageFaults = receiver.Type{Type: "page_faults", Unit: "count", PeriodType: "page_faults", PeriodUnit: "count", Period: 1}

// faultsOf runs the gadget on the program faults.
func faultsOf(t *testing.T, image, name string, enough func([]receiver.Sample) bool, flags ...string) *run {
	t.Helper()
	pid := start(t, compile(t, "faults")).PID
	r, err := export(t, options{image: image, seconds: 3, flags: slices.Concat([]string{"--pid=" + strconv.Itoa(pid)}, framePointers, flags),
		// On a busy machine, an interval can end before the program's file has been read.
		until: func(samples []receiver.Sample) bool {
			return 20*unnamed(samples) < igtest.Total(samples) && enough(samples)
		}})
	require.NoError(t, err)
	r.requireSound(t)
	require.Len(t, r.of("faults"), len(r.samples), "the run is limited to one program")
	return r
}

// requirePageFaults checks the samples of the program faults, and returns the number of faults.
func requirePageFaults(t *testing.T, samples []receiver.Sample) int64 {
	t.Helper()
	all, nameless := int64(0), unnamed(samples)
	for _, s := range samples {
		require.Equal(t, pageFaults, receiver.TypeOf(s))
		all += s.Total()
		require.Equal(t, "write", s.Attributes["page_fault.access"], "fresh memory is written to: %v", s.Stack)
		require.NotEmpty(t, s.Stack)
		if unnamed([]receiver.Sample{s}) > 0 {
			continue
		}
		require.Equal(t, igtest.Depth(s, "fill_pages") >= 0, s.Stack[0].Type == "kernel", "the kernel fills, the program touches: %v", s.Stack)
	}
	touched, filled := igtest.Total(igtest.Through(samples, "touch_pages")), igtest.Total(igtest.Through(samples, "fill_pages"))
	t.Logf("%d faults in touch_pages, %d in fill_pages, %d in functions not known yet", touched, filled, nameless)
	require.Positive(t, filled)
	require.InEpsilon(t, 64.0/16, float64(touched)/float64(filled), 0.1)
	require.Less(t, 10*nameless, all)
	return touched + filled + nameless
}

// unnamed adds up the samples of the program faults in functions that have no name yet.
func unnamed(samples []receiver.Sample) int64 {
	n := int64(0)
	for _, s := range samples {
		if slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return f.Name == "" && filepath.Base(f.Mapping) == "faults" }) {
			n += s.Total()
		}
	}
	return n
}

// TestPageFaultEvents makes each fault an event with its time.
func TestPageFaultEvents(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	image := igtest.Import(t, "profile_pagefault")
	for _, form := range forms {
		t.Run(form.name, func(t *testing.T) {
			t.Parallel()
			// An event read after the end of its interval counts for the next one, at its start. An event read while an interval
			// waits for names counts for that interval, at its end. A busy machine has more of these.
			atEdge := func(s receiver.Sample, ts uint64) bool {
				return int64(ts) == s.Start.UnixNano() || int64(ts) == s.End.UnixNano()-1
			}
			inTime := func(samples []receiver.Sample) int {
				n := 0
				for _, s := range samples {
					for _, ts := range s.Timestamps {
						if !atEdge(s, ts) {
							n++
						}
					}
				}
				return n
			}
			r := faultsOf(t, image, "events-"+form.name, func(samples []receiver.Sample) bool { return inTime(samples) > 4000 },
				append([]string{"--single-events"}, form.flags...)...)
			samples := r.of("faults")
			require.EqualValues(t, len(r.rows), requirePageFaults(t, samples))
			printed := map[int64]int{}
			for _, row := range r.rows {
				printed[igtest.Number(t, row, "timestamp_raw")]++
			}
			for _, s := range samples {
				require.Empty(t, s.Values, "each counts one")
				for _, ts := range s.Timestamps {
					if printed[int64(ts)] > 0 {
						printed[int64(ts)]--
						continue
					}
					require.True(t, atEdge(s, ts), "a fault at a time without a printed one")
				}
			}
			t.Logf("%d of %d faults have a time of their own", inTime(samples), len(r.rows))
			require.Greater(t, inTime(samples), 4000)
		})
	}
}

var lostSamples = regexp.MustCompile(`lost (\d+) samples`)

// TestPageFaultFlood runs a program with 100,000 faults a second: none is lost.
func TestPageFaultFlood(t *testing.T) {
	igtest.NeedRoot(t)
	flood := startLoad(t, compile(t, "flood"))
	r, err := export(t, options{image: igtest.Import(t, "profile_pagefault"), seconds: 5, quiet: true, urgent: true,
		flags: append([]string{"--comm=flood"}, framePointers...)})
	require.NoError(t, err)
	var touched, ns int64
	_, err = fmt.Sscan(flood.Stop(), &touched, &ns)
	require.NoError(t, err)

	lost := int64(0)
	for _, found := range lostSamples.FindAllSubmatch(r.log, -1) {
		n, err := strconv.ParseInt(string(found[1]), 10, 64)
		require.NoError(t, err)
		lost += n
	}
	all := igtest.Total(igtest.Through(r.of("flood"), "main"))
	t.Logf("the program faults %.0f times a second; %d faults in %d rows, %d faults lost", 1e9*float64(touched)/float64(ns), all, r.accounts.Read, lost)
	require.Positive(t, all)
	require.Zero(t, lost)
	// one row per function and second
	require.LessOrEqual(t, r.accounts.Read, int64(100*7))
}

// TestPageFaultsOfMany gives nearly every fault a row of its own, with more rows in a second than there is room for. Every row must
// keep its stack: faults without a row must not push it out.
func TestPageFaultsOfMany(t *testing.T) {
	igtest.NeedRoot(t)
	image := igtest.Import(t, "profile_pagefault")
	for _, tc := range []struct {
		name  string
		flags []string
		full  bool
	}{
		// On any machine, about a hundred processes fill these rows in a second.
		{"few rows", []string{"--rows=1024", "--stack-entries=4096"}, true},
		{"default", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spawn := startLoad(t, compile(t, "spawn"), "3")
			r, err := export(t, options{image: image, seconds: 5, quiet: true, urgent: true,
				flags: slices.Concat([]string{"--comm=spawn"}, framePointers, tc.flags)})
			require.NoError(t, err)
			var born, ns int64
			_, err = fmt.Sscan(spawn.Stop(), &born, &ns)
			require.NoError(t, err)
			housed, homeless := igtest.Total(r.of("spawn")), igtest.Total(r.of("[rows full]"))
			t.Logf("%.0f processes a second; %d faults in %d rows, %d of them without stack, and %d faults without a row",
				1e9*float64(born)/float64(ns), housed, r.accounts.Read, r.accounts.NoStack, homeless)
			require.Positive(t, housed)
			if tc.full {
				require.Positive(t, homeless)
			}
			// Each second has one row without a stack, for faults without a row.
			require.LessOrEqual(t, r.accounts.NoStack, 7+r.accounts.Read/1000)
		})
	}
}
