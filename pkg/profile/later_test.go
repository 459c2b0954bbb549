package profile_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// known is a Later that returns these frames.
type known struct {
	mu     sync.Mutex
	frames []profile.Frame
	all    bool
	fate   profile.Fate
	asked  int
}

func (k *known) Frames(dst []profile.Frame, _ bool) ([]profile.Frame, profile.Fate, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	return append(dst, k.frames...), k.fate, k.all
}

func (k *known) Size() int { return 100 }

// flushed returns a window's values by stack.
func flushed(t *testing.T, a *profile.Aggregator) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	for _, line := range folded(decode(t, a.Flush(start, end, profile.Limits{}))) {
		_, rest, _ := strings.Cut(line, ": ")
		stack, value, _ := strings.Cut(rest, " [")
		require.NotContains(t, all, stack, "samples of one stack are one")
		var n int64
		_, err := fmt.Sscanf(value, "%d]", &n)
		require.NoError(t, err)
		all[stack] = n
	}
	return all
}

func later(k *known, stack ...string) profile.Sample {
	s := profile.Sample{Stack: names(stack...), Later: k, LaterFrom: 0, LaterTo: len(stack)}
	for i, name := range stack {
		if name != "?" {
			s.LaterFrom = max(s.LaterFrom, i+1)
		}
	}
	return s
}

// TestLater checks that each row is written under the stack that is known when the window ends.
func TestLater(t *testing.T) {
	a := profile.New(config())
	one, two := &known{frames: names("work", "main"), all: true}, &known{frames: names("play", "main"), all: true}
	put(t, a, 1, 1, later(one, "sys", "?", "?"), 0, 3)
	put(t, a, 1, 2, later(two, "sys", "?", "?"), 0, 5)
	put(t, a, 1, 3, profile.Sample{Stack: names("sys", "play", "main")}, 0, 7)
	put(t, a, 1, 1, profile.Sample{}, 0, 10) // the key becomes known
	require.Equal(t, map[string]int64{"sys;work;main": 13, "sys;play;main": 12}, flushed(t, a))

	// The keys are now known.
	require.Equal(t, profile.NeedResource, a.Add(1, []int64{1}, 0))
	put(t, a, 1, 1, profile.Sample{}, 0, 1)
	put(t, a, 1, 2, profile.Sample{}, 0, 2)
	require.Equal(t, map[string]int64{"sys;work;main": 1, "sys;play;main": 2}, flushed(t, a))
}

// TestLaterLast checks that two stacks with the same names become one sample with the later value and both rows.
func TestLaterLast(t *testing.T) {
	cfg := config()
	cfg.Aggregation = profile.AggregateLast
	a := profile.New(cfg)
	put(t, a, 1, 1, later(&known{frames: names("work"), all: true}, "?"), 0, 5)
	put(t, a, 1, 2, later(&known{frames: names("work"), all: true}, "?"), 0, 3)
	f := a.Flush(start, end, profile.Limits{})
	require.Equal(t, []string{"svc-1 samples: work [3]"}, folded(decode(t, f)))
	require.EqualValues(t, 2, f.Messages[0].Rows)
}

// TestLaterFate checks that a stack's fate is known with its names.
func TestLaterFate(t *testing.T) {
	a := profile.New(config())
	put(t, a, 1, 1, later(&known{frames: names("work"), all: true, fate: profile.Incomplete}, "?"), 0, 3)
	put(t, a, 1, 1, profile.Sample{}, 0, 3)
	put(t, a, 1, 2, later(&known{frames: names("work"), all: true}, "?"), 0, 3)
	f := a.Flush(start, end, profile.Limits{})
	require.Equal(t, profile.Fates{profile.Whole: 1, profile.Incomplete: 2}, f.Fates)
	put(t, a, 1, 1, profile.Sample{}, 0, 3)
	require.Equal(t, profile.Fates{profile.Incomplete: 1}, a.Flush(start, end, profile.Limits{}).Fates)
}

// TestLaterStillPending checks that a stack that is still incomplete when the window ends is written as far as known. Its key
// is requested again.
func TestLaterStillPending(t *testing.T) {
	a := profile.New(config())
	k := &known{frames: names("file.so")}
	put(t, a, 1, 1, later(k, "?"), 0, 3)
	require.Equal(t, map[string]int64{"file.so": 3}, flushed(t, a))
	k.frames, k.all = names("work"), true
	require.Equal(t, profile.NeedSample, a.Add(1, []int64{1}, 0))
	put(t, a, 1, 1, later(k, "?"), 0, 4)
	require.Equal(t, map[string]int64{"work": 4}, flushed(t, a))
	require.Empty(t, flushed(t, a))
}

