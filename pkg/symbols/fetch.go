package symbols

import (
	"context"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// fetch gets the debug files for files without a symbol table, until ctx ends. It runs in its own goroutine.
func (s *Store) fetch(ctx context.Context) {
	defer s.stopped.Done()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-s.fetches:
			s.mu.Lock()
			old := e.table
			wanted := s.entries[e.id] == e && old != nil
			s.mu.Unlock()
			var t *symtab.Table
			var used time.Duration
			if wanted {
				t, used = s.fetchTable(ctx, old)
			}
			s.allowance.Use(used)
			s.fetched(e, t)
			s.allowance.Rest(ctx)
		}
	}
}

// wantFetch requests a file's debug file. The caller holds s.mu.
func (s *Store) wantFetch(e *entry) {
	select {
	case s.fetches <- e:
		e.fetched = true
	default: // the queue is full
	}
}

// fetched stores a table that includes the symbols of an entry's debug file. t is nil if there is none. Missing lines are read
// later.
func (s *Store) fetched(e *entry, t *symtab.Table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.fetched = false
	if t != nil && s.entries[e.id] == e {
		more := t.Bytes() - e.table.Bytes()
		s.bytes += more
		e.size += more
		e.table = t
	}
	if e.table != nil && e.table.Fetched() && e.table.Cut {
		e.read = time.Now()
		e.later()
	}
	s.makeRoom()
}

// fetchTable gets old's debug file. It returns a table that includes the debug file's symbols, and the Reader's CPU time. The
// table is nil if no debug file can be used. If the debug file was fetched before, fetchTable only reads lines.
func (s *Store) fetchTable(ctx context.Context, old *symtab.Table) (t *symtab.Table, used time.Duration) {
	defer func() {
		if recover() != nil {
			t = nil
		}
	}()
	f, err := s.options.Fetch(ctx, old.Wanted)
	if err != nil {
		return nil, 0
	}
	defer f.Close()
	id, err := symtab.Identify(f)
	if err != nil {
		return nil, 0
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	task := symtab.Task{Limits: s.options.Limits, Kind: symtab.ReadDebugFile, ID: id, Opened: f, Size: id.Size, Room: s.room()}
	if t = old; !old.Fetched() {
		var debug *symtab.Table
		if debug, used, err = s.options.Reader.Read(ctx, &task); err != nil {
			return nil, used
		}
		debug.Cut = debug.Cut && s.options.Lines
		t = old.WithDebug(debug)
	}
	if t.Cut {
		var more time.Duration
		t, more = s.withLines(ctx, task, t)
		used += more
	}
	if t = t.Within(s.room()); t.Bytes() > s.room() {
		return nil, used
	}
	return t, used
}
