package symbols

import (
	"context"
	"errors"
	"fmt"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// fetch is the goroutine that gets the debug files of files without a symbol table, until ctx ends.
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
			err := errNotWanted
			if wanted {
				t, err = s.fetchTable(ctx, old)
			}
			s.mu.Lock()
			e.fetched = false
			switch {
			case err != nil:
				s.stats.NotFetched++
			case s.entries[e.id] == e:
				s.stats.Fetched++
				s.bytes += t.Bytes() - old.Bytes()
				e.size += t.Bytes() - old.Bytes()
				e.table = t
				s.makeRoom()
			}
			s.mu.Unlock()
		}
	}
}

// errNotWanted says that a file was forgotten before its debug file came.
var errNotWanted = errors.New("no caller is waiting any more")

// fetchTable gets the debug file that old wants and returns a table that has the symbols of both.
func (s *Store) fetchTable(ctx context.Context, old *symtab.Table) (t *symtab.Table, err error) {
	defer func() {
		if p := recover(); p != nil {
			t, err = nil, fmt.Errorf("%w: fetching its debug file panicked: %v", symtab.ErrMalformed, p)
		}
	}()
	f, err := s.options.Fetch(ctx, old.Wanted)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	id, err := symtab.Identify(f)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	task := symtab.Task{
		Reading: s.reading(), Kind: symtab.ReadDebugFile, ID: id, Opened: f, Size: id.Size, Base: old.Base(), Room: s.room(),
	}
	task.Lines = false
	debug, _, err := s.options.Reader.Read(ctx, &task)
	if err != nil {
		return nil, err
	}
	if s.options.Lines {
		debug, _ = s.withLines(ctx, task, debug)
	}
	t = old.WithDebug(debug)
	if t = t.Within(s.room()); t != nil && t.Bytes() > s.room() {
		return nil, symtab.ErrTooLarge
	}
	return t, nil
}
