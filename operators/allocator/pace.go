package allocator

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
)

const (
	// shortest is the usual minimum length of a stretch. longest is the maximum length of a period.
	shortest = 100 * time.Millisecond
	longest  = time.Minute
	// often is the minimum length of a period, because attaching and detaching also have a cost.
	often = time.Second
	// extended is the maximum length of a stretch whose probes are expensive to attach and detach.
	extended = 500 * time.Millisecond
	// brief is the minimum length of a stretch in the longest period.
	brief = 10 * time.Millisecond
	// calm is the number of consecutive cheap stretches after which probes stay attached again. If they then stay attached for
	// less than long, the number doubles, up to mostCalm.
	calm     = 3
	mostCalm = 96
	long     = 10 * time.Minute
	// debt limits the excess of permanent probes: their CPU time above the budget must stay below what the budget allows in this
	// time.
	debt = 10 * time.Second
	// settle is the time over which the cost of attached probes is measured.
	settle = 500 * time.Millisecond
)

// plan is a period with one stretch. Probes are attached only during the stretch, which begins after wait.
type plan struct{ period, wait, stretch time.Duration }

// planFor returns a period with a stretch that stays within the budget. cost is the cost of attached probes in CPUs. around is
// the cost of attaching and removing the probes, in CPU seconds. The stretch starts at a random time within its period, so it
// does not always miss a program's periodic activity.
func planFor(cost, around, budget float64) plan {
	cost = max(cost, budget/1000)
	// At least half of the budget is for sampled calls.
	p := plan{stretch: max(shortest, min(extended, seconds(around/cost)))}
	p.period = min(longest, max(often, seconds((p.stretch.Seconds()*cost+around)/budget)))
	// Even if the probes seem cheap, the stretch takes at most half of the period, because another burst can follow.
	fits := min(p.period/2, seconds((budget*p.period.Seconds()-around)/cost))
	switch p.period {
	case often:
		p.stretch = max(p.stretch, fits)
	case longest:
		p.stretch = max(brief, min(p.stretch, fits))
	}
	p.wait = rand.N(p.period - p.stretch + 1)
	return p
}

// seconds converts seconds to a duration of at most an hour.
func seconds(s float64) time.Duration {
	return time.Duration(max(-1, min(s, 3600)) * float64(time.Second))
}

// move is the pacer's decision.
type move uint8

const (
	stay    move = iota
	pause        // close the stretch, and remove the probes
	resume       // attach the probes, and open a stretch
	always       // close the stretch, and leave the probes attached
	tooDear      // the probes cost too much, but must not be paused
)

// usage holds the number of probed calls, and the extra time that sampled calls took.
type usage struct {
	calls uint64
	drawn time.Duration
}

func (u usage) minus(before usage) usage {
	return usage{u.calls - before.calls, u.drawn - before.drawn}
}

// pacer keeps the cost of probes below a budget. It is not safe for concurrent use.
type pacer struct {
	budget float64       // CPUs
	each   time.Duration // cost that a probe adds to a call

	cost     float64 // CPUs that the probes use while they are attached
	drawn    float64 // sampled events' share of the cost
	around   float64 // CPU seconds that the probes use while they are being attached and removed
	coming   usage   // usage while the probes were being attached
	attached bool
	since    time.Time // start of the current state, or time of the last measurement
	used     usage     // usage at that time
	over     int       // number of consecutive measurements above the budget
	debt     float64   // CPU seconds above the budget, minus the seconds saved since
	stayed   time.Time // when the probes became permanent
	calm     int       // required number of consecutive stretches well below the budget
	under    int       // number of consecutive stretches well below the budget

	plan    plan // period is 0 while the probes are permanent
	began   time.Time
	closed  time.Time // when the last stretch ended
	did     bool      // whether this period already had its stretch
	said    bool
	periods int
}

// begin is called after permanent probes were attached.
func (p *pacer) begin(now time.Time, used usage) {
	p.attached, p.since, p.used, p.plan, p.over = true, now, used, plan{}, 0
	p.debt, p.stayed = 0, now
}

// next returns the next move.
func (p *pacer) next(now time.Time, used usage, live bool) move {
	if p.plan.period == 0 {
		return p.watch(now, used, live)
	}
	switch at := now.Sub(p.began); {
	case p.attached && now.Sub(p.since) >= p.plan.stretch:
		// A stretch with few calls can lie between two bursts, so the estimate decreases slowly.
		p.cost = max(p.rate(now, used), p.cost/2)
		if p.under++; p.cost > 0.7*p.budget {
			p.under = 0
		}
		if p.under >= p.calm {
			p.under = 0
			return always
		}
		return pause
	case !p.attached && !p.did && at >= p.plan.wait:
		return resume
	case p.did && at >= p.plan.period:
		p.start(now)
	}
	return stay
}

