// Package procmap finds the file and offset of a process's addresses.
//
// The kernel only reports addresses. A Resolver gets the mappings from two sources. If permitted, the kernel reports every
// execve, fork and executable mapping on the machine. So the Resolver knows processes that exit before anybody can inspect
// them. For older processes, it reads /proc/PID/maps at the first request. The Resolver's goroutines do all this and read the
// files, so callers never wait. Unknown data becomes available moments later. The Resolver keeps data after the process has
// exited.
//
// # Trust
//
// Processes are hostile. A file is opened by its mapping (/proc/PID/map_files). If the process has exited, the file is opened
// by its path in the host's or a container's root, without following links. In both cases it must be a regular file with the
// inode that the kernel reported. The device number must also match if the two numbers are comparable. An unprivileged process
// identifies the file (Options.Identify). This package only parses data from the kernel, for example /proc/PID/maps. Processes
// choose the paths in these data. Their length is bounded, and the kernel escapes newlines in them. All memory is bounded.
//
// No file is opened on a file system that a process or a network can block (FUSE, NFS and the like). The same applies to an
// overlay with such a layer (see trust.go). The layers are not always known, and disks can also hang. So a call that hangs is
// abandoned (package patience), and its device is avoided while the call hangs.
//
// A PID can belong to another process by the time of a request. The times of the kernel's events distinguish these processes.
// /proc is read through one open directory, which belongs to one process. That process must run the executable that the kernel
// reported (inode), and must have existed at that time (start time).
package procmap

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// Process is an address space as a gadget's eBPF program saw it. It is comparable.
type Process struct {
	// PID is a PID in the namespace of /proc.
	PID uint32
	// ExeInode is the inode of the executable. If it is 0, nothing is known about the process.
	ExeInode uint64
	// ExeModified is the modification time of the executable in nanoseconds since 1970, or 0 if it is unknown.
	ExeModified int64
	// Space changes with every execve and differs between processes. It is the base_addr_hash of a gadget_user_stack.
	Space uint32
}

// State describes how much is known about an address.
type State uint8

// These are the states.
const (
	// Pending means that more will be known soon.
	Pending State = iota
	// Known means that File and Address are set.
	Known
	// Gone means that the process exited, or became another program, before its mappings were known.
	Gone
	// Unmapped means that no code was mapped there. The unwinder had left the stack.
	Unmapped
	// Generated means that a JIT compiler made the code, so it is in no file.
	Generated
	// Unreadable means that File only has a Path. The file could not be opened, or its file system might not answer.
	Unreadable
)

// Place describes the origin of the code at an address in a process.
type Place struct {
	State State
	// File is the mapped file if State is Known. If State is Unreadable, File only has a Path. If State is Generated, File is
	// the process's perf map or nil. Otherwise it is nil.
	File *File
	// Offset is the position of the code in the file. Address is its address in the file's symbol tables. A perf map contains
	// process addresses, so Address is then the requested address.
	Offset, Address uint64
}

// Options are the settings of a Resolver.
type Options struct {
	// Root is the directory of the host's root, including its proc. "" means /.
	Root string
	// Identify identifies an open file, and returns the CPU time that other processes used for this. symbols.Store.Info
	// implements it. symbols.ErrReader does not mean that the file is bad.
	Identify func(ctx context.Context, f *os.File) (buildid.Info, time.Duration, error)
	// Unwatched turns off the kernel's reports. Processes are then read when they are requested.
	Unwatched bool
}

// These constants limit a Resolver's memory.
const (
	maxQueue     = 1024
	maxProcesses = 4096
	maxFiles     = 8192
	// maxHeld limits the estimated bytes of all processes' mappings and file names. A process can have a thousand mappings with
	// paths of four kilobytes. An ordinary process takes a kilobyte.
	maxHeld = 32 << 20
)

// A process whose mappings are incomplete is read again after firstRetry at the earliest. The wait doubles each time, up to
// lastRetry.
const (
	firstRetry = 10 * time.Second
	lastRetry  = 10 * time.Minute
)

