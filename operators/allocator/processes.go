package allocator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

const (
	// mostProcesses limits the processes with probes. mostProbes limits all probes, because each is an open file. mostOfOne
	// limits the files in which one process has probes.
	mostProcesses = 256
	mostProbes    = 8192
	mostOfOne     = 16
	// mostFiles limits the known files. mostOpen limits the files that are open because they contain an allocator.
	mostFiles = 4096
	mostOpen  = 256
	// readPatience is the time limit for reading a file or a process's mappings.
	readPatience = 5 * time.Second
	// attachPatience is the time limit for attaching to a file. While attaching, the kernel waits for all CPUs several times.
	attachPatience = 20 * time.Second
	maxStuck       = 8
)

// looks lists the times of a process's first inspections. A process maps its libraries one after another, and can map more at
// any time.
var looks = []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second, 10 * time.Second}

const (
	// lookInterval is the time between later inspections.
	lookInterval = 30 * time.Second
	// While a file is being read, the time between two checks doubles. mostDoublings limits how often it doubles.
	mostDoublings = 8
)

// process is a process that the run watches.
type process struct {
	pid     uint32
	start   uint64 // start time, because PIDs are reused
	thread  uint32 // the thread to which the probes are attached
	since   time.Time
	looked  int // number of inspections
	pending int // number of consecutive inspections with unknown files
	next    time.Time
	files   map[symtab.FileID][]probe // the most frequently called comes first; nil: none are attached now
	share
}

// later schedules the process's next inspection. pending means that some files are not known yet.
func (p *process) later(now time.Time, pending bool) {
	switch {
	case pending:
		p.next = now.Add(tick << min(p.pending, mostDoublings))
		p.pending++
		return
	case p.looked+1 < len(looks):
		p.looked++
		p.next = p.since.Add(looks[p.looked])
	default:
		p.next = now.Add(lookInterval)
	}
	p.pending = 0
}

// rescan restarts the scan after execve.
func (p *process) rescan(now time.Time) { p.looked, p.pending, p.since, p.next = 0, 0, now, now }

// file is a mapped file, with its allocator's functions.
type file struct {
	open      *os.File // nil: the file contains no allocator, or cannot be read
	functions []allocators.Function
	exits     map[uint64][]uint64 // return instructions of functions that can throw, by the function's offset
	quick     map[uint64]bool     // offsets of functions whose first instruction the kernel emulates
}

// finder finds mapped files that contain an allocator. It waits for files for a limited time, but not longer than ctx. finder
// is not safe for concurrent use.
type finder struct {
	ctx      context.Context
	store    *symbols.Store
	resolver *procmap.Resolver
	patience *patience.Runner // runs reads of files, which can hang
	attaches *patience.Runner // attaches probes, which can hang
	files    map[symtab.FileID]*file
	open     int
	used     func() map[symtab.FileID]bool // returns the files to keep
	warn     func(error)
}

func newFinder(ctx context.Context, store *symbols.Store, used func() map[symtab.FileID]bool, warn func(error)) *finder {
	return &finder{
		ctx:      ctx,
		store:    store,
		resolver: procmap.New(procmap.Options{Root: hostRoot(), Unwatched: true, Identify: store.Info}),
		patience: patience.New(readPatience, maxStuck),
		attaches: patience.New(attachPatience, maxStuck),
		files:    map[symtab.FileID]*file{}, used: used, warn: warn,
	}
}

func (f *finder) close() {
	f.resolver.Close()
	for id := range f.files {
		f.forget(id)
	}
}

func (f *finder) forget(id symtab.FileID) {
	if known := f.files[id]; known.open != nil {
		known.open.Close()
		f.open--
	}
	delete(f.files, id)
}

// attach runs do, which attaches to a known file. The kernel reads the file, so attach waits only for a limited time. If the file
// system does not respond, nothing more is attached to the file. If do returns later, undo is called.
func (f *finder) attach(id symtab.FileID, do, undo func()) error {
	of := f.files[id]
	_, err := f.attaches.Do(f.ctx, do, func() func() {
		f.files[id] = &file{}
		f.open--
		return func() {
			undo()
			of.open.Close()
		}
	})
	return err
}

