package cfi

import (
	"container/list"
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// Options are the settings of a Store. The zero value is what it does by default.
type Options struct {
	// Bytes bounds all tables together; 0 means 64 MiB. A table that is larger than that alone is not kept.
	Bytes int64
	// Limits bound what is read of one file; the zero value means DefaultLimits.
	Limits Limits
	// Timeout bounds how long a file system is waited for that does not answer; 0 means ten seconds.
	Timeout time.Duration
}

// Bounds of a Store.
const (
	defaultBytes   = 64 << 20
	defaultTimeout = 10 * time.Second
	maxQueue       = 1024
	maxStuck       = 16
	entryBytes     = 512 // of what is known of a file beside its table
	stopTimeout    = 2 * time.Second
	leastWait      = 30 * time.Second // before a file is read again that could not be read for a reason that can pass
	mostWait       = time.Hour
)

// The goroutine that reads may use burst of CPU time at once. It earns a second of CPU time in every slowdown
// seconds, so that somebody who makes files without pause makes it take a quarter of one CPU at most.
const (
	burst    = 4 * time.Second
	slowdown = 4
)

// Store knows the tables of files. Its methods may be called by any number of goroutines, and but for Close none of them
// waits. Close ends its goroutine.
type Store struct {
	options Options

	mu      sync.Mutex
	entries map[symbols.FileID]*known
	recent  *list.List // of *known, the one that was used last in front
	bytes   int64
	changed chan struct{}
	stats   Stats
	closed  bool

	vdso *Table // nil if it could not be read

	disks   *patience.Runner
	queue   chan *known
	stop    context.CancelFunc
	stopped chan struct{}
}

// Stats are sums since the Store was made, and what it holds now.
type Stats struct {
	Files, Bytes    int64  // that are held
	Read, Forgotten uint64 // files; one that is read again counts again
	Failed          uint64 // reads of files that have no table, though not for having no rules
	Stuck           uint64 // files whose reading was given up because it did not end
	Reading         time.Duration
	Last            error // why the last one of Failed has none
}

// known is what is known of a file. Under Store.mu, but for what begins with it in the queue.
type known struct {
	id     symbols.FileID
	table  *Table
	queued bool
	size   int64
	retry  time.Time // of a file without a table: nothing is read before; zero: never
	wait   time.Duration
	recent *list.Element

	open  func() (*os.File, error)
	stuck func() func()
}

// NewStore returns a running Store. It knows symbols.VDSO from the start.
func NewStore(o Options) *Store {
	if o.Bytes == 0 {
		o.Bytes = defaultBytes
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		options: o, entries: map[symbols.FileID]*known{}, recent: list.New(), changed: make(chan struct{}),
		disks: patience.New(o.Timeout, maxStuck), queue: make(chan *known, maxQueue), stop: stop, stopped: make(chan struct{}),
	}
	s.vdso, _ = readVDSO(o.Limits)
	go s.run(ctx)
	return s
}

// Close stops the Store and waits for its goroutine, up to two seconds. What waits for a file system that does not answer
// stays until that answers or is unmounted. Afterwards Lookup answers from what is known already.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-s.stopped:
	case <-timer.C:
	}
}

// Changed returns a channel that is closed when more is known than now.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Lookup returns the table of a file, nil if it is not there; pending tells that a later call will know more: the file is
// being read or waits for that. open is called in the Store's goroutine, once at most, and what it returns is closed there.
// stuck is called when reading that does not end, and the function that it returns if it has ended after all; nil is fine.
// Of this machine's architecture only there are tables.
func (s *Store) Lookup(id symbols.FileID, open func() (*os.File, error), stuck func() (ended func())) (t *Table, pending bool) {
	if id == symbols.VDSO {
		return s.vdso, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[id]
	if e != nil {
		s.recent.MoveToFront(e.recent)
		switch {
		case e.table != nil, e.queued:
			return e.table, e.queued
		case e.retry.IsZero(), time.Now().Before(e.retry):
			return nil, false
		}
	}
	if s.closed || open == nil {
		return nil, false
	}
	isNew := e == nil
	if isNew {
		e = &known{id: id, size: entryBytes}
	}
	e.open, e.stuck, e.queued = open, stuck, true
	select {
	case s.queue <- e:
	default: // a later call finds room
		e.open, e.stuck, e.queued = nil, nil, false
		return nil, true
	}
	if isNew {
		e.recent = s.recent.PushFront(e)
		s.entries[id] = e
		s.bytes += e.size
		s.makeRoom()
	}
	return nil, true
}

// makeRoom forgets the files that were used least recently. Those that wait to be read stay: their number has a bound.
// Under Store.mu.
func (s *Store) makeRoom() {
	for at := s.recent.Back(); at != nil && s.bytes > s.options.Bytes; {
		e := at.Value.(*known)
		at = at.Prev()
		if e.queued {
			continue
		}
		s.recent.Remove(e.recent)
		delete(s.entries, e.id)
		s.bytes -= e.size
		s.stats.Forgotten++
	}
}

// finish keeps the result of reading a file, and wakes those that wait for more.
func (s *Store) finish(e *known, t *Table, err error, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.open, e.stuck, e.queued = nil, nil, false
	s.stats.Read++
	s.stats.Reading += took
	if t != nil && t.Bytes()+entryBytes > s.options.Bytes {
		t, err = nil, ErrTooLarge
	}
	switch {
	case err == nil:
		e.table = t
		e.size += t.Bytes()
		s.bytes += t.Bytes()
	case errors.Is(err, ErrNotELF), errors.Is(err, ErrNone), errors.Is(err, ErrMalformed), errors.Is(err, ErrTooLarge):
		e.retry = time.Time{}
	default:
		e.wait = min(mostWait, max(leastWait, 2*e.wait))
		e.retry = time.Now().Add(e.wait)
	}
	if err != nil && !errors.Is(err, ErrNone) && !errors.Is(err, ErrNotELF) {
		s.stats.Failed++
		s.stats.Last = err
	}
	s.makeRoom()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Stats returns what the Store has done and what it holds.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Stuck = s.disks.Total()
	stats.Files, stats.Bytes = int64(len(s.entries)), s.bytes
	return stats
}
