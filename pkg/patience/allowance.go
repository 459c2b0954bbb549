package patience

import (
	"context"
	"sync"
	"time"
)

// Allowance limits the CPU time of work that others can cause without end. Burst is available at once. After that, one second
// becomes available every Slowdown seconds. Elapsed time does not count, because the same work takes longer on a busy machine
// or a slow disk but costs no more. It is safe for concurrent use.
type Allowance struct {
	Burst    time.Duration
	Slowdown time.Duration // a factor of 1 or more

	mu   sync.Mutex
	used time.Duration // used time that is not available again yet; can exceed Burst
	last time.Time     // time at which used was computed
}

// Use records CPU time that was used.
func (a *Allowance) Use(cpu time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.used = max(0, a.used-now.Sub(a.last)/a.Slowdown) + cpu
	a.last = now
}

// Wait returns the time until CPU time is available again, or 0.
func (a *Allowance) Wait() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used <= a.Burst {
		return 0
	}
	return max(0, (a.used-a.Burst)*a.Slowdown-time.Since(a.last))
}

// Rest waits until CPU time is available, or until ctx ends.
func (a *Allowance) Rest(ctx context.Context) {
	if wait := a.Wait(); wait > 0 {
		Within(ctx.Done(), wait)
	}
}
