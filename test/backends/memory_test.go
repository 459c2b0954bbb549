//go:build e2e

package backends

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// told is a server with a receiver in front of it. The receiver stores the requests.
type told struct {
	server
	between *receiver.Receiver
}

// tell starts the servers that take part, and returns them with their exporters' settings.
func tell(t *testing.T) (servers map[string]told, config string) {
	t.Helper()
	servers, config = map[string]told{}, "operator:\n  otel-profiles:\n    exporters:\n"
	add := func(name string, s server, settings string) {
		servers[name] = told{s, passOn(t, s.addr())}
		config += exporter(t, s.name(), s.name(), name, servers[name].between.Addr()) + patient + settings
	}
	add("parca", startParca(t), "")
	if asked("pyroscope") {
		add("pyroscope", startPyroscope(t), "")
		add("pyroscope2", startPyroscope2(t), "")
		// This server is like one behind a Collector that sends to several backends.
		add("relabels", startPyroscope(t, relabeling(t)), "        profile_name: plain\n")
	}
	return servers, config
}

// relabeling returns the flag for the settings of a server on the page.
func relabeling(t *testing.T) string {
	t.Helper()
	var settings struct {
		Limits struct {
			Rules []map[string]any `yaml:"ingestion_relabeling_rules"`
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(collectortest.Documented(t, "pyroscope-names")), &settings))
	require.NotEmpty(t, settings.Limits.Rules)
	rules, err := json.Marshal(settings.Limits.Rules)
	require.NoError(t, err)
	return "-distributor.ingestion-relabeling-rules=" + string(rules)
}

// watch is a gadget that watches a program. ready is the line that ig logs when the gadget is ready. enough reports whether a
// server has received all relevant data after the program's work.
type watch struct {
	gadget, ready string
	flags         []string
	enough        func(told) bool
}

// run starts the gadget before the program works. It stops the gadget when the program has printed its counts and all servers have
// enough data. It returns these counts, and a time that contains all samples. The program waits for a line, prints, and waits for its input
// to end.
func (w watch) run(t *testing.T, config string, servers map[string]told, program []string, says int) (text string, in span) {
	t.Helper()
	begin := time.Now().Add(-time.Second)
	p := igtest.StartProgram(t, exec.Command(program[0], program[1:]...))
	defer p.Kill()
	ig := startGadget(t, w.gadget, config, strings.Join(slices.Sorted(maps.Keys(servers)), ","), append([]string{"--pid=" + strconv.Itoa(p.PID)}, w.flags...)...)
	ig.Says(w.ready)
	p.Next()
	text = p.Lines(says)
	require.Eventually(t, func() bool {
		for _, s := range servers {
			if !w.enough(s) {
				return false
			}
		}
		return true
	}, time.Minute, 100*time.Millisecond)
	ig.Stop()
	require.Contains(t, ig.Log.String(), " 0 dropped")
	require.NotContains(t, ig.Log.String(), "refused")
	return text, span{begin, time.Now().Add(2 * time.Second)}
}

// typesOf returns a server's profile types once there are n of them.
func (s told) typesOf(t *testing.T, all span, n int) []string {
	t.Helper()
	var types []string
	require.Eventually(t, func() bool { types = s.profileTypes(t, all); return len(types) >= n }, time.Minute, time.Second)
	slices.Sort(types)
	return types
}

// sent adds up the values of a sample type that a server received.
func (s told) sent(sampleType string) int64 {
	return igtest.Total(igtest.Typed(s.between.Samples(), sampleType))
}

// states returns the sums of the profiles that a server received for a sample type, by time, and the sorted times.
func (s told) states(sampleType string) (sums map[time.Time]int64, times []time.Time) {
	sums = map[time.Time]int64{}
	for _, one := range igtest.Typed(s.between.Samples(), sampleType) {
		sums[one.Start] += one.Total()
	}
	return sums, slices.SortedFunc(maps.Keys(sums), time.Time.Compare)
}

// alone returns the latest of times that is more than a second from each other time. A run's last two states can follow each
// other immediately.
func alone(t *testing.T, times []time.Time) time.Time {
	t.Helper()
	for i, at := range slices.Backward(times) {
		if (i == 0 || at.Sub(times[i-1]) > time.Second) && (i == len(times)-1 || times[i+1].Sub(at) > time.Second) {
			return at
		}
	}
	require.FailNow(t, "every state has another one within a second", "%v", times)
	return time.Time{}
}

