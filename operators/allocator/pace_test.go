package allocator

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlanFor(t *testing.T) {
	for _, tc := range []struct {
		name                 string
		cost, around, budget float64
		period, stretch      time.Duration
	}{
		{"a tenth", 0.5, 0, 0.05, time.Second, shortest},
		{"below the budget", 0.01, 0, 0.05, often, often / 2},
		{"nothing", 0, 0, 0.05, often, often / 2},
		{"a half", 0.1, 0, 0.05, often, often / 2},
		{"just the longest period", 1, 0, 1.0 / 600, longest, shortest},
		{"shorter stretches", 10, 0, 0.05 / 3, longest, shortest},
		{"shorter stretches still", 20, 0, 0.01, longest, 30 * time.Millisecond},
		{"as short as can be", 1e6, 0, 0.01, longest, brief},
		{"half of a stretch to come and to go", 1, 0.05, 0.05, 3 * time.Second, shortest},
		{"more than a stretch to come and to go", 1, 0.2, 0.05, 8 * time.Second, 200 * time.Millisecond},
		{"much more", 1, 2, 0.05, 50 * time.Second, extended},
		{"more than the longest period has", 1, 10, 0.05, longest, brief},
		{"a shorter stretch for it", 1, 2.9, 0.05, longest, 100 * time.Millisecond},
		{"below the budget, but for that", 0.1, 0.02, 0.05, often, 300 * time.Millisecond},
		{"nothing but that", 0, 0.02, 0.05, often, often / 2},
	} {
		waits := map[bool]bool{}
		for range 200 {
			p := planFor(tc.cost, tc.around, tc.budget)
			require.InDelta(t, tc.period, p.period, 10, tc.name)
			require.InDelta(t, tc.stretch, p.stretch, 10, tc.name)
			require.GreaterOrEqual(t, p.wait, time.Duration(0))
			require.LessOrEqual(t, p.wait+p.stretch, p.period, "the stretch is within its period")
			waits[p.wait > (p.period-p.stretch)/2] = true
		}
		if tc.period > tc.stretch {
			require.Len(t, waits, 2, "anywhere in it: %s", tc.name)
		}
	}
}

// simulation drives a pacer with a simulated clock and a simulated program that makes calls.
type simulation struct {
	*pacer
	t        *testing.T
	now      time.Time
	calls    float64
	attached time.Duration
	// standing is the time that all closed stretches represent. open is the length of the open stretch.
	standing, open float64
	closedAt       time.Time
	begin          time.Time
	moves          map[move]int
	// coming is how long attaching takes. Removing takes going, while calls still count, and then uncounted, while they do not.
	coming, going, uncounted time.Duration
	all                      float64       // calls with a probe
	drawn                    time.Duration // extra time of sampled calls, as a mean over all calls
}

func newSimulation(t *testing.T, budget float64) *simulation {
	s := &simulation{t: t, pacer: &pacer{budget: budget, each: time.Microsecond}, now: time.Unix(1000, 0), moves: map[move]int{}}
	s.begin = s.now
	s.pacer.begin(s.now, usage{})
	return s
}

// run lets time pass. rate returns the program's calls per second at a time after the start.
func (s *simulation) run(length time.Duration, live bool, rate func(at time.Duration) float64) (last move) {
	s.t.Helper()
	for end := s.now.Add(length); s.now.Before(end); {
		s.now = s.now.Add(tick)
		if s.pacer.attached {
			s.calls += rate(s.now.Sub(s.begin)) * tick.Seconds()
			s.all += rate(s.now.Sub(s.begin)) * tick.Seconds()
			s.attached += tick
			s.open += tick.Seconds()
		}
		m := s.next(s.now, s.met(), live)
		s.moves[m]++
		switch m {
		case tooDear:
			return m
		case pause:
			w := s.close(s.now)
			require.GreaterOrEqual(s.t, w, 1.0)
			s.standing += w * s.open
			s.open, s.closedAt = 0, s.now
			before := s.met()
			s.pass(s.going, rate)
			s.all += rate(s.now.Sub(s.begin)) * s.uncounted.Seconds()
			s.now = s.now.Add(s.uncounted)
			s.detached(before, s.met(), s.uncounted)
		case resume:
			require.Positive(s.t, s.share())
			require.LessOrEqual(s.t, s.share(), 1.0)
			before := s.met()
			s.pass(s.coming, rate)
			s.opened(s.now, before, s.met())
		case always:
			s.standing += s.close(s.now) * s.open
			s.open, s.closedAt = 0, s.now
			s.pacer.begin(s.now, s.met())
		}
	}
	return stay
}

