package symbols

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// run reads the requested files in its own goroutine until ctx ends. burst and slowdown limit its CPU time.
func (s *Store) run(ctx context.Context) {
	defer s.stopped.Done()
	var w waiting
	defer func() { // finish waiting entries, so that Wait returns
		w.take(s.queue, maxQueue+maxWaiting)
		for _, e := range w.entries {
			s.finish(e, nil, context.Canceled, 0, 0)
		}
	}()
	forget := time.NewTicker(forgetEvery)
	defer forget.Stop()
	for {
		select { // the ticker must run even if there is always something to read
		case now := <-forget.C:
			s.forgetOld(now)
		default:
		}
		if len(w.entries) == 0 {
			select {
			case <-ctx.Done():
				return
			case now := <-forget.C:
				s.forgetOld(now)
				continue
			case e := <-s.queue:
				w.entries = append(w.entries, e)
			}
		}
		if ctx.Err() != nil {
			return
		}
		w.take(s.queue, maxWaiting)
		s.options.Reader.Wait(ctx)
		s.mu.Lock()
		e := w.next()
		s.mu.Unlock()
		begin := time.Now()
		t, used, err := s.readOrLeave(ctx, e)
		s.allowance.Use(used)
		s.finish(e, t, err, time.Since(begin), used)
		s.allowance.Rest(ctx)
	}
}

// waiting holds the entries to read, the oldest first. Only one goroutine uses it.
type waiting struct {
	entries []*entry
	turn    int
}

// take adds entries from the queue until their number reaches bound.
func (w *waiting) take(queue <-chan *entry, bound int) {
	for len(w.entries) < bound {
		select {
		case e := <-queue:
			w.entries = append(w.entries, e)
		default:
			return
		}
	}
}

// next removes and returns the entry to read. It chooses the most urgent entry three times, and then the oldest entry once. So
// the file with the most frames comes first, small programs do not wait for all large programs, and no file waits forever. The
// caller holds Store.mu.
func (w *waiting) next() *entry {
	at := 0
	if w.turn++; w.turn%4 != 0 {
		most := 0.0
		for i, e := range w.entries {
			if u := e.urgency(); u > most {
				at, most = i, u
			}
		}
	}
	e := w.entries[at]
	w.entries = slices.Delete(w.entries, at, at+1)
	return e
}

// urgency returns the number of lookups that wait for a file, divided by the expected cost of the read in bytes. The caller holds
// Store.mu.
func (e *entry) urgency() float64 {
	const (
		least = 1 << 20 // the cost of opening a file, in bytes
		pace  = 1 << 30 // bytes of a program per second of CPU time
	)
	size := int64(least)
	switch {
	case e.id.Process != 0: // the size of a perf map is unknown
		size += int64(e.cost.Seconds() * pace)
	case e.table == nil || e.table.Golang == nil:
		size += max(e.id.Size, 0)
	}
	return float64(e.asked+1) / float64(size)
}

// finish stores the result of reading an entry's file and wakes waiting goroutines.
func (s *Store) finish(e *entry, t *symtab.Table, err error, took, cost time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := e.request.Path
	e.request, e.queued, e.read, e.cost = Request{}, false, time.Now(), cost
	if t == nil || !t.Cut {
		e.began = e.read.Add(-took)
	}
	if t = t.Within(s.room()); t != nil && t.Bytes() > s.room() {
		t, err = nil, fmt.Errorf("%w: a table of %d bytes", symtab.ErrTooLarge, t.Bytes())
	}
	if err == nil && t.Cut && e.id.Process == 0 {
		e.later() // to read the lines
	} else {
		e.failed(err)
	}
	if err != nil && e.why != symtab.NoSymbols {
		s.last = fmt.Errorf("%q: %w", path, err)
	}
	size := int64(entryBytes)
	switch {
	case err == nil:
		e.state = symtab.Named
		size += t.Bytes()
	case e.table != nil: // the table of an earlier read stays
		t, size = e.table, e.size
	default:
		e.state = stateOf(err)
	}
	s.bytes += size - e.size
	e.table, e.size = t, size
	if t == nil || t.Golang == nil {
		e.wanted = nil
	}
	close(e.done)
	if s.options.Fetch != nil && t != nil && t.Wanted != "" && s.entries[e.id] == e {
		s.wantFetch(e)
	}
	s.makeRoom()
}

