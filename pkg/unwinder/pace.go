package unwinder

import "time"

const (
	// flushRate is how many batches a second the program may write. It writes up to four. More means that its input has taken it
	// over. flushBurst is how many may come at once, after a time without a reader.
	flushRate  = 20
	flushBurst = 4096
)

// pace tells whether events come faster than allowed: flushRate in a second, with bursts of burst.
type pace struct {
	left, burst float64
	last        time.Time
}

func newPace(burst int, now time.Time) pace { return pace{float64(burst), float64(burst), now} }

// take takes one that has come, and returns false if that is one too many.
func (p *pace) take(now time.Time) bool {
	p.left = min(p.burst, p.left+flushRate*now.Sub(p.last).Seconds())
	p.last = now
	if p.left < 1 {
		return false
	}
	p.left--
	return true
}
