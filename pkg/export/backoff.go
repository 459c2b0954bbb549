package export

import (
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// backoffState computes the increasing wait of one message, or of the receiver as a whole. The zero value is ready to use.
type backoffState struct{ b *backoff.ExponentialBackOff }

// next returns the wait after one more failure.
func (s *backoffState) next(cfg config.Retry) time.Duration {
	if s.b == nil {
		initial := max(cfg.InitialInterval, time.Millisecond)
		s.b = &backoff.ExponentialBackOff{
			InitialInterval:     initial,
			RandomizationFactor: min(max(cfg.RandomizationFactor, 0), 1),
			Multiplier:          max(cfg.Multiplier, 1),
			MaxInterval:         max(cfg.MaxInterval, initial),
		}
		s.b.Reset()
	}
	return s.b.NextBackOff()
}

// gate blocks all sends while the receiver fails. Otherwise, a full queue would flood the receiver. Any response that does not
// request a retry opens the gate.
type gate struct {
	until time.Time
	since time.Time // the first failure
	set   time.Time // the last failure
	wait  backoffState
	asked bool
}

// fail records a retryable failure of a send that began at started. Sends that were in flight together count as one failure.
func (g *gate) fail(cfg config.Retry, started, now time.Time, asked time.Duration) {
	if g.since.IsZero() {
		g.since = started
	}
	until := now.Add(asked)
	if !started.Before(g.set) {
		if own := now.Add(g.wait.next(cfg)); own.After(until) {
			until = own
		}
		g.set = now
		g.asked = false
	}
	if until.After(g.until) {
		g.until = until
	}
	g.asked = g.asked || asked > 0
}

func (g *gate) open()                     { *g = gate{} }
func (g *gate) closed(now time.Time) bool { return g.until.After(now) }
func (g *gate) failing() bool             { return !g.set.IsZero() }

func (g *gate) hurry() {
	if !g.asked {
		g.until = time.Time{}
	}
}
