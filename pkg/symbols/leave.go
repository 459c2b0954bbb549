package symbols

import (
	"context"
	"runtime/debug"
	"time"
)

const (
	// patienceMore is how much longer than Options.Timeout, after which reading ends by itself, a file is waited for.
	patienceMore = 5 * time.Second
	// maxStuck is how many files are waited for in vain at a time.
	maxStuck = 16
	// heavy is how much memory reading a file may have taken, in bytes, that is left to the collector's own pace.
	heavy = 32 << 20
)

// readOrLeave reads a file, and returns the CPU time that this has taken. If it does not end, it is left behind, and Stuck
// and Release are those of the goroutine that reads.
func (s *Store) readOrLeave(ctx context.Context, e *entry) (*Table, time.Duration, error) {
	type result struct {
		t    *Table
		left budget
		err  error
	}
	work := new(result)
	work.left = s.options.Limits.budget()
	used, err := s.disks.Do(ctx, func() { work.t, work.err = s.read(ctx, e, &work.left) }, func() func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		release, ended := e.request.Release, func() {}
		e.request.Release = nil
		if e.request.Stuck != nil {
			ended = e.request.Stuck()
		}
		return func() {
			ended()
			if release != nil {
				release()
			}
		}
	})
	if err != nil {
		return nil, used, err
	}
	if s.options.Limits.Memory-work.left.memory > heavy {
		debug.FreeOSMemory() // before the next file takes as much: the collector lets the heap grow by what is in use now
	}
	return work.t, used, work.err
}