// TestLaterShapes checks that every shape keeps its events.
func TestLaterShapes(t *testing.T) {
	for _, shape := range []profile.Shape{profile.ShapeEvents, profile.ShapeTimestamps, profile.ShapeSingle} {
		cfg := config()
		cfg.Shape = shape
		a := profile.New(cfg)
		k := &known{frames: names("work"), all: true}
		put(t, a, 1, 1, later(k, "?"), start+10, 1)
		put(t, a, 1, 1, profile.Sample{}, start+30, 1)
		put(t, a, 1, 2, profile.Sample{Stack: names("work")}, start+20, 1)
		f := a.Flush(start, end, profile.Limits{})
		require.Len(t, f.Messages, 1)
		require.EqualValues(t, 3, f.Messages[0].Rows)
		require.EqualValues(t, 1, f.Messages[0].Samples)
		s := decode(t, f)[0].ResourceProfiles[0].ScopeProfiles[0].Profiles[0].Samples[0]
		if shape == profile.ShapeSingle {
			require.Equal(t, []uint64{start + 30}, s.TimestampsUnixNano)
			require.Equal(t, []int64{3}, s.Values)
		} else {
			require.ElementsMatch(t, []uint64{start + 10, start + 20, start + 30}, s.TimestampsUnixNano)
		}
	}
}

// TestLaterRoom checks that stacks that never become complete release their memory.
func TestLaterRoom(t *testing.T) {
	a := profile.New(config())
	k := &known{frames: names("x")}
	var bytes int64
	for window := range 50 {
		for key := range uint64(500) {
			put(t, a, 1, 1+key, later(k, "?"), 0, 1)
		}
		require.Equal(t, map[string]int64{"x": 500}, flushed(t, a))
		if window == 2 {
			bytes = a.Usage()
		}
	}
	require.LessOrEqual(t, a.Usage(), bytes)

	// The look-ups count while they are pending.
	before := a.Usage()
	for key := range uint64(50) {
		put(t, a, 1, 1000+key, later(k, "?"), 0, 1)
	}
	require.GreaterOrEqual(t, a.Usage()-before, int64(50*k.Size()))
}

// TestManyLater checks that names of many stacks are requested before the window ends.
func TestManyLater(t *testing.T) {
	a := profile.New(config())
	require.False(t, a.Ask(), "there are none")
	var all []*known
	want := map[string]int64{}
	for key := range uint64(100) {
		k := &known{}
		all = append(all, k)
		put(t, a, 1, 1+key, later(k, "?"), 0, 1)
		want[fmt.Sprint("f", key)] = 1
	}
	require.True(t, a.Ask())
	for i, k := range all {
		k.frames, k.all = names(fmt.Sprint("f", i)), i < 99
	}
	require.True(t, a.Ask(), "one is missing")
	all[99].all = true
	require.False(t, a.Ask())
	for _, k := range all {
		require.Positive(t, k.asked)
		k.asked = 0
	}
	require.False(t, a.Ask())
	for _, k := range all {
		require.Zero(t, k.asked, "it is complete")
	}
	require.Equal(t, want, flushed(t, a))
}

// TestLaterMeanwhile checks that rows that arrive while stacks are resolved are neither lost nor counted twice.
func TestLaterMeanwhile(t *testing.T) {
	a := profile.New(config())
	const rows, workers = 5000, 4
	var wg sync.WaitGroup
	for w := range uint64(workers) {
		wg.Go(func() {
			for i := range uint64(rows) {
				k := &known{frames: names(fmt.Sprint("f", i%7)), all: i%3 > 0}
				key := w<<32 | i%97 + 1
				for st := a.Add(key, []int64{1}, 0); st != profile.Added; {
					switch st {
					case profile.NeedResource:
						a.SetResource(1, service("svc-1"))
						st = a.Add(key, []int64{1}, 0)
					default:
						if st = a.Insert(1, key, later(k, "?"), []int64{1}, 0); st == profile.NeedResource {
							a.SetResource(1, service("svc-1"))
							st = profile.NeedSample
						}
					}
				}
			}
		})
	}
	total := int64(0)
	sum := func() {
		for _, v := range flushed(t, a) {
			total += v
		}
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		sum()
	}
	require.EqualValues(t, rows*workers, total)
}

// TestLaterWhileServicesAreFolded adds pending samples, which reuse entries, while another goroutine encodes the previous
// window. The race detector finds unsafe accesses.
func TestLaterWhileServicesAreFolded(t *testing.T) {
	cfg := config()
	cfg.HostServices = 1
	a := profile.New(cfg)
	set := func() {
		for group := range uint64(3) {
			a.SetResource(group, profile.Resource{Host: true, Group: group + 1})
		}
	}
	var adding sync.WaitGroup
	adding.Go(func() {
		for key := range uint64(20_000) {
			set()
			a.Insert(key%3, key, later(&known{frames: names("work")}, "?"), []int64{1}, start)
		}
	})
	done := make(chan struct{})
	go func() { adding.Wait(); close(done) }()
	for {
		a.Flush(start, end, profile.Limits{})
		select {
		case <-done:
			return
		default:
		}
	}
}
