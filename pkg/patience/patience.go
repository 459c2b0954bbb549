// Package patience runs work that a file system can stop for good: opening and reading files.
//
// A system call on a file cannot be ended from outside if its file system does not answer. Examples are FUSE, NFS, a hanging
// disk, and everything stacked on them. So each piece of work runs in a goroutine of its own, which is left behind if it takes
// too long. How many may be left behind has a bound.
package patience

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ErrStuck is the error for a file system that does not answer.
var ErrStuck = errors.New("the file system does not answer")

// ErrTooMany is the error if nothing was tried, because too much work has been left behind.
var ErrTooMany = errors.New("too many file systems do not answer")

// farewell is how long the end waits for current work.
const farewell = time.Second

// slices are the parts that a Runner waits in. A process that is stopped, or has no CPU for long, meanwhile loses one
// of them only, and not all its patience.
const slices = 10

// Runner runs one piece of work after the other. Use New.
type Runner struct {
	patience time.Duration
	most     int

	left  atomic.Int64 // pieces of work that were left behind and have not ended
	total atomic.Uint64
}

// New returns a Runner that waits for patience. At most so many pieces of work are left behind at a time.
func New(patience time.Duration, most int) *Runner { return &Runner{patience: patience, most: most} }

// Do runs work in another goroutine, which stays on one thread, and returns the CPU time that it has taken. If it takes
// more than the Runner's patience, or ctx ends and it does not end soon, Do calls onTimeout and returns ErrStuck. The function
// that onTimeout returns is called after work, should that end, in its goroutine; the caller may touch nothing any more that
// work uses. With ErrTooMany nothing was called.
func (r *Runner) Do(ctx context.Context, work func(), onTimeout func() (onLateReturn func())) (time.Duration, error) {
	if r.left.Load() >= int64(r.most) {
		return 0, ErrTooMany
	}
	done := make(chan time.Duration)
	gone := make(chan func(), 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		begin := ThreadTime()
		work()
		select {
		case done <- ThreadTime() - begin:
		case onLateReturn := <-gone:
			onLateReturn()
			r.left.Add(-1)
		}
	}()
	tick := time.NewTicker(r.patience / slices)
	defer tick.Stop()
	end := ctx.Done()
	for ticks := 0; ticks < slices; {
		select {
		case used := <-done:
			return used, nil
		case <-tick.C:
			ticks++
		case <-end:
			end, ticks = nil, 0
			tick.Reset(min(farewell, r.patience) / slices)
		}
	}
	r.left.Add(1)
	r.total.Add(1)
	gone <- onTimeout()
	return 0, ErrStuck
}

// Total is the number of pieces of work that were ever left behind.
func (r *Runner) Total() uint64 { return r.total.Load() }

// Await waits for goroutines that have been told to end, up to two seconds: one can wait for a file system that does not answer.
func Await(goroutines *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() { goroutines.Wait(); close(ended) }()
	timer := time.NewTimer(2 * time.Second)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
}

// ThreadTime is the CPU time of this thread. Goroutines that measure theirs stay on one: runtime.LockOSThread.
func ThreadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