// stateOf returns the State for a read error.
func stateOf(err error) symtab.State {
	switch {
	case errors.Is(err, symtab.ErrNotELF):
		return symtab.NotELF
	case errors.Is(err, symtab.ErrNoSymbols):
		return symtab.NoSymbols
	case errors.Is(err, symtab.ErrTooSlow):
		return symtab.Unreadable
	case errors.Is(err, symtab.ErrTooLarge):
		return symtab.TooLarge
	case errors.Is(err, symtab.ErrMalformed):
		return symtab.Malformed
	case errors.Is(err, errChanged), errors.Is(err, fs.ErrNotExist):
		return symtab.Gone
	default:
		return symtab.Unreadable
	}
}

// read opens a file and makes the Reader read it. It also returns the Reader's CPU time. A panic becomes an error for this file
// only.
func (s *Store) read(ctx context.Context, e *entry) (t *symtab.Table, used time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			t, err = nil, fmt.Errorf("%w: opening it panicked: %v", symtab.ErrMalformed, p)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	s.mu.Lock()
	request, old, wanted := e.request, e.table, e.wanted
	r := &request
	e.wanted = nil
	s.mu.Unlock()
	f, err := r.Open()
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, 0, fmt.Errorf("inspecting %s: %w", r.Path, err)
	}
	id := symtab.IdentifyStat(&st)
	if st.Nlink == 0 { // deleting the file has changed its ctime
		id.CtimeNS = r.ID.CtimeNS
	}
	size := id.Size
	if r.ID.Process != 0 {
		id = symtab.FileID{Dev: id.Dev, Inode: id.Inode, Process: r.ID.Process}
	}
	if id != r.ID && r.ID != symtab.VDSO && !s.changedTimeOnly(ctx, r, f, id) {
		return nil, 0, errChanged
	}
	task := symtab.Task{Limits: s.options.Limits, ID: r.ID, Opened: f, Size: size, Old: old, Room: s.room()}
	defer func() {
		if errors.Is(err, symtab.ErrReader) && errors.Is(err, os.ErrDeadlineExceeded) && r.Stuck != nil {
			r.Stuck()() // the file system did not answer in time, and nobody waits any longer
		}
	}()
	if r.ID.Process != 0 {
		task.Kind = symtab.ReadPerfMap
		return s.options.Reader.Read(ctx, &task)
	}
	if t = old; t == nil || t.Cut {
		find := &finder{path: r.Path, roots: s.openRoots(r, f)}
		defer find.close()
		task.Debug, task.Old = find, nil
		if t == nil {
			if t, used, err = s.options.Reader.Read(ctx, &task); err != nil {
				return nil, used, err
			}
			t.Cut = t.Cut && s.options.Lines
		}
		if t.Cut {
			var more time.Duration
			t, more = s.withLines(ctx, task, t)
			used += more
		}
		var late addresses
		if ctx.Err() == nil { // otherwise, the read is possibly abandoned, and e can belong to another goroutine
			s.mu.Lock() // take the addresses that were requested meanwhile
			late, e.wanted = e.wanted, nil
			s.mu.Unlock()
		}
		if wanted == nil {
			wanted = late
		}
		maps.Copy(wanted, late)
	}
	if t.Golang == nil {
		return t, used, nil
	}
	task.Kind, task.Old, task.Functions = symtab.ReadFunctions, t, t.Golang.Missing(slices.Collect(maps.Keys(wanted)))
	if len(task.Functions) == 0 {
		return t, used, nil
	}
	t, more, err := s.options.Reader.Read(ctx, &task)
	return t, used + more, err
}

// withLines adds a file's debug information to a copy of t. A separate task reads the debug information, so the names stay if
// the Reader crashes. If the Reader is missing or slow, the file is not at fault. Then the table stays Cut, and the lines can
// be read later.
func (s *Store) withLines(ctx context.Context, task symtab.Task, t *symtab.Table) (*symtab.Table, time.Duration) {
	task.Kind, task.Base = symtab.ReadLines, t.Base()
	lines, used, err := s.options.Reader.Read(ctx, &task)
	with := *t // a copy, because other goroutines can use t
	with.Cut = errors.Is(err, symtab.ErrReader) || errors.Is(err, symtab.ErrTooSlow)
	if err == nil {
		with.Lines = lines.Lines
	}
	return &with, used
}

// changedTimeOnly reports whether a file differs from the requested file only in its ctime. It compares the content by its IDs.
func (s *Store) changedTimeOnly(ctx context.Context, r *Request, f *os.File, id symtab.FileID) bool {
	id.CtimeNS = r.ID.CtimeNS
	if id != r.ID || r.Info.HTLHash == "" {
		return false
	}
	info, _, err := s.Info(ctx, f)
	return err == nil && info.HTLHash == r.Info.HTLHash && info.GNU == r.Info.GNU && info.Go == r.Info.Go
}
