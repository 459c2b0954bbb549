package symbols

import (
	"context"
	"errors"
	"fmt"
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
			err := errNotWanted
			if wanted {
				t, used, err = s.fetchTable(ctx, old)
			}
			s.allowance.Use(used)
			s.fetched(e, t, err)
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

// fetched stores a table that includes the symbols of an entry's debug file. Missing lines are read later.
func (s *Store) fetched(e *entry, t *symtab.Table, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.fetched = false
	switch {
	case err != nil:
		s.stats.NotFetched++
	case s.entries[e.id] == e:
		s.stats.Fetched++
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

// errNotWanted is the error for a file that the Store forgot before its debug file arrived.
var errNotWanted = errors.New("the debug file is no longer needed")

// fetchTable gets old's debug file. It returns a table that includes the debug file's symbols, and the Reader's CPU time. If the
// debug file was fetched before, fetchTable only reads lines.
func (s *Store) fetchTable(ctx context.Context, old *symtab.Table) (t *symtab.Table, used time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			t, err = nil, fmt.Errorf("%w: fetching its debug file panicked: %v", symtab.ErrMalformed, p)
		}
	}()
	f, err := s.options.Fetch(ctx, old.Wanted)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	id, err := symtab.Identify(f)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	task := symtab.Task{Reading: s.reading(), Kind: symtab.ReadDebugFile, ID: id, Opened: f, Size: id.Size, Room: s.room()}
	if t = old; !old.Fetched() {
		var debug *symtab.Table
		if debug, used, err = s.options.Reader.Read(ctx, &task); err != nil {
			return nil, used, err
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
		return nil, used, symtab.ErrTooLarge
	}
	return t, used, nil
}