// Resolver finds the mappings of processes. It is safe for concurrent use. Close ends its goroutines.
type Resolver struct {
	root, proc string
	// identifyFile is Options.Identify.
	identifyFile func(ctx context.Context, f *os.File) (buildid.Info, time.Duration, error)

	mu        sync.Mutex
	history   history
	processes map[Process]*entry
	files     map[fileKey]*file
	heldFiles []heldFile // oldest first
	fileBytes int        // estimated size of files, without files that only a life refers to
	count     uint64     // the number of calls to held (see file.counted)
	failed    int        // processes that could not be read: see Err
	succeeded bool
	lastErr   error
	stats     Stats
	// watching reports that the kernel has reported processes since the Resolver was created. The history is complete except for
	// lost events.
	watching bool
	waiting  bool // Locate has returned Pending because the history lags, so take must call tell
	changed  chan struct{}

	queue  chan request
	toRead chan *file
	stop   context.CancelFunc
	ended  sync.WaitGroup

	single map[device]uint64 // used by setStats: the file systems with a single device number, and how long that is valid

	closing  []*os.File       // closeFiles closes these; guarded by mu
	disks    *patience.Runner // opens and closes files
	readings *patience.Runner // reads processes

	mountsMu     sync.Mutex // guards the following fields; never held together with mu
	avoid        map[device]verdict
	judgements   map[uint64]judgement // by the mount's unique ID
	stuck        map[device]*stuckDevice
	own, initial kernelMounts // of this process, and of the host's first process
}

// request asks for the mappings of a process.
type request struct {
	process Process
	seen    uint64 // see Locate
}

// entry is a requested process. Resolver.mu guards it.
type entry struct {
	life   *life // nil if nothing is known
	queued bool
	gone   bool          // nothing more can be read
	denied bool          // access is denied, and Stats.Denied counts it
	retry  time.Time     // the earliest time of the next read
	wait   time.Duration // the last wait before a retry
	used   time.Time     // the time of the last request
}

// Stats are totals since the Resolver was created.
type Stats struct {
	// Denied and DeniedFiles count the processes and files that this process is not allowed to access.
	Denied, DeniedFiles uint64
}

// New returns a running Resolver.
func New(o Options) *Resolver {
	ctx, stop := context.WithCancel(context.Background())
	r := &Resolver{
		root:         filepath.Join("/", o.Root),
		identifyFile: o.Identify,
		proc:         filepath.Join("/", o.Root, "proc"),
		history:      newHistory(),
		processes:    map[Process]*entry{},
		files:        map[fileKey]*file{},
		changed:      make(chan struct{}),
		queue:        make(chan request, maxQueue),
		toRead:       make(chan *file, maxQueue),
		stop:         stop,
		disks:        patience.New(wait, maxStuck),
		readings:     patience.New(wait, maxStuck),
		single:       map[device]uint64{},
		avoid:        map[device]verdict{},
		judgements:   map[uint64]judgement{},
		stuck:        map[device]*stuckDevice{},
	}
	r.ended.Go(func() { r.run(ctx) })
	if !o.Unwatched {
		if w := watch(); w != nil {
			r.watching = true
			r.ended.Go(func() { r.follow(ctx, w) })
		}
	}
	return r
}

// Close stops the Resolver and waits up to two seconds for its goroutines. A goroutine that a file system blocks stays until
// the file system answers or is unmounted. Locate continues to work with the known data.
func (r *Resolver) Close() {
	r.stop()
	patience.Await(&r.ended)
}

// If suspicious reads have failed and none has succeeded, the processes are probably not the cause.
const suspicious = 20

// Err returns the last error if many processes were tried and none could be read. Then /proc is probably from another PID
// namespace, or a capability is missing. Otherwise it returns nil.
func (r *Resolver) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.succeeded || r.failed < suspicious {
		return nil
	}
	return r.lastErr
}

