package symbols

import (
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// again is the minimum time between two reads of a perf map.
const again = time.Second

// perfRest is the pause after a perf map is read, as a multiple of the read's CPU time.
const perfRest = 10

// If a read fails, the Store waits retryFirst before it reads the file again. Each further failure doubles the wait, up to
// retryMost.
const (
	retryFirst = 30 * time.Second
	retryMost  = 8 * time.Minute
)

// failed sets when a file can be read again, after a read returned err. err can be nil. The caller holds Store.mu.
func (e *entry) failed(err error) {
	e.retry = time.Time{}
	if err == nil {
		e.wait = 0
		return
	}
	e.why = stateOf(err)
	if e.table == nil && e.id.Process == 0 && e.why != symtab.Gone && e.why != symtab.Unreadable {
		return // reading the same bytes again gives the same error
	}
	e.later()
}

// later delays the next read of a file. Each call doubles the delay. The caller holds Store.mu.
func (e *entry) later() {
	e.wait = min(max(2*e.wait, retryFirst), retryMost)
	e.retry = e.read.Add(e.wait)
}

// lacksLines reports whether a file's table has no lines because the Reader was missing or too slow. The caller holds Store.mu.
func (e *entry) lacksLines() bool {
	return e.table != nil && e.table.Cut && e.id.Process == 0 && !e.fetched
}

// more reports whether a file must be read again for new requests. The caller holds Store.mu.
func (e *entry) more(now time.Time) bool {
	switch {
	case now.Before(e.retry):
		return false
	case e.table == nil:
		return !e.retry.IsZero()
	case e.id.Process != 0:
		return now.Sub(e.read) >= max(again, perfRest*e.cost)
	}
	return len(e.wanted) > 0 || e.lacksLines()
}
