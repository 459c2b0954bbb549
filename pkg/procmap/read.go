package procmap

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/hostproc"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
)

// Bounds of what is read of one process.
const (
	maxMaps      = 8 << 20 // bytes of /proc/PID/maps: more than 65,530 mappings, the kernel's default limit
	maxMountinfo = 4 << 20
	maxPath      = 4096
)

var (
	errOther   = fmt.Errorf("another process has this number now, or another file this name: %w", os.ErrNotExist)
	errAvoided = errors.New("a file system that may not answer")
)

// readProcess reads the mappings of a process, and returns the CPU time that this has taken. Only the goroutine of run calls
// it.
func (r *Resolver) readProcess(ctx context.Context, req request) time.Duration {
	begin := bootTime()
	work := new(reading)
	used, err := r.readings.Do(ctx, func() { *work = r.readEither(ctx, req) }, func() func() { return func() {} })
	if err != nil {
		work = &reading{err: err}
	}
	r.takeReading(req, begin, *work)
	return used
}

// reading is what was read of a process.
type reading struct {
	areas []area
	start uint64
	from  *life // whose mappings they are; nil: the process's own
	err   error
}

// readEither reads the mappings of a process, or if that cannot be, those of its parent.
func (r *Resolver) readEither(ctx context.Context, req request) reading {
	p := req.process
	areas, start, err := r.readMaps(p.PID, p.ExeInode, req.seen)
	if err == nil || !r.watching {
		return reading{areas, start, nil, err}
	}
	// A fork without execve has what its parent has.
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

// takeReading takes in what was read of a process, since begin.
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
		r.stats.Failed++
		if e != nil && !e.denied && errors.Is(err, os.ErrPermission) {
			e.denied = true
			r.stats.Denied++
		}
		if e != nil && (errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)) {
			e.gone = e.life == nil
		}
		if e != nil && errors.Is(err, patience.ErrStuck) {
			e.gone = true // one that does not let itself be read has had its turn
		}
		return
	}
	r.succeeded = true
	r.stats.Read++
	switch {
	case from != nil && from.ended:
		return // it may have become another program before it was read
	case from != nil:
	case r.watching:
		if from = r.history.at(p.PID, req.seen); from != nil && from.ended {
			return
		}
		if from == nil && r.history.at(p.PID, 0) != nil {
			return // what was read is the next life's
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
			return // it has become another program since
		}
		from.perf = e.life.perf
	}
	e.life = from
}

// readMaps reads what a process has mapped, and when it began, in nanoseconds since boot.
func (r *Resolver) readMaps(pid uint32, exe, seen uint64) ([]area, uint64, error) {
	dir, err := r.openFolder(pid)
	if err != nil {
		return nil, 0, fmt.Errorf("opening a process: %w", err)
	}
	defer unix.Close(dir)
	start, err := check(dir, exe, seen)
	if err != nil {
		return nil, 0, err
	}
	text, err := readAt(dir, "maps", maxMaps)
	if err != nil {
		return nil, 0, err
	}
	areas := parseMaps(text)
	for i := range areas {
		areas[i].key.setStat(dir, mapLink(areas[i].start, areas[i].end))
	}
	// An open /proc folder stays that of one process, but an execve during the read would mix two programs: check again.
	if _, err := check(dir, exe, seen); err != nil {
		return nil, 0, err
	}
	if len(areas) == 0 {
		return nil, 0, fmt.Errorf("a process that has ended: %w", os.ErrNotExist)
	}
	return areas, start, nil
}

// check makes sure that the /proc folder dir is that of the process that the kernel saw, with this inode of its
// executable at the time seen. It returns when the process began.
func check(dir int, inode, seen uint64) (uint64, error) {
	// As the kernel knows it, without asking a file system that may not answer.
	var exe unix.Statx_t
	if err := unix.Statx(dir, "exe", unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &exe); err != nil {
		return 0, fmt.Errorf("looking at the executable: %w", err)
	}
	if exe.Ino != inode {
		return 0, errOther
	}
	start, err := began(dir)
	if err != nil {
		return 0, err
	}
	if seen != 0 && start > seen {
		return 0, errOther
	}
	return start, nil
}

// began returns when the process whose /proc folder is dir has begun, in nanoseconds since boot.
func began(dir int) (uint64, error) {
	stat, err := readAt(dir, "stat", 4096)
	if err != nil {
		return 0, err
	}
	start, ok := hostproc.Start(stat)
	if !ok {
		return 0, errOther
	}
	return start * hostproc.Tick, nil
}

// readAt reads a file of the /proc folder dir, up to limit bytes.
func readAt(dir int, name string, limit int64) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s of a process: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return readFrom(f, limit)
}

// readFrom reads a file of a /proc folder from its beginning, up to limit bytes.
func readFrom(f *os.File, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, limit))
	if err != nil {
		return nil, fmt.Errorf("reading %s of a process: %w", f.Name(), err)
	}
	return b, nil
}

// area is an executable mapping, a line of /proc/PID/maps.
type area struct {
	start, end, offset uint64
	key                fileKey
}

// parseMaps reads the areas, by address as the kernel lists them. A line that makes no sense is left
// out.
func parseMaps(text []byte) []area {
	var areas []area
	for line := range bytes.Lines(text) {
		if len(areas) == maxRanges {
			break
		}
		if a, ok := parseArea(string(bytes.TrimSuffix(line, []byte("\n")))); ok {
			areas = append(areas, a)
		}
	}
	return areas
}

// parseArea reads an executable mapping, and returns false for any other line:
// "55d0c0a4e000-55d0c0b2f000 r-xp 0002f000 fd:01 1234   /usr/bin/bash".
func parseArea(line string) (area, bool) {
	var a area
	var fields [5]string
	for i := range fields {
		var ok bool
		line = strings.TrimLeft(line, " ")
		if fields[i], line, ok = strings.Cut(line, " "); !ok {
			if i < len(fields)-1 {
				return a, false
			}
			line = "" // without a file
		}
	}
	from, to, _ := strings.Cut(fields[0], "-")
	if len(fields[1]) != 4 || fields[1][2] != 'x' {
		return a, false
	}
	major, minor, _ := strings.Cut(fields[3], ":")
	var ma, mi, inode uint64
	for _, n := range []struct {
		dst  *uint64
		text string
		base int
		bits int
	}{{&a.start, from, 16, 64}, {&a.end, to, 16, 64}, {&a.offset, fields[2], 16, 64}, {&inode, fields[4], 10, 64}, {&ma, major, 16, 32}, {&mi, minor, 16, 32}} {
		v, err := strconv.ParseUint(n.text, n.base, n.bits)
		if err != nil {
			return a, false
		}
		*n.dst = v
	}
	a.key = newFileKey(uint32(ma), uint32(mi), inode, strings.TrimLeft(line, " "))
	return a, a.start < a.end && a.start < 1<<63
}
