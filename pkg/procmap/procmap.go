// Package procmap finds out which file, and where in it, the addresses of a process belong to.
//
// The kernel hands over bare addresses, or a GNU build ID and an offset. A Resolver reads the rest
// from /proc/PID in a goroutine of its own: the path, the GNU and the Go build ID and the htlhash of
// the files that a process has mapped to execute. Whoever asks never waits for it. What is not known
// yet is asked for, and is known some moments later.
//
// # Trust
//
// Processes are hostile. A file is opened as what is mapped (/proc/PID/map_files), never by a path
// that a container could redirect; only regular files are opened, and none on file systems that a
// process or a network can stop (FUSE, NFS and the like). Of each only what package buildid reads is
// read. Everything that is kept has a bound.
//
// A number of a process can be another process's by the time that it is read. So all of it is read
// through one open folder, which belongs to one process, and counts only if that process runs the
// executable that the kernel saw (inode) and was there when the kernel saw it (start time). What is
// known of a process is kept under its address space (Process), so that a later process of that
// number does not get it.
package procmap

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// Process is an address space as a gadget's program saw it. It is comparable.
type Process struct {
	// PID is the number in the PID namespace that /proc shows.
	PID uint32
	// ExeInode is the inode of the executable. Without it nothing is read.
	ExeInode uint64
	// Space changes with every execve and differs between processes: the base_addr_hash of a
	// gadget_user_stack.
	Space uint32
}

// Options are the settings of a Resolver.
type Options struct {
	// Root is the folder that has the host's proc; "" means /.
	Root string
}

// Bounds of what a Resolver keeps.
const (
	maxQueue     = 512
	maxProcesses = 4096
	maxFiles     = 8192 // that are identified, in all processes
	// maxHeld is in bytes, by estimate, for the mappings of all processes. A process can have thousands,
	// each of a file with a path of four kilobytes; an ordinary one takes a few kilobytes altogether.
	maxHeld = 32 << 20
)

// What is not known is not asked for again before these times have passed.
const (
	firstRetry = 10 * time.Second
	lastRetry  = 10 * time.Minute
)

// rest is for how many times the time of a read the goroutine rests after it: whoever starts processes
// without pause gets a fifth of one CPU at most.
const rest = 4

// stopTimeout is how long Close waits for a read that is under way.
const stopTimeout = 2 * time.Second

// Resolver knows the mappings of processes. Its methods may be called by any number of goroutines.
// Close ends its goroutine.
type Resolver struct {
	proc string

	mu        sync.Mutex
	processes map[Process]*entry
	held      int // bytes, of all entries
	failed    int // reads, while none has succeeded
	succeeded bool
	lastErr   error

	queue   chan request
	stop    chan struct{}
	stopped chan struct{}
	once    sync.Once

	// Owned by the goroutine.
	files map[fileID]buildid.Info
}

type request struct {
	process Process
	seen    uint64 // see Annotate
}

// entry is what is known of a process. Under Resolver.mu; ranges are replaced as a whole.
type entry struct {
	ranges []mapped // by address; nil: nothing known
	size   int      // of ranges in bytes, by estimate
	queued bool
	retry  time.Time // no earlier
	wait   time.Duration
	used   time.Time
}

// mapped is a part of an address space that a file is mapped to.
type mapped struct {
	start, end, offset uint64
	file               *file
}

type file struct {
	path string
	info buildid.Info
}

// New returns a running Resolver.
func New(o Options) *Resolver {
	r := &Resolver{
		proc:      filepath.Join("/", o.Root, "proc"),
		processes: map[Process]*entry{},
		queue:     make(chan request, maxQueue),
		stop:      make(chan struct{}),
		stopped:   make(chan struct{}),
		files:     map[fileID]buildid.Info{},
	}
	go r.run()
	return r
}

// Close stops the Resolver and waits for its goroutine, up to two seconds: the goroutine ends after
// the file that it reads, and a file system can take its time. After it, Annotate knows what it knew.
func (r *Resolver) Close() {
	r.once.Do(func() { close(r.stop) })
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-r.stopped:
	case <-timer.C:
	}
}

// suspicious is after how many failures, without a success, something is wrong with more than the
// processes.
const suspicious = 20

// Err returns why nothing is known of any process, after some that could not be read: /proc may be
// that of another PID namespace, or a capability is missing. It is nil where one was read.
func (r *Resolver) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.succeeded || r.failed < suspicious {
		return nil
	}
	return r.lastErr
}

func (r *Resolver) run() {
	defer close(r.stopped)
	for {
		select {
		case <-r.stop:
			return
		case req := <-r.queue:
			begin := time.Now()
			ranges, err := r.read(req)
			r.mu.Lock()
			if e := r.processes[req.process]; e != nil {
				e.queued = false
				if err == nil {
					r.keep(e, ranges)
				}
			}
			if err == nil {
				r.succeeded = true
			} else {
				r.failed, r.lastErr = r.failed+1, err
			}
			r.mu.Unlock()
			timer := time.NewTimer(rest * time.Since(begin))
			select {
			case <-r.stop:
			case <-timer.C:
			}
			timer.Stop()
		}
	}
}

