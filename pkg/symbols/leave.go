package symbols

import (
	"context"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

const (
	// Options.Timeout ends a read. patienceMore is how much longer the Store waits before it abandons the file.
	patienceMore = 5 * time.Second
	// maxStuck limits the number of reads that can be blocked at the same time.
	maxStuck = 16
)

// readOrLeave reads a file and returns the CPU time. If the read does not end, readOrLeave abandons it. When the read ends
// later, its goroutine calls the function that Stuck returned.
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
		if e.request.Stuck != nil {
			return e.request.Stuck()
		}
		return func() {}
	})
	if err != nil {
		return nil, used, err
	}
	return work.t, used + work.used, work.err
}
