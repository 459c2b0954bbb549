package symbols

import (
	"context"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

const (
	// patienceMore is added to Options.Timeout, after which reading ends by itself, to limit the wait for a file.
	patienceMore = 5 * time.Second
	// maxStuck limits the files that block at a time.
	maxStuck = 16
)

// readOrLeave reads a file, and returns the CPU time that this has taken. If it does not end, it is abandoned, and Stuck and
// Release belong to the goroutine that reads.
func (s *Store) readOrLeave(ctx context.Context, e *entry) (*symtab.Table, time.Duration, error) {
	type result struct {
		t    *symtab.Table
		used time.Duration
		err  error
	}
	work := new(result)
	used, err := s.disks.Do(ctx, func() { work.t, work.used, work.err = s.read(ctx, e) }, func() func() {
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
	return work.t, used + work.used, work.err
}
