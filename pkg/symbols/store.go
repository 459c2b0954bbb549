// Package symbols turns an address in a file into the name of its function, with file and line if known, or says why it cannot.
//
// It handles files and addresses only. Package procmap finds the files that a process has mapped.
//
// # Addresses
//
// An address is an ELF virtual address, as in the file's symbol tables, not an address in a process. For frames other than the
// innermost, it is the return address, which can belong to the next function. Look up the address minus one.
//
// # Correct or unknown
//
// A symbol covers only the bytes of its size. A wrong name is worse than none.
//
// # Trust
//
// Programs control their own files, so files are hostile. They are read with pread and never mapped to memory, because truncating
// a mapped file kills the process. Every read is bounded in bytes, entries and time (Limits). A panic affects only the current
// file.
//
// A process without rights reads them (Options.Reader). This package opens a file and sends it over a socket (Conn), and the
// process returns a Table, which is checked. A hostile Table can only have wrong names. Package parse reads the files; nothing
// here imports it.
package symbols

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// Options are the settings of a Store. The zero value is the default.
type Options struct {
	// Bytes bounds the total size of all tables; 0 means 64 MiB. A larger table is not kept.
	Bytes int64
	// Limits bounds the reading of one file; the zero value means DefaultLimits.
	Limits symtab.Limits
	// Timeout bounds the time of reading one file; 0 means ten seconds.
	Timeout time.Duration
	// Inlined requests Symbol.Callers, with the inlined function as the Symbol.
	Inlined bool
	// Lines requests lines, and with Inlined inlined functions, from .debug_info. This costs time and memory. Go programs have
	// them anyway.
	Lines bool
	// Reader reads the files. The Store closes it.
	Reader symtab.Reader
	// Fetch gets a debug file by build ID, see debuginfod.Client.Fetch. It is called for files without a symbol table, one at a
	// time, in its own goroutine, so it may be slow. If it is nil, nothing is fetched.
	Fetch func(ctx context.Context, buildID string) (*os.File, error)
	// patience limits the wait for one file, for tests; 0 means patienceMore longer than Timeout.
	patience time.Duration
	// HostRoot is the root folder in which to search for the host's debug files; "" means /.
	HostRoot string
}

// Request requests the reading of a file. The Store calls Open and Root of one request at a time. So only use regular files on
// local file systems, because a file system that hangs blocks all others.
type Request struct {
	// ID is the identity of the file that Open opens. The Store checks it.
	ID symtab.FileID
	// Info identifies the file's content. With it, the file's CtimeNS may have changed: renaming, linking or changing the mode of
	// a file keeps its content. The zero value is valid.
	Info buildid.Info
	// Path is the path of the file in Root, for messages and for the folder of its debug link. It may be empty.
	Path string
	// Open opens the file. The Store closes it.
	Open func() (*os.File, error)
	// Address is an address that will be looked up. Its function is read with the file. It may be 0.
	Address uint64
	// Root opens the root folder of the process that has mapped the file (O_PATH suffices). Debug files are searched there, if
	// they are on the mount of the file. The Store closes it. It may be nil.
	Root func() (*os.File, error)
	// Release is called exactly once, from any goroutine, after the last call of Open and Root, even if this request does not
	// read the file. It may be nil.
	Release func()
	// Stuck is called if a read of the opened file does not end, and ended if it ends later. Stuck does not block. It may be nil.
	Stuck func() (ended func())
}

const defaultBytes = 64 << 20

const defaultKeep = 10 * time.Minute

const forgetEvery = time.Minute

const maxQueue = 1024

const maxWaiting = 256 // how many queued files are compared to choose the next one

const entryBytes = 512 // memory of an entry besides its table

// burst and slowdown bound the CPU time of reading: burst is available at once, and one second more every slowdown seconds. So a
// workload that keeps making files uses at most a quarter of a CPU.
const (
	burst    = 4 * time.Second
	slowdown = 4
)

// errChanged is the error if a file is not the requested one.
var errChanged = errors.New("the file is not the one that was mapped")

