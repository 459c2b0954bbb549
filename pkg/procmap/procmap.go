// Package procmap finds the file, and the place in it, of a process's addresses.
//
// The kernel hands over bare addresses. A Resolver knows the rest from two sources. If permitted, the kernel reports every
// execve, fork and executable mapping of the machine. So it knows processes that ended before anybody could inspect them. Of
// earlier processes, it reads /proc/PID/maps when they are first requested. Both happen in goroutines of its own, as does the
// reading of files: whoever asks never waits. Unknown data is known some moments later, and is kept past the end of the process.
//
// # Trust
//
// Processes are hostile. A file is opened as mapped (/proc/PID/map_files). If the process has ended, it is opened by its path in
// the host's root or a container's, without following links. In both cases it counts only if it is a regular file with the inode
// that the kernel saw mapped. The device must also match if they can be compared. What identifies it another process reads,
// without rights (Options.Identify). This package parses only what the kernel writes, such as /proc/PID/maps. A process chooses
// the paths there: they are bounded, and the kernel escapes the ends of lines in them. Everything that is kept has a bound.
//
// No file is opened on a file system that a process or a network can stop (FUSE, NFS and the like). The same holds for an overlay
// with a known layer there: see trust.go. That is not always known, and a disk can hang as well. So opening and reading is left
// behind if it does not end (package patience), and its device is avoided for that long.
//
// A PID can be another process's by the time that it is asked about. The kernel's events have times, which tell the two apart.
// /proc is read through one open folder, which belongs to one process. It counts only if that process runs the executable that
// the kernel saw (inode) and already existed then (start time).
package procmap

import (
	"cmp"
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

// Process is an address space as a gadget's program saw it. It is comparable.
type Process struct {
	// PID is the number in the PID namespace that /proc shows.
	PID uint32
	// ExeInode is the inode of the executable. Without it nothing is known.
	ExeInode uint64
	// ExeModified is when the executable was modified, in nanoseconds since 1970; 0 if that is not known.
	ExeModified int64
	// Space changes with every execve and differs between processes: the base_addr_hash of a
	// gadget_user_stack.
	Space uint32
}

// State is the state of the knowledge of an address.
type State uint8

// The states.
const (
	// Pending means that more will be known soon.
	Pending State = iota
	// Known means that File and Address are set.
	Known
	// Gone means that the process ended, or became another program, before its mappings were known.
	Gone
	// Unmapped means that no code was mapped there. The unwinder had left the stack.
	Unmapped
	// Generated means that a JIT compiler made the code, so it is in no file.
	Generated
	// Unreadable means that File only has a Path. It could not be opened, or is on a file system that may
	// not answer.
	Unreadable
	numStates
)

var stateNames = [numStates]string{"pending", "known", "process gone", "not code", "generated code", "file unreadable"}

// String returns a short name in plain words.
func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return "unknown"
}

// Place is where the code at an address of a process comes from.
type Place struct {
	State State
	// File is the mapped file if State is Known. If it is Unreadable, the File has only a Path. If it is Generated, File is the
	// process's perf map, if there is one. Else it is nil.
	File *File
	// Offset is the place of the code in the file, and Address is its address in the file's symbol tables. A perf map has
	// addresses of the process: there Address is the requested one.
	Offset, Address uint64
}

// Options are the settings of a Resolver.
type Options struct {
	// Root is the folder that has the host's root, with its proc; "" means /.
	Root string
	// Identify reads what identifies an open file, and returns the CPU time that this has taken elsewhere: symbols.Store.Info. An error that
	// is symbols.ErrReader is none of the file's.
	Identify func(ctx context.Context, f *os.File) (buildid.Info, time.Duration, error)
	// Unwatched turns off the kernel's reports. Processes are read when they are requested.
	Unwatched bool
	// wait is the constant of this name, shorter in tests; 0 means the constant.
	wait time.Duration
}

// Bounds of a Resolver's memory.
const (
	maxQueue     = 1024
	maxProcesses = 4096
	maxFiles     = 8192
	// maxHeld is in bytes, by estimate, for the mappings of all processes and the names of their files. A
	// process can have a thousand, each of a file with a path of four kilobytes; an ordinary one takes a
	// kilobyte altogether.
	maxHeld = 32 << 20
)

// A process with too little known is read again after firstRetry at the earliest. Each further wait is twice as long, up to
// lastRetry.
const (
	firstRetry = 10 * time.Second
	lastRetry  = 10 * time.Minute
)

