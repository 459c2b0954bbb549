package profile_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

func TestBounds(t *testing.T) {
	cfg := config()
	cfg.MaxBytes = 1 << 20
	a := profile.New(cfg)
	statuses := map[profile.Status]int{}
	taken, warned := int64(0), false
	for i := range 20_000 {
		st := put(t, a, 1+uint64(i%2), uint64(i), profile.Sample{Stack: names(fmt.Sprint("function-", i))}, 0, 1)
		statuses[st]++
		if st == profile.Added {
			taken++
		}
		if len(statuses) == 1 { // until the first row is refused
			early, used := a.NearFull(), a.Usage()
			require.Equal(t, used >= cfg.MaxBytes/4*3, early, "early enough for a flush, at %d bytes", used)
			warned = warned || early
		}
	}
	require.True(t, warned)
	require.Positive(t, statuses[profile.Full]+statuses[profile.ResourceFull])
	require.LessOrEqual(t, a.Usage(), cfg.MaxBytes+4096)
	rows := int64(0)
	f := a.Flush(start, end, profile.Limits{})
	for _, m := range f.Messages {
		rows += m.Rows
	}
	require.Equal(t, taken, rows)
	require.False(t, a.NearFull())
	require.Less(t, a.Usage(), cfg.MaxBytes/10, "the dictionary starts anew")

	t.Run("one resource cannot take it all", func(t *testing.T) {
		a := profile.New(cfg)
		for i := range 20_000 {
			put(t, a, 1, uint64(i), profile.Sample{Stack: names(fmt.Sprint("flood-", i))}, 0, 1)
		}
		require.Equal(t, profile.ResourceFull, put(t, a, 1, 1e6, profile.Sample{Stack: names("x")}, 0, 1))
		require.Equal(t, profile.Added, put(t, a, 2, 1e6+1, profile.Sample{Stack: names("y")}, 0, 1))
	})
	t.Run("events are bounded", func(t *testing.T) {
		cfg.Shape = profile.ShapeEvents
		a := profile.New(cfg)
		full := 0
		for range 1_000_000 {
			if put(t, a, 1, 1, profile.Sample{Stack: names("x")}, start, 1) == profile.Full {
				full++
			}
		}
		require.Positive(t, full)
		require.LessOrEqual(t, a.Usage(), cfg.MaxBytes+4096)
	})
}

// TestNothingGrows simulates hours with new stacks and containers in every window. The dictionary must stay as small as after
// the first minutes.
func TestNothingGrows(t *testing.T) {
	a := profile.New(config())
	key, worst := uint64(0), int64(0)
	for w := range 400 {
		for i := range 50 {
			key++
			put(t, a, uint64(w*2+i%2), key, profile.Sample{Stack: names(fmt.Sprint("f", key), "main")}, 0, 1)
		}
		decode(t, a.Flush(start+uint64(w), end+uint64(w), profile.Limits{}))
		if w == 120 {
			worst = a.Usage() + 3_000_000
		}
		if w > 120 {
			require.Less(t, a.Usage(), worst)
		}
	}
}

// TestUsageCoversTheHeap checks that the heap does not exceed the estimate, even with an encoder's own tables.
func TestUsageCoversTheHeap(t *testing.T) {
	before := igtest.Heap()
	a := profile.New(config())
	const n = 20_000
	for i := range n {
		put(t, a, 1, uint64(i), profile.Sample{Stack: deep(i, 28)}, 0, 1)
	}
	added := igtest.Heap() - before
	f := a.Flush(start, end, profile.Limits{})
	messages := int64(0)
	for _, m := range f.Messages {
		messages += int64(cap(m.Body))
	}
	encoded := igtest.Heap() - before - messages
	usage := a.Usage()
	t.Logf("%d stacks: %d bytes each by estimate, %d in the heap, %d after encoding", n, usage/n, added/n, encoded/n)
	require.LessOrEqual(t, added, usage)
	require.LessOrEqual(t, encoded, usage+usage/2)
	runtime.KeepAlive(a)
	runtime.KeepAlive(f)
}

func TestConcurrent(t *testing.T) {
	a := profile.New(config())
	var wg sync.WaitGroup
	const goroutines, n = 4, 20_000
	for g := range goroutines {
		wg.Go(func() {
			for i := range n {
				put(t, a, uint64(1+i%3), uint64(3*(i%300)+i%3+1000*(g%2)), profile.Sample{Stack: names(fmt.Sprint("f", i%300), fmt.Sprint(g%2))}, 0, 1)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	sum := int64(0)
	for last := false; !last; {
		select {
		case <-done:
			last = true
		default:
		}
		for _, req := range decode(t, a.Flush(start, end, profile.Limits{MaxBytes: 30_000})) {
			for _, rp := range req.ResourceProfiles {
				for _, s := range rp.ScopeProfiles[0].Profiles[0].Samples {
					sum += s.Values[0]
				}
			}
		}
	}
	require.EqualValues(t, goroutines*n, sum)
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	a := profile.New(config())
	for i := range 100 {
		put(t, a, 1, uint64(i), profile.Sample{Stack: names(fmt.Sprint("f", i))}, 0, 1)
	}
	i, values := uint64(0), []int64{1}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if a.Add(i%100, values, 0) != profile.Added {
			t.Fatal("not added")
		}
		i++
	}))
}

// TestForgottenKeysGiveBackTheirRoom checks the memory if stacks are forgotten and seen again in each window.
func TestForgottenKeysGiveBackTheirRoom(t *testing.T) {
	cfg := config()
	cfg.MaxBytes = 1 << 20
	a := profile.New(cfg)
	for w := range uint64(50) {
		for key := range uint64(1000) {
			st := put(t, a, 1, 1+key, profile.Sample{Stack: names("x"), Later: profile.AskAgain}, 0, 1)
			require.Equal(t, profile.Added, st, "window %d", w)
		}
		require.False(t, a.Flush(start+w, end+w, profile.Limits{}).Renewed)
	}
}