// Store has the tables of files. Its methods are safe for concurrent use. Only Wait and Close block. Its goroutines run until
// Close.
type Store struct {
	options Options

	mu      sync.Mutex
	entries map[symtab.FileID]*entry
	recent  *list.List // of *entry, the most recently used first
	bytes   int64
	keep    time.Duration // see KeepFor
	stats   Stats
	closed  bool

	allowance patience.Allowance // of both goroutines

	disks   *patience.Runner
	queue   chan *entry
	fetches chan *entry
	stop    context.CancelFunc
	stopped sync.WaitGroup
}

// Stats has counters since the Store was made, and its current content.
type Stats struct {
	Files, Bytes    int64                   // held now
	Read, Forgotten uint64                  // files; each read counts
	Failed          [symtab.NumStates]int64 // reads of files without a table, by State
	Fetched         uint64                  // debug files that Options.Fetch found
	Stuck           uint64                  // files whose reading was abandoned
	Lost            uint64                  // files that were not read because Options.Reader was missing or ended
	NotFetched      uint64                  // debug files that were not found or were useless
	// Last is the error of the last file that could not be read, or nil. Files without symbols do not count.
	Last error
}

// addresses are ELF virtual addresses of a file.
type addresses map[uint64]struct{}

// entry is what the Store knows of a file. Store.mu guards it.
type entry struct {
	id      symtab.FileID
	state   symtab.State // Pending, Named (it has a table), or why it has none
	table   *symtab.Table
	size    int64
	request Request
	done    chan struct{} // closed when the file is no longer pending
	queued  bool          // to be read or read again
	wanted  addresses     // requested addresses without a known function
	asked   int           // number of requests since it was queued
	retry   time.Time     // after a failed read: not read before this time; zero without a table: never
	wait    time.Duration // time between that read and retry
	why     symtab.State  // why that read failed
	fetched bool          // its debug file is being fetched
	read    time.Time     // time of the last read
	began   time.Time     // start of the last complete read
	cost    time.Duration // CPU time of the last read
	used    time.Time     // time of the last request
	recent  *list.Element
}

// NewStore returns a running Store.
func NewStore(o Options) *Store {
	if o.Bytes == 0 {
		o.Bytes = defaultBytes
	}
	if o.Limits == (symtab.Limits{}) {
		o.Limits = symtab.DefaultLimits()
	}
	if o.Timeout == 0 {
		o.Timeout = symtab.DefaultTimeout
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		options: o, entries: map[symtab.FileID]*entry{}, recent: list.New(), keep: defaultKeep,
		queue: make(chan *entry, maxQueue), fetches: make(chan *entry, maxQueue), stop: stop,
		allowance: patience.Allowance{Burst: burst, Slowdown: slowdown},
		disks:     patience.New(cmp.Or(o.patience, o.Timeout+patienceMore), maxStuck),
	}
	s.stopped.Add(1)
	go s.run(ctx)
	if o.Fetch != nil {
		s.stopped.Add(1)
		go s.fetch(ctx)
	}
	return s
}

// Close stops the Store and waits up to two seconds for its goroutines. A goroutine blocked by a file system stays until that
// answers or is unmounted. Afterwards, Lookup still uses the existing tables.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	patience.Await(&s.stopped)
	s.options.Reader.Close()
}

// Lookup returns the function at an ELF virtual address of a file, or at a process address for a perf map. With the State
// Unknown, it returns the function if only its lines must be requested.
func (s *Store) Lookup(id symtab.FileID, addr uint64) (symtab.Symbol, symtab.State) {
	t, state, more := s.table(id, addr)
	if t == nil {
		return symtab.Symbol{}, state
	}
	symbol, found := s.lookup(id, t, addr, more)
	if found == symtab.Named && state == symtab.Unknown {
		found = symtab.Unknown
	}
	return symbol, found
}

// lookup is Lookup for a file with a table.
func (s *Store) lookup(id symtab.FileID, t *symtab.Table, addr uint64, more bool) (symtab.Symbol, symtab.State) {
	symbol, state := t.Lookup(addr)
	switch {
	case state == symtab.Pending:
		state = s.want(id, addr)
	case more && state != symtab.Named:
		state = symtab.Pending
	}
	return symbol, state
}

// want records an address whose function was not read. It returns Unknown if the caller has to request the file.
func (s *Store) want(id symtab.FileID, addr uint64) symtab.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[id]
	switch {
	case e == nil:
		return symtab.Unknown
	case !e.retry.IsZero() && time.Now().Before(e.retry):
		return e.why
	}
	e.want(addr)
	if e.queued {
		return symtab.Pending
	}
	return symtab.Unknown
}