// makeRoom drops unused files if there are too many. It returns false if there is still no room.
func (f *finder) makeRoom() bool {
	if len(f.files) < mostFiles && f.open < mostOpen {
		return true
	}
	used := f.used()
	for id := range f.files {
		if !used[id] {
			f.forget(id)
		}
	}
	return len(f.files) < mostFiles && f.open < mostOpen
}

// found is the result of inspecting a process.
type found struct {
	start  uint64          // start time
	thread uint32          // a thread that has not ended
	files  []symtab.FileID // mapped files with an allocator
	// pending is true if a later call can find more files. more is true if it would find them at once.
	pending, more bool
}

// allocators inspects a process.
func (f *finder) allocators(pid uint32) (out found, err error) {
	var got struct {
		found
		mapped []*procmap.File
		err    error
	}
	_, stuck := f.patience.Do(f.ctx, func() {
		_, got.thread = threadDir(pid)
		got.mapped, got.start, got.pending, got.err = f.resolver.Files(pid)
	}, func() func() { return func() {} })
	switch {
	case stuck != nil: // do not use got, because the read can still be running
		return out, fmt.Errorf("reading the mappings of process %d: %w", pid, stuck)
	case got.err != nil:
		return out, got.err
	}
	out = got.found
	begin := time.Now()
	for _, at := range got.mapped {
		if f.files[at.ID] == nil && time.Since(begin) > lookMost { // each file can take seconds, and other processes must not wait
			out.more = true
			continue
		}
		if known := f.file(at); known != nil && len(known.functions) > 0 && len(out.files) < mostOfOne {
			out.files = append(out.files, at.ID)
		}
	}
	return out, nil
}

// file returns what is known about a file. The first call for the file reads it.
func (f *finder) file(at *procmap.File) *file {
	if known := f.files[at.ID]; known != nil {
		return known
	}
	if !f.makeRoom() {
		f.warn(fmt.Errorf("the maximum of %d files have probes, and further files get none: choose fewer processes", mostOpen))
		return nil
	}
	var got struct {
		file
		err error
	}
	_, err := f.patience.Do(f.ctx, func() {
		if got.open, got.err = at.Open(); got.err == nil {
			got.err = f.ask(got.open, &got.file)
		}
	}, func() func() {
		ended := at.Stuck()
		return func() {
			ended()
			got.open.Close() // Close of nil does nothing
		}
	})
	if err != nil { // do not use got, because the read can still be running
		f.warn(fmt.Errorf("reading the functions of %q: %w", at.Path, err))
		if !errors.Is(err, patience.ErrTooMany) {
			f.files[at.ID] = &file{}
		}
		return nil
	}
	switch {
	case errors.Is(got.err, symtab.ErrReader): // the file is not the cause
		got.open.Close()
		return nil
	case errors.Is(got.err, errTooLarge):
		f.warn(fmt.Errorf("%q gets no probes: %w", at.Path, got.err))
	}
	known := &got.file
	f.files[at.ID] = known
	switch {
	case known.open == nil:
	case len(known.functions) == 0:
		known.open.Close()
		known.open = nil
	default:
		f.open++
	}
	return known
}

// ask makes the reader process find the allocator's functions in an open file.
func (f *finder) ask(open *os.File, of *file) error {
	var found allocators.Found
	if _, err := f.store.Ask(f.ctx, open, allocators.Fact, &found); err != nil {
		return err
	}
	if found.TooLarge {
		return errTooLarge
	}
	if err := found.Check(); err != nil {
		return err
	}
	of.functions, of.exits, of.quick = found.Functions, found.Exits, found.Quick
	return nil
}

var errTooLarge = errors.New("its symbols are larger than the limit")

// running returns the PIDs of all processes.
func running() []uint32 {
	var pids []uint32
	dir, err := os.Open(hostRoot() + "/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.ParseUint(name, 10, 32); err == nil {
			pids = append(pids, uint32(pid))
		}
	}
	return pids
}
