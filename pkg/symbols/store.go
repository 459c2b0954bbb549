// Package symbols finds the function at an address in a file, with source file and line if known. If it finds no name, it returns
// the reason.
//
// It handles files and addresses only. Package procmap finds the files that a process has mapped.
//
// # Addresses
//
// An address is an ELF virtual address, as in the file's symbol tables, not an address in a process. For frames other than the
// innermost, the address is a return address, which can belong to the next function. Look up that address minus one.
//
// # Correct or unknown
//
// A symbol covers only the bytes of its size. A wrong name is worse than none.
//
// # Trust
//
// Programs control their own files, so files are hostile. They are read with pread and never mapped to memory, because the
// truncation of a mapped file kills the process. Limits restricts every read in bytes, entries and time. A panic affects only
// the current file.
//
// An unprivileged process reads the files with package parse (Options.Reader). This package opens a file and sends it over a
// socket (Conn). The process returns a Table, which this package checks. A hostile Table can only contain wrong names. This
// package does not import package parse.
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
	// Bytes limits the total size of all tables; 0 means 64 MiB. A larger table is not kept.
	Bytes int64
	// Limits restricts the resources for reading one file; the zero value means DefaultLimits.
	Limits symtab.Limits
	// Timeout limits the time to read one file; 0 means ten seconds.
	Timeout time.Duration
	// Lines requests lines and inlined functions from .debug_info. This costs time and memory. Go programs do not need this
	// setting.
	Lines bool
	// Reader reads the files. The Store closes it.
	Reader symtab.Reader
	// Fetch gets a debug file by build ID, see debuginfod.Client.Fetch. The Store calls it for files without a symbol table,
	// one at a time. It can be slow, because it runs in its own goroutine. If it is nil, nothing is fetched.
	Fetch func(ctx context.Context, buildID string) (*os.File, error)
	// patience limits the wait for one file, for tests; 0 means Timeout plus patienceMore.
	patience time.Duration
	// HostRoot is the root folder in which to search for the host's debug files; "" means /.
	HostRoot string
}

// Request describes a file to read. The Store calls Open and Root of one request at a time. Use only regular files on local file
// systems, because a file system that hangs blocks all requests.
type Request struct {
	// ID is the identity of the file that Open opens. The Store checks it.
	ID symtab.FileID
	// Info identifies the file's content. If it is set, the file's CtimeNS may have changed. Renaming, linking or changing the
	// mode of a file changes its ctime but not its content. The zero value is valid.
	Info buildid.Info
	// Path is the file's path in Root. Messages contain it, and the debug link is relative to its folder. It may be empty.
	Path string
	// Open opens the file. The Store closes it.
	Open func() (*os.File, error)
	// Address is an address that will be looked up. The Store reads its function together with the file. It may be 0.
	Address uint64
	// Root opens the root folder of the process that has mapped the file (O_PATH suffices). The Store searches there for debug
	// files on the file's mount, and closes the folder. Root may be nil.
	Root func() (*os.File, error)
	// The Store calls Stuck if a read of the opened file does not end. It calls ended if the read ends later. Stuck must not
	// block. It may be nil.
	Stuck func() (ended func())
}

const defaultBytes = 64 << 20

const defaultKeep = 10 * time.Minute

const forgetEvery = time.Minute

const maxQueue = 1024

const maxWaiting = 256 // number of queued files that are compared to choose the next file

const entryBytes = 512 // memory of an entry besides its table

// burst and slowdown limit the CPU time for reading. burst is available at once. One more second becomes available every slowdown
// seconds. So a workload that keeps creating files uses at most a quarter of a CPU.
const (
	burst    = 4 * time.Second
	slowdown = 4
)

// errChanged means that a file is not the requested file.
var errChanged = errors.New("the file is not the one that was mapped")