// check compares a server's data for a profile type with the data that it received, and returns its stacks.
func (s told) check(t *testing.T, profileType, selector string, all span) []stack {
	t.Helper()
	sent := s.sent(strings.Split(profileType, ":")[1])
	require.Positive(t, sent)
	of := s.of(profileType)
	require.Eventually(t, func() bool { return of.stored(t, selector, all) == sent }, 30*time.Second, 2*time.Second, "%s: %d stored, %d sent", profileType, of.stored(t, selector, all), sent)
	require.Eventually(t, func() bool { return of.flame(t, selector, all) == sent }, 30*time.Second, 2*time.Second, "the flame graph of %s: %d, %d sent", profileType, of.flame(t, selector, all), sent)
	stacks := of.query(t, selector, all)
	require.Equal(t, sent, total(stacks), "the sum of the shown stacks")
	return stacks
}

// through adds up the stacks that contain a function.
func through(stacks []stack, function string) (sum int64) {
	for _, s := range stacks {
		if slices.Contains(s.functions, function) {
			sum += s.value
		}
	}
	return sum
}

// requireNear compares a sampled amount with the true one. step is the mean number of bytes between samples, and n is the true
// number of bytes.
func requireNear(t *testing.T, what string, want, got int64, n, step float64) {
	t.Helper()
	t.Logf("%s: %d of %d (%+.1f %%), some %.0f samples", what, got, want, 100*float64(got-want)/float64(want), n/step)
	require.InDelta(t, float64(want), float64(got), 4.5*float64(want)/math.Sqrt(n/step), what)
}

// TestMemory profiles a program that counts its allocations. The servers must name the profiles as their own pages expect, and
// return the program's counts.
func TestMemory(t *testing.T) {
	igtest.NeedRoot(t)
	const step = 65536
	servers, config := tell(t)
	text, all := watch{
		gadget: "profile_alloc", ready: "the first probes are attached", flags: []string{"--max-cost=1000", fmt.Sprintf("--sample-bytes=%d", step)},
		enough: func(s told) bool { return s.sent("alloc_space") > 0 },
	}.run(t, config, servers, []string{igtest.Compile(t, "../memory/testdata/allocate.c", "gcc", "-O2", "-fomit-frame-pointer"), "8", "100"}, 4)
	truth := igtest.ReadTruth(t, strings.TrimPrefix(text, "ready\n"))
	known := map[string][]string{
		"parca":     {"memory:alloc_objects:count:space:bytes:delta", "memory:alloc_space:bytes:space:bytes:delta"},
		"pyroscope": {"memory:alloc_objects:count:space:bytes", "memory:alloc_space:bytes:space:bytes"},
	}
	for name, s := range servers {
		t.Run(name, func(t *testing.T) {
			types := s.typesOf(t, all, 2)
			require.Equal(t, known[s.name()], types)
			s.requirePeriod(t, name, "space", "bytes", step)
			selector := selector("service_name", "allocate")
			objects, bytes := s.check(t, types[0], selector, all), s.check(t, types[1], selector, all)
			for function, a := range truth {
				requireNear(t, "bytes of "+function, a.Sum, through(bytes, function), float64(a.Sum), step)
				requireNear(t, "calls in "+function, a.Calls, through(objects, function), float64(a.Sum)/1.3, step)
			}
		})
	}
}

// TestMemoryInUse shows a state: memory in use. A server that adds up the profiles of a time range shows the sum of the states in
// the range. For a range with one profile, it must show the memory that the program has not freed.
func TestMemoryInUse(t *testing.T) {
	igtest.NeedRoot(t)
	const step = 16384
	servers, config := tell(t)
	text, all := watch{
		gadget: "profile_alloc", ready: "the first probes are attached", flags: []string{"--live", "--max-cost=1000", fmt.Sprintf("--sample-bytes=%d", step)},
		// The test waits until the memory in use no longer changes.
		enough: func(s told) bool {
			states, times := s.states("inuse_space")
			n := len(times)
			return n > 3 && states[times[n-1]] == states[times[n-2]]
		},
	}.run(t, config, servers, []string{igtest.Compile(t, "../memory/testdata/allocate.c", "gcc", "-O2", "-fomit-frame-pointer"), "8", "100"}, 4)
	leaked := igtest.ReadTruth(t, strings.TrimPrefix(text, "ready\n"))["leak_some"]
	types := []string{"memory:inuse_objects:count:space:bytes", "memory:inuse_space:bytes:space:bytes"}
	for name, s := range servers {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, types, s.typesOf(t, all, 2))
			s.requirePeriod(t, name, "space", "bytes", step)
			selector := selector("service_name", "allocate")
			for _, one := range s.between.Samples() {
				require.Equal(t, one.Start, one.End, "a state has no duration")
			}
			states, times := s.states("inuse_space")
			last := alone(t, times)
			for _, at := range times {
				t.Logf("%s: %d in use", at.Format(time.StampMilli), states[at])
			}

			s.check(t, types[0], selector, all)
			summed := total(s.check(t, types[1], selector, all))
			require.Greater(t, summed, 2*states[last], "the states of a range add up")

			stacks := s.of(types[1]).(interface {
				single(t *testing.T, selector string, at time.Time) []stack
			}).single(t, selector, last)
			require.Equal(t, states[last], total(stacks), "one state")
			requireNear(t, "bytes in use of leak_some", leaked.Sum, through(stacks, "leak_some"), float64(leaked.Sum), step)
			require.Zero(t, through(stacks, "allocate_large")+through(stacks, "allocate_middle"), "freed memory is not in use")
			if p, ok := s.server.(*pyroscope); ok {
				mean := float64(summed) / float64(len(states))
				if name == "pyroscope2" {
					mean = float64(summed) // its storage adds up profiles for every query
				}
				require.InDelta(t, mean, p.of(types[1]).(*pyroscope).average(t, selector, all), mean/1000, "the mean of the states")
			}
		})
	}
}

