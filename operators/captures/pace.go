package captures

import (
	"fmt"
	"time"
)

const (
	// mostCaptures is the number of captures per second above which pace increases the step. Reading a capture takes about 20
	// microseconds.
	mostCaptures = 2000
	// mostCPU is the CPU usage of reading, in CPUs, above which pace increases the step. A program can make reading slow.
	mostCPU = 0.25
	// maxStep is the largest step that draw accepts.
	maxStep = 1<<32 - 1
)

// pace limits the captures per second and the CPU time for reading them. It increases draw's step, so fewer captures represent
// the same values.
type pace struct {
	base, step, largest uint64
	before              uint64
	set                 func(step uint64) error
}

func newPace(base uint64, set func(uint64) error) pace {
	return pace{base: base, step: base, largest: base, set: set}
}

// early reports whether the captures since the last call of look have reached the limit for one second. Then the next call is
// due.
func (p *pace) early(captures uint64) bool { return p.base > 0 && captures-p.before >= mostCaptures }

// look adjusts the step. captures is the total since the start. since and used are the elapsed time and the CPU time since the
// last call.
func (p *pace) look(captures uint64, since, used time.Duration) error {
	load := max(float64(captures-p.before)/mostCaptures, used.Seconds()/mostCPU) / since.Seconds()
	p.before = captures
	step := p.step
	switch {
	case p.base == 0:
		return nil
	case load > 1:
		for ; load > 1 && step < maxStep; load /= 2 {
			step = min(2*step, maxStep)
		}
	case load < 0.25 && step > p.base:
		step = max(step/2, p.base)
	}
	if step == p.step {
		return nil
	}
	p.step, p.largest = step, max(p.largest, step)
	return p.set(step)
}

// String describes the step.
func (p *pace) String() string {
	switch {
	case p.base == 0:
		return "the gadget's default"
	case p.largest == p.base:
		return fmt.Sprint(p.base)
	}
	return fmt.Sprintf("%d to %d, raised because there were many events", p.base, p.largest)
}