// Store holds the tables of files. Its methods are safe for concurrent use. Only Wait and Close block. Its goroutines run until
// Close.
type Store struct {
	options Options

	mu      sync.Mutex
	entries map[symtab.FileID]*entry
	recent  *list.List // list of *entry, most recently used first
	bytes   int64
	keep    time.Duration // see KeepFor
	last    error         // see LastError
	closed  bool

	allowance patience.Allowance // shared by both goroutines

	disks   *patience.Runner
	queue   chan *entry
	fetches chan *entry
	stop    context.CancelFunc
	stopped sync.WaitGroup
}

// addresses is a set of ELF virtual addresses of a file.
type addresses map[uint64]struct{}

// entry is what the Store knows about a file. Store.mu guards it.
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
	retry   time.Time     // after a failed read: earliest time of the next read; zero without a table: never
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
	o.Bytes = cmp.Or(o.Bytes, defaultBytes)
	o.Limits = cmp.Or(o.Limits, symtab.DefaultLimits())
	o.Timeout = cmp.Or(o.Timeout, symtab.DefaultTimeout)
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

// Close stops the Store and waits up to two seconds for its goroutines. A goroutine that a file system blocks stays until the
// file system responds or is unmounted. After Close, Lookup still uses the existing tables.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	patience.Await(&s.stopped)
	s.options.Reader.Close()
}

// Lookup returns the function at an ELF virtual address of a file, or at a process address for a perf map. If only the lines must
// be requested, Lookup returns the function and the State Unknown.
func (s *Store) Lookup(id symtab.FileID, addr uint64) (symtab.Symbol, symtab.State) {
	t, state, more := s.table(id, addr)
	if t == nil {
		return symtab.Symbol{}, state
	}
	symbol, found := t.Lookup(addr)
	switch {
	case found == symtab.Pending:
		found = s.want(id, addr)
	case found == symtab.Named && state == symtab.Unknown:
		found = symtab.Unknown
	case found != symtab.Named && more:
		found = symtab.Pending
	}
	return symbol, found
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
		return // the next lookup records it again
	}
	if e.wanted == nil {
		e.wanted = addresses{}
	}
	e.wanted[addr] = struct{}{}
}

// table returns the table of a file. more reports whether the file will be read again or its debug file is being fetched. If the
// file has no table yet and will be read, table records addr as wanted.
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
			return nil, symtab.Unknown, false // so that the caller requests the file through a running process
		}
	}
	if e.lacksLines() && !e.queued && !now.Before(e.retry) {
		return e.table, symtab.Unknown, false
	}
	return e.table, e.state, e.queued || e.fetched
}

// Request queues a file for reading, unless the file is already queued or read. It returns Named if there is a table, Pending if
// the file is queued, and Busy if too many files wait. Otherwise, it returns the reason why there is no table.
//
// A later Request reads a missing or unreadable file again. The wait before this is half a minute at first, and then longer.
// During the wait, Lookup returns the reason. After the wait, it returns Unknown.
//
// If only lines are missing, the state stays Named while they are read.
//
// Perf maps grow, so Request reads the new part of a perf map unless the map was just read.
func (s *Store) Request(r Request) (state symtab.State) {
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
			return symtab.Pending
		}
		if !e.more(now) {
			return e.state
		}
		if e.table != nil && e.table.Fetched() { // the debug file contains the lines
			s.wantFetch(e)
			return e.state
		}
	}
	if s.closed {
		return symtab.Busy
	}
	isNew := e == nil
	if isNew {
		e = &entry{id: r.ID, state: symtab.Pending, size: entryBytes}
	}
	// No lock is needed. No other goroutine knows e before it is sent, and the receiver locks s.mu first.
	e.request, e.done, e.queued, e.asked = r, make(chan struct{}), true, 0
	if r.Address != 0 {
		e.want(r.Address)
	}
	select {
	case s.queue <- e:
	default:
		close(e.done)
		e.request, e.queued = Request{}, false
		return symtab.Busy
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
	return symtab.Pending
}

// ReadSince reports whether the last read of a file began after t. If so, the table includes everything that the file contained
// at t.
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

// LastError returns the error of the last file that could not be read, or nil. Files without symbols do not count.
func (s *Store) LastError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}
