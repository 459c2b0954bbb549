package symbols

import (
	"time"
)

// room is the maximum size of a table, in bytes, that fits into Options.Bytes together with its entry.
func (s *Store) room() int64 { return s.options.Bytes - entryBytes }

// makeRoom forgets files that were not used for the longest time. Those that are pending stay. The caller holds s.mu.
func (s *Store) makeRoom() {
	for el := s.recent.Back(); el != nil && s.bytes > s.options.Bytes; {
		e := el.Value.(*entry)
		el = el.Prev()
		if !e.queued {
			s.forget(e)
		}
	}
}

// use notes a request for a file, and returns the time. The caller holds s.mu.
func (s *Store) use(e *entry) time.Time {
	s.recent.MoveToFront(e.recent)
	e.used = time.Now()
	return e.used
}

// forget forgets a file that is not pending. The caller holds s.mu.
func (s *Store) forget(e *entry) {
	s.recent.Remove(e.recent)
	delete(s.entries, e.id)
	s.bytes -= e.size
	s.stats.Forgotten++
}

// KeepFor makes the Store keep its knowledge of a file for at least that long after the last request. Without a call that is ten
// minutes; where room is short, files go sooner. Files do not stay longer because a machine that compiles runs ever new programs,
// which are never requested again.
func (s *Store) KeepFor(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = max(s.keep, d)
}

// forgetOld forgets files without recent requests.
func (s *Store) forgetOld(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for el := s.recent.Back(); el != nil; {
		e := el.Value.(*entry)
		if el = el.Prev(); now.Sub(e.used) < s.keep {
			return
		}
		if !e.queued && !e.fetched {
			s.forget(e)
		}
	}
}