// Resolver knows the mappings of processes. Its methods may be called by any number of goroutines.
// Close ends its goroutines.
type Resolver struct {
	root, proc string
	// See Options.
	identifyFile func(ctx context.Context, f *os.File) (buildid.Info, time.Duration, error)

	mu        sync.Mutex
	history   history
	processes map[Process]*entry
	files     map[fileKey]*file
	heldFiles []heldFile // the oldest first
	fileBytes int        // estimated size of files, without those that only a life still refers to
	count     uint64     // how often held has counted, see file.counted
	failed    int        // processes that could not be read, see Err
	succeeded bool
	lastErr   error
	stats     Stats
	// watching reports that the kernel has reported processes since the Resolver was made. The history is complete except for events that
	// it had no room for.
	watching bool
	waiting  bool // Locate has said Pending because the history lags: take must tell
	changed  chan struct{}

	queue  chan request
	toRead chan *file
	stop   context.CancelFunc
	ended  sync.WaitGroup

	single map[device]uint64 // file systems with one device, and until when that counts; of setStats

	closing  []*os.File       // see closeFiles; under mu
	disks    *patience.Runner // for files
	readings *patience.Runner // for processes

	mountsMu     sync.Mutex // guards what follows; never held together with mu
	avoid        map[device]verdict
	judgements   map[uint64]judgement // by the mount's unique ID
	stuck        map[device]*stuckDevice
	own, initial kernelMounts // of this process, and of the host's first one
}

// request is for the mappings of a process.
type request struct {
	process Process
	seen    uint64 // see Locate
}

// entry is the knowledge of a requested process. Under Resolver.mu.
type entry struct {
	life   *life // nil: nothing known
	queued bool
	gone   bool          // there is nothing to be read any more
	denied bool          // there is no access, and Stats.Denied counts it
	retry  time.Time     // it is not read before
	wait   time.Duration // the last pause before a retry
	used   time.Time     // when it was last asked for
}

// Stats are sums since the Resolver was made.
type Stats struct {
	// Denied are processes, and DeniedFiles files, to which this process has no access.
	Denied, DeniedFiles uint64
}

// New returns a running Resolver.
func New(o Options) *Resolver {
	ctx, stop := context.WithCancel(context.Background())
	patient := cmp.Or(o.wait, wait)
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
		disks:        patience.New(patient, maxStuck),
		readings:     patience.New(patient, maxStuck),
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

// Close stops the Resolver and waits for its goroutines, up to two seconds. One that waits for a file system that does not answer
// stays until that answers or is unmounted. Afterwards Locate answers from its existing knowledge.
func (r *Resolver) Close() {
	r.stop()
	patience.Await(&r.ended)
}

// suspicious is the number of failed reads without a success from which on the processes are not the cause.
const suspicious = 20

// Err returns why no process is known, after some could not be read. /proc may be that of another PID namespace, or a capability
// is missing. It is nil if one was read.
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

// Changed returns a channel that is closed when more is known than now.
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

// Locate appends to dst, for each address of a process, where its code comes from. If pending, a later call will know
// more of some of them.
//
// seen is when the kernel saw the addresses, in nanoseconds since boot, 0 if that is not known.
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

// bind returns the entry of a process, brought up to date with the life that the history has of it at the time seen.
// It makes the entry if the history has such a life; nil means that nothing is known. The caller holds r.mu.
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
	// A process from before the watch has start 0 and matches any time: an execve since would have made a new life.
	l := r.history.at(p.PID, seen)
	switch {
	case l == nil, l.exe != 0 && l.exe != p.ExeInode:
		return e
	case e == nil || e.life == nil:
		if r.lags(seen) {
			return e // an event that is still to come may begin another life
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

// maxLag is for how long after seen the kernel's events are waited for, in nanoseconds. They come much later than
// readEvery only where the machine is too busy.
const maxLag = 1e9

// lags reports whether events from before seen may still come. The caller holds r.mu.
func (r *Resolver) lags(seen uint64) bool {
	if !r.watching || seen <= r.history.until {
		return false
	}
	now := procfs.SinceBoot()
	return seen <= now && now-seen < maxLag
}

// locate finds one address. The caller holds r.mu.
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
	case known.ID == symtab.VDSO && addr < 1<<32: // the vDSO of a 32-bit program, which is another one
		return Place{State: Unmapped}
	case p.ExeModified != 0 && known.ID.Inode == p.ExeInode && known.ID.MtimeNS != p.ExeModified &&
		f.checked+recheck < procfs.SinceBoot() && r.check(f):
		return Place{State: Pending} // it was written to since it was identified
	}
	place := f.place(addr - m.start + m.offset)
	if place.State == Generated {
		return r.perfMap(e.life, addr)
	}
	if place.State == Pending && !r.check(f) { // there is too much to do: the next new stack asks again
		return Place{State: Unreadable, File: &File{Path: f.key.path}}
	}
	return place
}

// ask queues a process to be read, or read again, unless that was tried a short while ago. It
// reports whether there is something to wait for. The caller holds r.mu.
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
		return false // there is too much to do: the next new stack asks again
	}
	e.queued = true
	e.wait = min(max(2*e.wait, firstRetry), lastRetry)
	e.retry = now.Add(e.wait)
	r.processes[p] = e
	return true
}
