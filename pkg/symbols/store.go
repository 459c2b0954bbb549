// Package symbols turns an address in a file into the name of its function, with file and line if they are known. Otherwise it
// says why it cannot.
//
// It knows files and addresses only. Package procmap finds the files that a process has mapped.
//
// # Addresses
//
// An address is an ELF virtual address, as in the file's own symbol tables, not an address in a process. For frames other than
// the innermost, it is the return address, which can belong to the next function already. Look up the address minus one.
//
// # Right or not at all
//
// A symbol covers the bytes that its size says and no more. A wrong name is worse than none.
//
// # Trust
//
// The files are under the control of the programs that run them. They are read with pread and never
// mapped to memory: truncating a mapped file kills the process that has mapped it. Every read
// is bounded in bytes, in entries and in time (Limits). A panic costs the file that it happened at,
// and nothing else.
//
// A process without rights reads them (Options.Reader). This package opens a file and sends it to that process by a socket
// (Conn). The process returns the Table. A Table that was sent is checked: one that lies has wrong names. What parses files is
// package parse, which nothing here imports.
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
	// Bytes bounds all tables together; 0 means 64 MiB. A table that is larger than that alone is not kept.
	Bytes int64
	// Limits bound the data that is read of one file; the zero value means DefaultLimits.
	Limits symtab.Limits
	// Timeout bounds the time of reading one file; 0 means ten seconds.
	Timeout time.Duration
	// Inlined requests Symbol.Callers, and the inlined function as the Symbol.
	Inlined bool
	// Lines requests lines (and with Inlined inlined functions) of .debug_info, which costs time and memory. Go programs have
	// them without it.
	Lines bool
	// Reader reads the files. The Store closes it.
	Reader symtab.Reader
	// Fetch gets the debug file of a build ID from elsewhere: debuginfod.Client.Fetch. It is called for files without a symbol
	// table, one after the other, in a goroutine of its own. So it may take its time. If it is nil, nothing is fetched.
	Fetch func(ctx context.Context, buildID string) (*os.File, error)
	// patience limits the wait for one file, shorter in tests; 0 means patienceMore longer than Timeout.
	patience time.Duration
	// HostRoot is the folder where the host's debug files are looked for; "" means /.
	HostRoot string
}

// Request asks a Store to read a file. Open and Root are called where the Store reads one file after the other. That is only for
// regular files on local file systems, because all others would wait for a file system that does not answer.
type Request struct {
	// ID is the identity of the file that Open opens. It is checked.
	ID symtab.FileID
	// Info identifies that file's content. With it, the file may have another CtimeNS by now. Renaming a file, linking it
	// or setting its mode does not change its content. The zero value is fine.
	Info buildid.Info
	// Path is where the file is in Root, for messages and for the folder of its debug link. "" is fine.
	Path string
	// Open opens the file. The Store closes it.
	Open func() (*os.File, error)
	// Address is one that will be looked up: the function there is read together with the file. 0 is fine.
	Address uint64
	// Root opens the root folder of the process that has mapped the file (O_PATH is enough). Debug files are searched for there,
	// if the file is from the same mount. The Store closes it. nil: there is none.
	Root func() (*os.File, error)
	// Release is called exactly once, from any goroutine, after the last call of Open and Root. That holds even if this request
	// does not read the file. nil is allowed.
	Release func()
	// Stuck is called when reading what Open has opened does not end, and the function that it returns if it has ended
	// after all. It does not wait. nil is fine.
	Stuck func() (ended func())
}

const defaultBytes = 64 << 20

const defaultKeep = 10 * time.Minute

const forgetEvery = time.Minute

const maxQueue = 1024

const maxWaiting = 256 // how many queued files are compared when the next one to read is chosen

const entryBytes = 512 // of what is known of a file beside its table

// The goroutines that read may use burst of CPU time immediately. They earn a second of CPU time in every slowdown seconds. So
// making files without pause makes them take at most a quarter of one CPU.
const (
	burst    = 4 * time.Second
	slowdown = 4
)

// errChanged is the error if a file is not the requested one.
var errChanged = errors.New("the file is not the one that was mapped")

