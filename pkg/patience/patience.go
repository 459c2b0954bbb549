// Package patience runs work that a file system can block forever: opening and reading files.
//
// A system call on a file cannot be cancelled if its file system hangs. Examples are FUSE, NFS, a hanging disk, and file
// systems stacked on them. So each piece of work runs in its own goroutine, which is abandoned after a timeout. The number of
// abandoned goroutines is limited.
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
var ErrStuck = errors.New("the file system does not respond")

// ErrTooMany is the error if the work was not started because too many goroutines are abandoned.
var ErrTooMany = errors.New("too many file systems do not respond")

// farewell limits how long Do waits for current work after the context has ended.
const farewell = time.Second

// slices is the number of steps in which a Runner waits. If a process is stopped or gets no CPU, it loses only one step, not
// its whole timeout.
const slices = 10

// Runner runs work with a timeout. Use New.
type Runner struct {
	patience time.Duration
	most     int

	left  atomic.Int64 // abandoned goroutines that have not ended
	total atomic.Uint64
}

// New returns a Runner with patience as its timeout. At most that many goroutines are abandoned at a time.
func New(patience time.Duration, most int) *Runner { return &Runner{patience: patience, most: most} }

// Do runs work in another goroutine, locked to its thread, and returns its CPU time. If work exceeds the Runner's patience, or
// does not end soon after ctx, Do calls onTimeout and returns ErrStuck. From then on, the caller must not touch the data of work.
// If work ends later, its goroutine calls onLateReturn. With ErrTooMany, Do has called nothing.
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

// Total returns how many goroutines were ever abandoned.
func (r *Runner) Total() uint64 { return r.total.Load() }

// Await waits up to two seconds for goroutines that were asked to end, because a file system can block one of them.
func Await(goroutines *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() { goroutines.Wait(); close(ended) }()
	Within(ended, 2*time.Second)
}

// Within waits until done is closed, but at most for d, and reports whether it was closed.
func Within(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// ThreadTime returns the CPU time of this thread. Goroutines that measure theirs must call runtime.LockOSThread.
func ThreadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