// Annotate fills in what is known of the mappings of user frames: with a GNU build ID, the rest of
// the Mapping; with an address alone, the Mapping and the offset in the file in place of the address.
// A frame of a program that was written in Go gets that type. Kernel frames, and all that is not
// known, stay as they are.
//
// frames are those of one stack, leaf first. The address of each but the first is where a call returns
// to, one instruction past it; what is filled in is one byte less, which lies in the call.
//
// With virtual, offsets become the addresses that the file's symbol tables have.
//
// seen is when the kernel saw the stack, in nanoseconds since boot, 0 if that is not known. With
// pending, something is asked for and a later call may know more.
func (r *Resolver) Annotate(p Process, seen uint64, virtual bool, frames []profile.Frame) (pending bool) {
	if p.PID == 0 || p.ExeInode == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.processes[p]
	missing := false
	for i := range frames {
		f := &frames[i]
		if f.Type == profile.FrameKernel || f.Mapping.HTLHash != "" {
			continue
		}
		switch {
		case f.Mapping.GNUBuildID != "":
			if m := e.byBuildID(f.Mapping.GNUBuildID); m != nil {
				m.annotate(f, virtual)
			} else {
				missing = true
			}
		case f.Address != 0 && f.Mapping == profile.Mapping{}:
			addr := f.Address
			if i > 0 {
				addr--
			}
			if m := e.byAddress(addr); m != nil {
				f.Address = addr + m.offset - m.start
				m.file.annotate(f, virtual)
			} else {
				missing = true
			}
		}
	}
	now := time.Now()
	if e != nil {
		e.used = now
	}
	return missing && r.ask(p, seen, e, now)
}

// ask queues a process to be read, or read again, unless that was tried a short while ago. It tells
// whether there is something to wait for. Under r.mu.
func (r *Resolver) ask(p Process, seen uint64, e *entry, now time.Time) bool {
	switch {
	case e == nil:
		r.makeRoom()
		e = &entry{used: now}
	case e.queued:
		return true
	case now.Before(e.retry):
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

// keep takes over what was read of a process, and forgets others if that is too much to hold. Under r.mu.
func (r *Resolver) keep(e *entry, ranges []mapped) {
	size := sizeOf(ranges)
	r.held += size - e.size
	e.ranges, e.size = ranges, size
	for r.held > maxHeld && len(r.processes) > 1 {
		r.forgetHalf()
	}
}

// sizeOf estimates the memory of ranges with their files, on the high side.
func sizeOf(ranges []mapped) int {
	n := 0
	seen := map[*file]bool{}
	for i := range ranges {
		n += 32
		if f := ranges[i].file; !seen[f] {
			seen[f] = true
			n += 256 + len(f.path) + len(f.info.Go) + len(f.info.GNU) + 24*len(f.info.Code)
		}
	}
	return n
}

// makeRoom makes room for one more process.
func (r *Resolver) makeRoom() {
	if len(r.processes) >= maxProcesses {
		r.forgetHalf()
	}
}

// forgetHalf forgets the processes that were not asked for in the longest time, half of them.
func (r *Resolver) forgetHalf() {
	keys := slices.SortedFunc(maps.Keys(r.processes), func(a, b Process) int { return r.processes[a].used.Compare(r.processes[b].used) })
	for _, p := range keys[:len(keys)/2] {
		r.held -= r.processes[p].size
		delete(r.processes, p)
	}
}

func (e *entry) byAddress(addr uint64) *mapped {
	if e == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(e.ranges, addr, func(m mapped, addr uint64) int { return cmp.Compare(m.start, addr) })
	if !found {
		i--
	}
	if i < 0 || addr >= e.ranges[i].end {
		return nil
	}
	return &e.ranges[i]
}

func (e *entry) byBuildID(id string) *file {
	if e == nil {
		return nil
	}
	for i := range e.ranges {
		if f := e.ranges[i].file; f.info.GNU == id {
			return f
		}
	}
	return nil
}

// annotate fills in a frame whose address is an offset in the file.
func (f *file) annotate(fr *profile.Frame, virtual bool) {
	fr.Mapping = profile.Mapping{
		File: f.path, GNUBuildID: f.info.GNU, GoBuildID: f.info.Go, HTLHash: f.info.HTLHash, Symbolized: fr.Name != "",
	}
	fr.Type = f.frameType(fr)
	if !virtual {
		return
	}
	if addr, ok := f.info.Virtual(fr.Address); ok {
		fr.Address = addr
	}
}

// frameType tells Go functions from others. A file with a Go build ID is made by the Go toolchain,
// but can hold C functions too, whose names, unlike those of Go functions, have no package.
func (f *file) frameType(fr *profile.Frame) profile.FrameType {
	if f.info.Go != "" && isGoName(fr.Name) {
		return profile.FrameGo
	}
	return fr.Type
}

// isGoName reports whether a function of a Go program is a Go function: main.work, or
// example.com/mod/pkg.(*T).Method. C compilers add suffixes behind a dot (f.cold, f.isra.0), and
// mangled names are C++ or Rust.
func isGoName(name string) bool {
	if strings.HasPrefix(name, "_") {
		return false
	}
	pkg, function, ok := strings.Cut(name[strings.LastIndexByte(beforeBracket(name), '/')+1:], ".")
	if !ok || pkg == "" {
		return false
	}
	suffix, _, _ := strings.Cut(function, ".")
	switch suffix {
	case "", "cold", "isra", "part", "constprop", "lto_priv", "llvm", "localalias":
		return false
	}
	return true
}

// beforeBracket leaves out type parameters, which have packages of their own.
func beforeBracket(name string) string {
	before, _, _ := strings.Cut(name, "[")
	return before
}
