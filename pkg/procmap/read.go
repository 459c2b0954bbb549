package procmap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// These constants limit the data that is read about one process.
const (
	maxMountinfo = 4 << 20
	maxPath      = 4096
)

var (
	errOther   = procfs.ErrOther
	errAvoided = errors.New("its file system might not respond")
)

// readProcess reads the mappings of a process, and returns the used CPU time. Only the goroutine of run calls it.
func (r *Resolver) readProcess(ctx context.Context, req request) time.Duration {
	begin := procfs.SinceBoot()
	work := new(reading)
	used, err := r.readings.Do(ctx, func() { *work = r.readEither(ctx, req) }, func() func() { return func() {} })
	if err != nil {
		work = &reading{err: err}
	}
	r.takeReading(req, begin, *work)
	return used
}

// reading holds the data that was read about a process.
type reading struct {
	areas []area
	start uint64
	from  *life // the life with these mappings; nil: the process's own
	err   error
}

// readEither reads the mappings of a process or, if that fails, of its parent.
func (r *Resolver) readEither(ctx context.Context, req request) reading {
	p := req.process
	areas, start, err := r.readMaps(p.PID, p.ExeInode, req.seen)
	if err == nil || !r.watching {
		return reading{areas, start, nil, err}
	}
	// A fork without execve has its parent's mappings.
	r.mu.Lock()
	l := r.history.at(p.PID, req.seen)
	r.mu.Unlock()
	if l != nil && l.parent != nil && ctx.Err() == nil {
		if areas, _, err := r.readMaps(l.parent.pid, p.ExeInode, 0); err == nil {
			return reading{areas, start, l.parent, nil}
		}
	}
	return reading{err: err}
}

// takeReading adds the data that was read about a process since begin.
func (r *Resolver) takeReading(req request, begin uint64, read reading) {
	p, areas, start, from, err := req.process, read.areas, read.start, read.from, read.err
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.tell()
	e := r.processes[p]
	if e != nil {
		e.queued = false
	}
	if err != nil {
		r.failed, r.lastErr = r.failed+1, err
		if e != nil && !e.denied && errors.Is(err, os.ErrPermission) {
			e.denied = true
			r.stats.Denied++
		}
		if e != nil && (errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)) {
			e.gone = e.life == nil
		}
		if e != nil && errors.Is(err, patience.ErrStuck) {
			e.gone = true // reading it hangs, so it is not tried again
		}
		return
	}
	r.succeeded = true
	switch {
	case from != nil && from.ended:
		return // it may have become another program before it was read
	case from != nil:
	case r.watching:
		if from = r.history.at(p.PID, req.seen); from != nil && from.ended {
			return
		}
		if from == nil && r.history.at(p.PID, 0) != nil {
			return // the data belongs to the next life
		}
		if from == nil {
			from = r.history.begin(p.PID, start)
		}
	default:
		from = &life{pid: p.PID, start: start, forgot: true}
	}
	from.ranges, from.shared, from.whole, from.readAt, from.exe = nil, false, true, begin, p.ExeInode
	from.parent, from.depth = nil, 0
	for _, a := range areas {
		from.add(mapped{a.start, a.end, a.offset, r.intern(a.key, holder{from.pid, a.start, a.end, begin})})
	}
	if e == nil {
		return
	}
	if r.watching {
		e.life = cmp.Or(r.history.at(p.PID, req.seen), from)
		return
	}
	if e.life != nil {
		if e.life.start != from.start || !e.life.meets(from) {
			return // it has become another program since then
		}
		from.perf = e.life.perf
	}
	e.life = from
}

// readMaps reads a process's mappings, and its start in nanoseconds since boot.
func (r *Resolver) readMaps(pid uint32, exe, seen uint64) ([]area, uint64, error) {
	dir, err := procfs.Open(r.proc, pid)
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	start, err := r.checkProcess(dir, pid, exe, seen)
	if err != nil {
		return nil, 0, err
	}
	areas, err := readAreas(dir)
	if err != nil {
		return nil, 0, err
	}
	// An open /proc directory always belongs to one process, but an execve during the read would mix two programs. So check
	// again.
	if _, err := r.checkProcess(dir, pid, exe, seen); err != nil {
		return nil, 0, err
	}
	if len(areas) == 0 {
		return nil, 0, fmt.Errorf("the process has exited: %w", os.ErrNotExist)
	}
	return areas, start, nil
}

// checkProcess checks that the /proc directory dir belongs to the process that the kernel saw at the time seen. The executable
// must have this inode. checkProcess returns the process's start.
func (r *Resolver) checkProcess(dir procfs.Dir, pid uint32, inode, seen uint64) (uint64, error) {
	exe, _, err := dir.Executable()
	if err != nil {
		return 0, err
	}
	if exe != inode {
		return 0, errOther
	}
	start, err := dir.Began(r.proc, pid)
	if err == nil && seen != 0 && start > seen {
		err = errOther
	}
	return start, err
}

// maxFilesOf limits how many of a process's files Files examines.
const maxFilesOf = 1024

// Files returns the identified files with code that a process has mapped, and the process's start in nanoseconds since boot. It
// waits for the kernel and reads the mappings at each call, unlike Locate, so it also finds files that were just mapped. pending
// reports that a later call can return more files.
func (r *Resolver) Files(pid uint32) (files []*File, start uint64, pending bool, err error) {
	begin := procfs.SinceBoot()
	dir, err := procfs.Open(r.proc, pid)
	if err != nil {
		return nil, 0, false, err
	}
	defer dir.Close()
	exe, modified, err := dir.Executable() // it fails for a kernel thread
	if err != nil {
		return nil, 0, false, err
	}
	if start, err = dir.Began(r.proc, pid); err != nil {
		return nil, 0, false, err
	}
	areas, err := readAreas(dir)
	if err != nil {
		return nil, 0, false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[*file]bool{}
	for _, a := range areas {
		if a.key.inode == 0 || kindOf(&a.key) != ordinary || len(seen) == maxFilesOf {
			continue
		}
		f := r.intern(a.key, holder{pid, a.start, a.end, begin})
		if seen[f] {
			continue
		}
		seen[f] = true
		switch place := f.place(a.offset); {
		case place.State == Pending:
			r.check(f) // if the queue is full, the next call asks again
			pending = true
		case f.modified(exe, modified) && r.check(f):
			pending = true
		case place.State == Known:
			files = append(files, place.File)
		}
	}
	return files, start, pending, nil
}

// readAreas returns the areas of the process whose /proc directory is dir.
func readAreas(dir procfs.Dir) ([]area, error) {
	text, err := dir.Read("maps", procfs.MaxMaps)
	areas := parseMaps(text)
	for i := range areas {
		areas[i].key.setStat(dir, mapLink(areas[i].start, areas[i].end))
	}
	return areas, err
}

// area is an executable mapping: a line of /proc/PID/maps.
type area struct {
	start, end, offset uint64
	key                fileKey
}

// parseMaps returns the areas, sorted by address.
func parseMaps(text []byte) []area {
	var areas []area
	for m := range procfs.Mappings(text) {
		if m.Executes() && len(areas) < maxRanges {
			areas = append(areas, area{m.Start, m.End, m.Offset, newFileKey(m.Major, m.Minor, m.Inode, m.Path)})
		}
	}
	return areas
}