// watch checks the cost of permanent probes.
func (p *pacer) watch(now time.Time, used usage, live bool) move {
	if now.Sub(p.since) < settle {
		return stay
	}
	p.cost = p.rate(now, used)
	p.debt = max(0, p.debt+(p.cost-p.budget)*now.Sub(p.since).Seconds())
	p.since, p.used = now, used
	if p.over++; p.cost <= p.budget {
		p.over = 0
	}
	switch {
	case p.over < 2 && p.debt < p.budget*debt.Seconds():
		return stay
	case live:
		return tooDear
	}
	if p.calm = min(2*p.calm, mostCalm); p.calm == 0 || now.Sub(p.stayed) > long {
		p.calm = calm
	}
	return pause
}

// rate returns the average number of CPUs used since the last measurement.
func (p *pacer) rate(now time.Time, used usage) float64 {
	lately := used.minus(p.used)
	p.drawn = lately.drawn.Seconds() / max(p.seconds(lately), 1e-9)
	return p.seconds(lately) / max(now.Sub(p.since).Seconds(), 1e-6)
}

// seconds returns the CPU seconds of a usage.
func (p *pacer) seconds(u usage) float64 {
	return float64(u.calls)*p.each.Seconds() + u.drawn.Seconds()
}

// start begins a period.
func (p *pacer) start(now time.Time) {
	p.plan, p.began, p.did = planFor(p.cost, p.around, p.budget), now, false
	p.periods++
}

// opened is called after the probes were attached for a stretch. before is the usage before attaching.
func (p *pacer) opened(now time.Time, before, used usage) {
	p.attached, p.since, p.used, p.coming = true, now, used, used.minus(before)
}

// detached is called after the probes were removed. before is the usage at the end of the stretch. uncounted is the time during
// which probed calls were not counted.
func (p *pacer) detached(before, used usage, uncounted time.Duration) {
	around := p.seconds(p.coming) + p.seconds(used.minus(before)) + p.cost*uncounted.Seconds()
	p.coming = usage{}
	// The next removal can be slow again, so the estimate decreases slowly.
	p.around = max(around, p.around/2)
	if !p.did { // the first period, which has no plan yet
		p.plan = planFor(p.cost, p.around, p.budget)
	}
}

// open reports whether a stretch is open.
func (p *pacer) open() bool { return p.attached && p.plan.period > 0 }

// left reports whether enough time has passed since the last stretch for another stretch.
func (p *pacer) left(now time.Time) bool {
	return p.plan.period > 0 && !p.attached && now.Sub(p.closed) > 2*shortest
}

// share returns the fraction of the period that the stretch takes.
func (p *pacer) share() float64 { return float64(p.plan.stretch) / float64(p.plan.period) }

// close ends a stretch or permanent sampling. A stretch represents all of the time since the previous stretch. weight is this
// time divided by the length of the stretch.
func (p *pacer) close(now time.Time) (weight float64) {
	defer func() { p.closed = now }()
	p.attached = false
	if p.plan.period == 0 {
		p.start(now)
		return 1
	}
	p.did = true
	return max(1, now.Sub(p.closed).Seconds()/max(now.Sub(p.since).Seconds(), 1e-6))
}

// now describes the current cost of the probes.
func (p *pacer) now() string {
	copies := p.cost * p.drawn
	return fmt.Sprintf("%.2f CPUs (%.0f calls per second at %v each, and %.3f CPUs for stacks)", p.cost, (p.cost-copies)/p.each.Seconds(), p.each, copies)
}

// say logs once that the probes are attached only for stretches.
func (p *pacer) say(log logger.Logger) {
	if p.said {
		return
	}
	p.said = true
	log.Infof("%s: the probes cost %s, more than the limit of %.2f CPUs. From now on, they are attached only during random periods, %v in every %v, and values are scaled up",
		Name, p.now(), p.budget, p.plan.stretch.Round(time.Millisecond), p.plan.period.Round(time.Millisecond))
}

// String describes when the probes were attached.
func (p *pacer) String() string {
	if p.periods == 0 {
		return "the probes were attached all the time"
	}
	if p.plan.period == 0 {
		return fmt.Sprintf("the probes were attached only during random periods (%d), and then all the time", p.periods)
	}
	return fmt.Sprintf("the probes were attached only during random periods (%d so far, the last one for %v in every %v)", p.periods, p.plan.stretch.Round(time.Millisecond), p.plan.period.Round(time.Millisecond))
}