// TestLocks profiles threads that wait for locks. The servers must name the profiles as their own pages expect.
func TestLocks(t *testing.T) {
	igtest.NeedRoot(t)
	servers, config := tell(t)
	_, all := watch{
		gadget: "profile_lock", ready: "exporting data source",
		enough: func(s told) bool { return s.sent("delay") > 0 },
	}.run(t, config, servers, []string{igtest.Compile(t, "../locks/testdata/locks.c", "gcc", "-O2", "-fomit-frame-pointer"), "6"}, 1)
	known := map[string][]string{
		"parca":     {"mutex:contentions:count:contentions:count:delta", "mutex:delay:nanoseconds:contentions:count:delta"},
		"pyroscope": {"mutex:contentions:count:contentions:count", "mutex:delay:nanoseconds:contentions:count"},
	}
	for name, s := range servers {
		t.Run(name, func(t *testing.T) {
			types := s.typesOf(t, all, 2)
			require.Equal(t, known[s.name()], types)
			s.requirePeriod(t, name, "contentions", "count", 1)
			selector := selector("service_name", "locks")
			s.check(t, types[0], selector, all)
			require.Positive(t, through(s.check(t, types[1], selector, all), "take_mutex"))
		})
	}
}

// Pyroscope would name a profile by its period's type. So profiles must not have a period there, unless the server's settings
// rename profiles.
func (s told) requirePeriod(t *testing.T, name, periodType, unit string, period int64) {
	t.Helper()
	if strings.HasPrefix(name, "pyroscope") {
		period = 0
	}
	for _, one := range s.between.Samples() {
		require.Equal(t, []any{periodType, unit, period}, []any{one.PeriodType, one.PeriodUnit, one.Period})
	}
}

// single returns the profile of one time, like the page after a click on a point.
func (p *parca) single(t *testing.T, selector string, at time.Time) []stack {
	t.Helper()
	var answer struct{ Pprof string }
	call(t, p.url("query"), url.Values{
		"mode": {"MODE_SINGLE_UNSPECIFIED"}, "report_type": {"REPORT_TYPE_PPROF"},
		"single.query": {p.picked(selector)}, "single.time": {at.UTC().Format(time.RFC3339Nano)},
	}, nil, &answer)
	body, err := base64.StdEncoding.DecodeString(answer.Pprof)
	require.NoError(t, err)
	prof, err := profile.ParseData(body)
	require.NoError(t, err)
	return pprofStacks(prof)
}

// single returns the data of a range with one profile in it.
func (p *pyroscope) single(t *testing.T, selector string, at time.Time) []stack {
	t.Helper()
	return p.query(t, selector, span{at.Add(-500 * time.Millisecond), at.Add(500 * time.Millisecond)})
}

// average is the mean of a range's profiles, as in a query for a state.
func (p *pyroscope) average(t *testing.T, selector string, in span) float64 {
	t.Helper()
	var answer struct {
		Series []struct{ Points []struct{ Value float64 } }
	}
	in.until = in.until.Add(time.Minute)
	p.ask(t, "SelectSeries", selector, in, map[string]any{"step": in.until.Sub(in.from).Seconds(), "aggregation": "TIME_SERIES_AGGREGATION_TYPE_AVERAGE"}, &answer)
	require.Len(t, answer.Series, 1)
	require.Len(t, answer.Series[0].Points, 1)
	return answer.Series[0].Points[0].Value
}