// Stats returns the counters.
func (r *Resolver) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Changed returns a channel that is closed when more is known.
func (r *Resolver) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// tell closes the channel from Changed. The caller holds r.mu.
func (r *Resolver) tell() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Locate appends the Place of each address in a process to dst. pending reports that a later call will know more about some of
// the addresses.
//
// seen is when the kernel saw the addresses, in nanoseconds since boot, or 0 if that is unknown.
func (r *Resolver) Locate(dst []Place, p Process, seen uint64, addrs []uint64) (places []Place, pending bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.bind(p, seen)
	lags := r.lags(seen)
	missing := false
	for _, addr := range addrs {
		place := r.locate(p, e, addr)
		missing = missing || place.State == Gone || place.State == Unmapped
		pending = pending || place.State == Pending
		dst = append(dst, place)
	}
	if missing && p.PID != 0 && p.ExeInode != 0 && (lags || r.ask(p, seen, e)) {
		pending = true
		r.waiting = r.waiting || lags
		for i := len(dst) - len(addrs); i < len(dst); i++ {
			if s := dst[i].State; s == Gone || s == Unmapped {
				dst[i].State = Pending
			}
		}
	}
	return dst, pending
}

// bind returns the entry of a process, updated to the history's life at the time seen. It creates the entry if such a life
// exists. nil means that nothing is known. The caller holds r.mu.
func (r *Resolver) bind(p Process, seen uint64) *entry {
	e := r.processes[p]
	switch {
	case e != nil:
		e.used = time.Now()
	case p.PID == 0 || p.ExeInode == 0:
		return nil
	}
	if !r.watching {
		return e
	}
	// A process that is older than the watch has start 0 and matches any time. An execve since then would have begun a new
	// life.
	l := r.history.at(p.PID, seen)
	switch {
	case l == nil, l.exe != 0 && l.exe != p.ExeInode:
		return e
	case e == nil || e.life == nil:
		if r.lags(seen) {
			return e // an event that has not yet arrived may begin another life
		}
	case e.life == l, l.ended && !l.known():
		return e
	case !e.life.forgot && l.start <= e.life.start:
		return e
	}
	if e == nil {
		r.makeRoom()
		e = &entry{used: time.Now()}
		r.processes[p] = e
	}
	e.life, e.gone = l, false
	r.checkFiles(l)
	return e
}

// maxLag is how long after seen a Resolver waits for the kernel's events, in nanoseconds. Events arrive much later than
// readEvery only if the machine is overloaded.
const maxLag = 1e9

// lags reports whether events from before seen can still arrive. The caller holds r.mu.
func (r *Resolver) lags(seen uint64) bool {
	if !r.watching || seen <= r.history.until {
		return false
	}
	now := procfs.SinceBoot()
	return seen <= now && now-seen < maxLag
}

// locate returns the Place of one address. The caller holds r.mu.
func (r *Resolver) locate(p Process, e *entry, addr uint64) Place {
	if e == nil || e.life == nil {
		return Place{State: Gone}
	}
	m := e.life.find(addr)
	switch {
	case m == nil && !e.life.known():
		return Place{State: Gone}
	case m == nil:
		return Place{State: Unmapped}
	}
	f := m.file
	switch known := f.known; {
	case known == nil:
	case known.ID == symtab.VDSO && addr < 1<<32: // the vDSO of a 32-bit program is another file
		return Place{State: Unmapped}
	case f.modified(p.ExeInode, p.ExeModified) && r.check(f):
		return Place{State: Pending}
	}
	place := f.place(addr - m.start + m.offset)
	if place.State == Generated {
		return r.perfMap(e.life, addr)
	}
	if place.State == Pending && !r.check(f) { // the queue is full; the next new stack asks again
		return Place{State: Unreadable, File: &File{Path: f.key.path}}
	}
	return place
}

// ask queues a process to be read, unless it was tried recently. It reports whether waiting makes sense. The caller holds r.mu.
func (r *Resolver) ask(p Process, seen uint64, e *entry) bool {
	now := time.Now()
	switch {
	case e == nil:
		r.makeRoom()
		e = &entry{used: now}
	case e.queued:
		return true
	case e.gone || now.Before(e.retry):
		return false
	}
	select {
	case r.queue <- request{p, seen}:
	default:
		return false // the queue is full; the next new stack asks again
	}
	e.queued = true
	e.wait = min(max(2*e.wait, firstRetry), lastRetry)
	e.retry = now.Add(e.wait)
	r.processes[p] = e
	return true
}
