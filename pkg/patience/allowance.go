package patience

import (
	"context"
	"sync"
	"time"
)

// Allowance bounds the CPU time of work that others can cause without end. Burst may be used immediately, and a second more is
// available after every Slowdown seconds. Elapsed time does not count: on a busy machine and with slow disks the same
// work takes longer without costing more. Any number of goroutines may use it.
type Allowance struct {
	Burst    time.Duration
	Slowdown time.Duration // a number, 1 or more

	mu   sync.Mutex
	used time.Duration // of Burst, and beyond
	last time.Time     // the time of this state
}

// Use takes CPU time that was used.
func (a *Allowance) Use(cpu time.Duration) { a.use(time.Now(), cpu) }

func (a *Allowance) use(now time.Time, cpu time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used = max(0, a.used-now.Sub(a.last)/a.Slowdown) + cpu
	a.last = now
}

// Wait returns the time until CPU time is available again, or 0.
func (a *Allowance) Wait() time.Duration { return a.wait(time.Now()) }

func (a *Allowance) wait(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used <= a.Burst {
		return 0
	}
	return max(0, (a.used-a.Burst)*a.Slowdown-now.Sub(a.last))
}

// Rest waits for that long, or until ctx ends.
func (a *Allowance) Rest(ctx context.Context) {
	wait := a.Wait()
	if wait == 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