// met returns the usage that the probes have counted.
func (s *simulation) met() usage {
	return usage{uint64(s.calls), time.Duration(s.calls * float64(s.drawn))}
}

// pass lets time pass while calls are counted.
func (s *simulation) pass(length time.Duration, rate func(at time.Duration) float64) {
	n := rate(s.now.Sub(s.begin)) * length.Seconds()
	s.calls, s.all, s.now = s.calls+n, s.all+n, s.now.Add(length)
}

func (s *simulation) cost() float64 {
	return s.all * (1e-6 + s.drawn.Seconds()) / s.now.Sub(s.begin).Seconds()
}

func steady(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

// The stretches must represent the whole time, and cost no more than the budget.
func TestPacer(t *testing.T) {
	for _, rate := range []float64{1e5, 1e6, 2e6} { // 0.1, 1 and 2 CPUs
		s := newSimulation(t, 0.05)
		s.run(20*time.Minute, false, steady(rate))
		require.Positive(t, s.moves[resume])
		require.Zero(t, s.moves[always])
		require.InDelta(t, s.closedAt.Sub(s.begin).Seconds(), s.standing, 1e-6*s.standing, "all of the time, once")
		require.InEpsilon(t, 0.05, s.cost(), 0.35, "%v calls a second", rate)
		require.False(t, s.pacer.attached && !s.pacer.open())
	}
}

// The budget must include the cost of attaching and removing probes.
func TestPacerAround(t *testing.T) {
	for _, around := range [][3]time.Duration{
		{50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond},
		{0, 0, 3 * time.Second}, // a thousand probes
	} {
		for _, rate := range []float64{2e5, 1e6} {
			s := newSimulation(t, 0.05)
			s.coming, s.going, s.uncounted = around[0], around[1], around[2]
			s.run(time.Hour, false, steady(rate))
			require.Less(t, s.cost(), 0.06, "%v, %v calls a second", around, rate)
			require.Greater(t, s.cost(), 0.03, "%v, %v calls a second", around, rate)
			require.Greater(t, s.moves[resume], 15)
		}
	}
	// This must also hold in the first period.
	s := newSimulation(t, 0.05)
	s.uncounted = time.Second
	s.run(1100*time.Millisecond, false, steady(1e6))
	require.Equal(t, 1, s.moves[pause])
	require.InDelta(t, 30*time.Second, s.plan.period, float64(time.Second))
	// If a removal is cheap because the program pauses, the estimate must not assume that the next removal is also cheap.
	p := pacer{budget: 0.05, each: time.Microsecond, cost: 1, did: true}
	p.detached(usage{}, usage{calls: 50_000}, 50*time.Millisecond)
	require.InDelta(t, 0.1, p.around, 1e-9)
	p.opened(time.Now(), usage{calls: 50_000}, usage{calls: 60_000})
	p.detached(usage{calls: 100_000}, usage{calls: 100_000}, 0)
	require.InDelta(t, 0.05, p.around, 1e-9)
	p.detached(usage{calls: 100_000}, usage{calls: 100_000}, 0)
	require.InDelta(t, 0.025, p.around, 1e-9, "those that came are counted once")
}

// The budget must include the cost of collecting stacks.
func TestPacerDrawn(t *testing.T) {
	s := newSimulation(t, 0.05)
	s.run(10*time.Minute, false, steady(4e4))
	require.Zero(t, s.moves[pause], "the calls alone cost less")
	s = newSimulation(t, 0.05)
	s.drawn = 4 * time.Microsecond
	s.run(20*time.Minute, false, steady(4e4))
	require.Positive(t, s.moves[pause])
	require.InEpsilon(t, 0.05, s.cost(), 0.35)
	require.Equal(t, "0.20 CPUs (40000 calls per second at 1µs each, and 0.160 CPUs for stacks)", s.pacer.now())
}

// The summary must depend on how the run ended.
func TestPacerString(t *testing.T) {
	p := pacer{budget: 0.05, each: time.Microsecond, cost: 1}
	p.start(time.Now())
	require.Contains(t, p.String(), "the probes were attached only during random periods (1 so far, the last one for 100ms in every 2s)")
	p.begin(time.Now(), usage{})
	require.Equal(t, "the probes were attached only during random periods (1), and then all the time", p.String())
}

// Below the budget, the probes must stay.
func TestPacerCheap(t *testing.T) {
	s := newSimulation(t, 0.05)
	s.run(time.Hour, false, steady(4e4))
	require.Equal(t, map[move]int{stay: int(time.Hour / tick)}, s.moves)
	require.Equal(t, "the probes were attached all the time", s.String())
	// One expensive moment must not remove the probes.
	s = newSimulation(t, 0.05)
	s.run(time.Minute, false, func(at time.Duration) float64 {
		if at > 10*time.Second && at < 10*time.Second+settle/2 {
			return 1e6
		}
		return 0
	})
	require.Zero(t, s.moves[pause])
}

// After a busy time, the probes must stay attached again.
func TestPacerCalm(t *testing.T) {
	s := newSimulation(t, 0.05)
	busy := func(at time.Duration) float64 {
		if at < 5*time.Minute {
			return 1e6
		}
		return 1e4
	}
	s.run(10*time.Minute, false, busy)
	require.Equal(t, 1, s.moves[always])
	require.True(t, s.pacer.attached)
	require.InDelta(t, s.now.Sub(s.begin).Seconds(), s.standing+s.open, 1e-6*s.standing, "no time is left out before that")
	require.Greater(t, s.attached, 4*time.Minute)
	require.Zero(t, s.plan.period)
}

// A program that works in bursts must cost no more than a program that works all the time.
func TestPacerBursts(t *testing.T) {
	for _, work := range []time.Duration{300 * time.Millisecond, 3 * time.Second} {
		for _, rest := range []time.Duration{500 * time.Millisecond, 5 * time.Second} {
			s := newSimulation(t, 0.05)
			s.run(2*time.Hour, false, func(at time.Duration) float64 {
				if at%(work+rest) < work {
					return 2e6
				}
				return 0
			})
			require.Less(t, s.cost(), 0.07, "%v of work and %v without", work, rest)
			require.Greater(t, s.moves[pause], 10)
		}
	}
}

// Stretches cannot show memory in use, so the run must end.
func TestPacerLive(t *testing.T) {
	s := newSimulation(t, 0.05)
	require.Equal(t, tooDear, s.run(time.Minute, true, steady(1e6)))
	require.Contains(t, s.pacer.now(), "1.00 CPUs")
	s = newSimulation(t, 0.05)
	require.Equal(t, stay, s.run(time.Minute, true, steady(1e4)))
}

// These cases are a clock that stands still, and a suspended machine.
func TestPacerClock(t *testing.T) {
	s := newSimulation(t, 0.05)
	s.run(time.Minute, false, steady(1e6))
	for range 1000 {
		s.now = s.now.Add(time.Duration(rand.N(3)) * time.Hour)
		switch s.next(s.now, s.met(), false) {
		case pause:
			require.GreaterOrEqual(t, s.close(s.now), 1.0)
		case resume:
			s.opened(s.now, s.met(), s.met())
		case always:
			require.GreaterOrEqual(t, s.close(s.now), 1.0)
			s.pacer.begin(s.now, s.met())
		}
	}
}

func TestLeft(t *testing.T) {
	begin := time.Now()
	p := pacer{budget: 0.05, each: time.Microsecond}
	p.begin(begin, usage{})
	require.False(t, p.left(begin.Add(time.Hour)), "the probes are always there")
	p.close(begin.Add(time.Second))
	require.False(t, p.left(begin.Add(time.Second+shortest)))
	require.True(t, p.left(begin.Add(3*time.Second)))
	p.opened(begin.Add(3*time.Second), usage{}, usage{})
	require.False(t, p.left(begin.Add(4*time.Second)), "a stretch is open")
	require.InDelta(t, 2/0.1, p.close(begin.Add(3*time.Second+100*time.Millisecond)), 1.1)
}

// Probes that stayed attached only briefly must be cheap for longer before they stay again. Otherwise, the required time is
// reset.
func TestPacerForgives(t *testing.T) {
	for stayed, want := range map[time.Duration]int{long - settle: 8 * calm, long + settle: calm} {
		p, now := &pacer{budget: 0.05, each: time.Microsecond, calm: 4 * calm}, time.Unix(1000, 0)
		p.begin(now, usage{})
		now = now.Add(stayed - settle)
		require.Equal(t, stay, p.next(now, usage{}, false))
		require.Equal(t, pause, p.next(now.Add(settle), usage{calls: 1e6}, false))
		require.Equal(t, want, p.calm, "%v", stayed)
	}
}