// Store knows the tables of files. Its methods may be called by any number of goroutines. Only
// Wait and Close wait. Close ends its goroutines.
type Store struct {
	options Options

	mu      sync.Mutex
	entries map[symtab.FileID]*entry
	recent  *list.List // of *entry, the one that was used last in front
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

// Stats are sums since the Store was made, and its current content.
type Stats struct {
	Files, Bytes    int64                   // that are held
	Read, Forgotten uint64                  // files; one that is read again counts again
	Failed          [symtab.NumStates]int64 // reads of files that have no table, by State
	Fetched         uint64                  // debug files that Options.Fetch has found
	Stuck           uint64                  // files whose reading was given up because it did not end
	Lost            uint64                  // files that were not read because Options.Reader was not there, or ended meanwhile
	NotFetched      uint64                  // debug files that it has not found, or that were of no use
	// Last is the error of the last file that could not be read; nil if there is none. Files without symbols
	// do not count.
	Last error
}

// addresses are ELF virtual addresses of a file.
type addresses map[uint64]struct{}

// entry is the knowledge of a file. Under Store.mu.
type entry struct {
	id      symtab.FileID
	state   symtab.State // Pending, Named (there is a table), or why there is none
	table   *symtab.Table
	size    int64
	request Request
	done    chan struct{} // closed when it is no longer pending
	queued  bool          // to be read, or to be read again
	wanted  addresses     // addresses that were asked for and whose functions are not known
	asked   int           // how often it was asked for since it was queued
	retry   time.Time     // after a read that has failed: nothing more is read from the file before; zero: never, if there is no table
	wait    time.Duration // how long before retry that read has ended
	why     symtab.State  // why that read has failed
	fetched bool          // its debug file is being fetched
	read    time.Time     // when it was read the last time
	began   time.Time     // when the last read began that left nothing unread
	cost    time.Duration // CPU time of the last read
	used    time.Time     // when it was asked for the last time
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

// Close stops the Store and waits for its goroutines, up to two seconds. One that waits for a file system that does not answer
// stays until that answers or is unmounted. Afterwards Lookup answers from its existing knowledge.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	patience.Await(&s.stopped)
	s.options.Reader.Close()
}

// Lookup returns the function at an ELF virtual address of a file, or at an address of the process that a
// perf map is of. With the State Unknown, it returns the function where only its lines are to be requested.
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

// lookup is Lookup where there is a table.
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

// want notes an address without a read function. It returns Unknown if the file has to be requested for it.
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

// want notes an address. Under Store.mu.
func (e *entry) want(addr uint64) {
	e.asked++
	if len(e.wanted) >= symtab.MaxWanted {
		return // the next look-up asks again for the unknown ones
	}
	if e.wanted == nil {
		e.wanted = addresses{}
	}
	e.wanted[addr] = struct{}{}
}

// table returns the data of a file. more reports that the file will be read, or its debug file fetched. If the file has
// no table yet and is about to be read, addr is noted as wanted.
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
			return nil, symtab.Unknown, false // so that the caller requests it again, from a process that has it now
		}
	}
	if e.lacksLines() && !e.queued && !now.Before(e.retry) {
		return e.table, symtab.Unknown, false
	}
	return e.table, e.state, e.queued || e.fetched
}

// Request requests the reading of a file, unless that was done. It returns Named if there is a table, Pending if the file is
// being read or waits, and Busy if too many others wait. Otherwise it returns why there is no table.
//
// A missing or unreadable file is read again with a later Request: after half a minute at first, and longer each time. Lookup
// says Unknown then.
//
// If only lines are missing, the file has its names, and stays Named while the lines are read.
//
// For a perf map, which grows, a Request reads the addition, unless the last read was a moment ago.
func (s *Store) Request(r Request) symtab.State {
	state, taken := s.request(r)
	if !taken && r.Release != nil {
		r.Release()
	}
	return state
}

// request is Request without Release. taken reports that the Store keeps r, and calls Release itself.
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
			defer func() { state = symtab.Named }() // whatever becomes of its lines
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
		if e.table != nil && e.table.Fetched() { // its lines are in the debug file
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
	// No lock is needed: until it is sent, nobody else knows e, and the reader takes s.mu before it uses it.
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

// ReadSince reports whether the last read of a file began after t, so that all that the file had at t was read.
func (s *Store) ReadSince(id symtab.FileID, t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[id]
	return e != nil && e.began.After(t)
}

// Wait waits until none of the files is pending or the context ends, and returns whether none is.
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

// Stats returns the Store's counts and its current content.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Stuck = s.disks.Total()
	stats.Files, stats.Bytes = int64(len(s.entries)), s.bytes
	return stats
}