// want records an address. The caller holds Store.mu.
func (e *entry) want(addr uint64) {
	e.asked++
	if len(e.wanted) >= symtab.MaxWanted {
		return // the next look-up records it again
	}
	if e.wanted == nil {
		e.wanted = addresses{}
	}
	e.wanted[addr] = struct{}{}
}

// table returns the table of a file. more says that the file will be read again, or its debug file fetched. If the file has no
// table yet and will be read, table records addr as wanted.
func (s *Store) table(id symtab.FileID, addr uint64) (t *symtab.Table, state symtab.State, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[id]
	if e == nil {
		return nil, symtab.Unknown, false
	}
	now := s.use(e)
	if e.table == nil {
		switch {
		case e.queued:
			e.want(addr)
		case !e.retry.IsZero() && !now.Before(e.retry):
			return nil, symtab.Unknown, false // so that the caller requests it from a running process
		}
	}
	if e.lacksLines() && !e.queued && !now.Before(e.retry) {
		return e.table, symtab.Unknown, false
	}
	return e.table, e.state, e.queued || e.fetched
}

// Request requests the reading of a file, unless it was requested. It returns Named if there is a table, Pending if the file is
// being read or waits, and Busy if too many others wait. Otherwise it returns why there is no table.
//
// A later Request reads a missing or unreadable file again: after half a minute at first, and then less often. Until then, Lookup
// returns the reason; afterwards Unknown.
//
// If only lines are missing, the state stays Named while they are read.
//
// For a perf map, which grows, Request reads the new part unless it was just read.
func (s *Store) Request(r Request) symtab.State {
	state, taken := s.request(r)
	if !taken && r.Release != nil {
		r.Release()
	}
	return state
}

// request is Request without Release. taken says that the Store keeps r and will call Release.
func (s *Store) request(r Request) (state symtab.State, taken bool) {
	if r.ID == symtab.VDSO {
		r.Open, r.Root, r.Stuck = openVDSO, nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[r.ID]
	if e != nil {
		now := s.use(e)
		if e.lacksLines() {
			defer func() { state = symtab.Named }() // also without lines
		}
		if e.queued {
			if r.Address != 0 {
				e.want(r.Address)
			}
			return symtab.Pending, false
		}
		if !e.more(now) {
			return e.state, false
		}
		if e.table != nil && e.table.Fetched() { // the debug file has its lines
			s.wantFetch(e)
			return e.state, false
		}
	}
	if s.closed {
		return symtab.Busy, false
	}
	isNew := e == nil
	if isNew {
		e = &entry{id: r.ID, state: symtab.Pending, size: entryBytes}
	}
	// No lock is needed: nobody else knows e until it is sent, and its reader takes s.mu first.
	e.request, e.done, e.queued, e.asked = r, make(chan struct{}), true, 0
	if r.Address != 0 {
		e.want(r.Address)
	}
	select {
	case s.queue <- e:
	default:
		close(e.done)
		e.request, e.queued = Request{}, false
		return symtab.Busy, false
	}
	if e.table == nil {
		e.state = symtab.Pending
	}
	if isNew {
		e.recent, e.used = s.recent.PushFront(e), time.Now()
		s.entries[r.ID] = e
		s.bytes += e.size
		s.makeRoom()
	}
	return symtab.Pending, true
}

// ReadSince reports whether the last read of a file began after t, so that it includes all that the file had at t.
func (s *Store) ReadSince(id symtab.FileID, t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[id]
	return e != nil && e.began.After(t)
}

// Wait waits until none of the files is pending or ctx ends. It reports whether none is pending.
func (s *Store) Wait(ctx context.Context, ids ...symtab.FileID) bool {
	for _, id := range ids {
		s.mu.Lock()
		var done chan struct{}
		if e := s.entries[id]; e != nil {
			done = e.done
		}
		s.mu.Unlock()
		if done == nil {
			continue
		}
		select {
		case <-done:
		default:
			select {
			case <-done:
			case <-ctx.Done():
				return false
			}
		}
	}
	return true
}

// Stats returns the Store's counters and its current content.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Stuck = s.disks.Total()
	stats.Files, stats.Bytes = int64(len(s.entries)), s.bytes
	return stats
}
