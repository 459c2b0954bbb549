package symbols

import (
	"time"
)

// room is the size in bytes of the largest table that fits into Options.Bytes together with its entry.
func (s *Store) room() int64 { return s.options.Bytes - entryBytes }

// makeRoom forgets the least recently used files, except pending ones. The caller holds s.mu.
func (s *Store) makeRoom() {
	for el := s.recent.Back(); el != nil && s.bytes > s.options.Bytes; {
		e := el.Value.(*entry)
		el = el.Prev()
		if !e.queued {
			s.forget(e)
		}
	}
}

// use records a use of a file and returns the time. The caller holds s.mu.
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
}

// KeepFor makes the Store keep a file for at least d after its last use. The default is ten minutes. If memory is short, files
// are forgotten sooner. Files are not kept forever, because a build machine runs many programs only once.
func (s *Store) KeepFor(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = max(s.keep, d)
}

// forgetOld forgets files that were not used recently.
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
