package procmap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// File is a file that a process has mapped to execute, as it was when the Resolver identified it. A File never
// changes: a file that is written to becomes another File.
type File struct {
	// Path is the path as the process sees it, in its container; [vdso] for the code that the kernel maps into
	// processes.
	Path string
	// Info is what identifies the file; the zero value if it could not be read.
	Info buildid.Info
	// ID is the key of this file in package symbols.
	ID symbols.FileID

	r *Resolver
	f *file
}

// device is a device number as /proc/PID/maps and the kernel's events have it. On btrfs and overlayfs stat tells
// another one for the same file.
type device struct{ major, minor uint32 }

// fileKey is what the kernel tells of a mapped file. Equal keys are one file.
type fileKey struct {
	dev        device
	inode      uint64
	generation uint64 // of the inode number, which a file system can use again; 0: not told
	path       string
	// Set only for a file that Resolver.File was asked for (see Told). The dev of such a key is 0: settle finds it,
	// in a copy of the key, when the file is opened.
	told    uint64
	version [16]byte
}

func newFileKey(major, minor uint32, inode uint64, path string) fileKey {
	path = strings.TrimSuffix(path, " (deleted)")
	if len(path) > maxPath {
		path = path[:maxPath]
	}
	return fileKey{dev: device{major, minor}, inode: inode, path: path}
}

// file is a mapped file, identified or not. Resolver.mu guards its fields; kind never changes.
type file struct {
	key     fileKey
	known   *File // nil: not identified
	kind    kind
	queued  bool
	checked uint64    // when it was identified or tried, in nanoseconds since boot
	failed  bool      // the last attempt to identify it failed, and none has succeeded
	holders [3]holder // the latest first
	open    *os.File  // while it is held, see hold
	counted uint64    // see Resolver.held
	opening opening   // needs no lock
}

type kind uint8

const (
	ordinary   kind = iota
	generated       // memory without a file: a JIT compiler made the code
	unreadable      // it has no path in a file system
	perfMap         // not mapped: see perfmap.go
)

// holder is a process that had a file mapped, from start to end, at the time seen (nanoseconds since boot). A process
// with this pid that has begun after seen is another one.
type holder struct {
	pid        uint32
	start, end uint64
	seen       uint64
}

// intern returns the file of a key, which it makes if there is none, and puts h first among its holders. Under r.mu.
func (r *Resolver) intern(key fileKey, h holder) *file {
	generation := key.generation
	key.generation = 0 // /proc/PID/maps does not tell it
	f := r.files[key]
	if f == nil || generation != 0 && f.key.generation != 0 && f.key.generation != generation {
		if len(r.files) >= maxFiles || r.fileBytes > maxHeld/2 {
			clear(r.files)
			r.fileBytes = 0
		}
		f = &file{key: key, kind: kindOf(&key)}
		switch {
		case f.kind == generated:
		case key.inode == 0 && key.path == "[vdso]":
			f.known = &File{Path: key.path, ID: symbols.VDSO}
		}
		r.files[key] = f
		r.fileBytes += f.size()
		r.history.grown += f.size()
	}
	if generation != 0 {
		f.key.generation = generation
	}
	if f.kind == ordinary && f.holders[0].pid != h.pid {
		copy(f.holders[1:], f.holders[:])
	}
	f.holders[0] = h
	return f
}

// size estimates the memory that a file takes, in bytes.
func (f *file) size() int { return 700 + len(f.key.path) }

func kindOf(key *fileKey) kind {
	switch {
	case key.inode == 0 && key.path == "[vdso]":
		return ordinary
	case key.inode == 0, key.path == "/dev/zero", strings.HasPrefix(key.path, "/SYSV"):
		return generated
	case !strings.HasPrefix(key.path, "/"):
		return unreadable
	}
	return ordinary
}

// place is where the code at an offset in the file is. Under r.mu.
func (f *file) place(offset uint64) Place {
	switch {
	case f.kind == generated:
		return Place{State: Generated}
	case f.known != nil && f.known.ID == symbols.VDSO:
		return Place{State: Known, File: f.known, Offset: offset, Address: offset}
	case f.known != nil:
		p := Place{State: Known, File: f.known, Offset: offset}
		var ok bool
		if p.Address, ok = f.known.Info.Virtual(offset); !ok {
			p.State = Unreadable // it is no ELF file, or its headers tell of no code at the offset
			if strings.HasPrefix(f.key.path, "/memfd:") {
				p = Place{State: Generated}
			}
		}
		return p
	case f.failed || f.kind == unreadable:
		return Place{State: Unreadable, File: &File{Path: f.key.path}, Offset: offset}
	}
	return Place{State: Pending}
}

// In nanoseconds. A file that a new life has mapped is identified again if that was done more than recheck before the
// life began: it can be written to while nobody has mapped it. A file that could not be read is left alone for
// retryFile.
const (
	recheck   = 2e9
	retryFile = 30e9
)

// checkFiles queues those files of a new life that were not identified for a while (see recheck). Under r.mu.
func (r *Resolver) checkFiles(l *life) {
	for depth := 0; l != nil && depth < maxChain; l, depth = l.parent, depth+1 {
		for i := range l.ranges {
			f := l.ranges[i].file
			age := uint64(recheck)
			if f.failed {
				age = retryFile
			}
			if f.checked == 0 || f.checked+age < l.start {
				r.check(f)
			}
		}
	}
}

// check queues a file to be identified and tells whether it is in the queue now. It is not if it is of a kind that is
// not read, has failed a short while ago, or finds the queue full. Under r.mu.
func (r *Resolver) check(f *file) bool {
	if f.kind != ordinary && f.kind != perfMap || f.known != nil && f.known.ID == symbols.VDSO {
		return false
	}
	if f.queued {
		return true
	}
	if f.failed && bootTime() < f.checked+retryFile {
		return false
	}
	select {
	case r.toRead <- f:
		f.queued = true
		return true
	default:
		return false
	}
}

// readFile identifies a file, and returns the CPU time that this has taken. Only the goroutine of run calls it.
func (r *Resolver) readFile(ctx context.Context, f *file) time.Duration {
	r.mu.Lock()
	key, known, holders := f.key, f.known, f.holders
	r.mu.Unlock()
	now := bootTime()
	f.opening.set(key.dev, doubtful)
	type result struct {
		found  *File
		opened *os.File
		err    error
	}
	work := new(result)
	used, err := r.disks.Do(ctx, func() {
		if f.kind == perfMap {
			work.found, work.err = r.identifyPerfMap(holders[0], known, &f.opening)
		} else {
			work.found, work.opened, work.err = r.identify(&key, holders[:], known, &f.opening)
		}
		if work.opened != nil && !r.mayHold(work.opened, holders[:]) {
			work.opened.Close()
			work.opened = nil
		}
	}, func() func() {
		dev := r.gotStuck(&f.opening)
		return func() {
			if work.opened != nil {
				work.opened.Close()
			}
			r.goesOn(dev)
		}
	})
	var got result
	if err == nil {
		got = *work
	} else {
		got.err = err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if got.opened != nil {
		r.hold(f, got.opened)
	}
	f.queued, f.checked = false, now
	switch {
	case got.err == nil:
		if got.found != known {
			got.found.f, got.found.r = f, r
			f.known = got.found
			r.stats.Files++
		}
		f.failed = false
	case known == nil:
		if f.kind != perfMap { // most processes have none, which is no failure
			r.stats.Unreadable++
			if !f.failed && errors.Is(got.err, os.ErrPermission) {
				r.stats.DeniedFiles++
			}
		}
		f.failed = true
	}
	r.tell()
	return used
}

// identify opens a file and reads what identifies it. If it is still the file that known describes, it returns known;
// else a new File, and the open file, which the caller closes.
func (r *Resolver) identify(key *fileKey, holders []holder, known *File, on *opening) (*File, *os.File, error) {
	opened, st, err := r.open(key, holders, on)
	if err != nil {
		return nil, nil, err
	}
	id := symbols.IdentifyStat(st)
	if known != nil && known.ID == id {
		opened.Close()
		return known, nil, nil
	}
	info, err := buildid.Read(opened, st.Size)
	if err != nil {
		opened.Close()
		return nil, nil, err
	}
	return &File{Path: key.path, Info: info, ID: id}, opened, nil
}

// Open opens the file for reading; the caller closes it. The file system can make the call, and all that is done with the
// file, wait for ever: see package patience and Stuck.
func (f *File) Open() (*os.File, error) {
	if f.r == nil {
		return nil, errors.New("nothing that can be opened")
	}
	f.r.mu.Lock()
	key, holders := f.f.key, f.f.holders
	held := f.f.again()
	f.r.mu.Unlock()
	if held != nil {
		return held, nil
	}
	if f.f.kind == perfMap {
		opened, _, err := f.r.openPerfMap(holders[0], &f.f.opening)
		return opened, err
	}
	opened, _, err := f.r.open(&key, holders[:], &f.f.opening)
	return opened, err
}

// Root opens, with O_PATH, the root folder of a process that has mapped the file, to look up other files below it.
// The caller closes it.
func (f *File) Root() (*os.File, error) {
	if f.r == nil {
		return nil, errors.New("no process")
	}
	f.r.mu.Lock()
	holders := f.f.holders
	f.r.mu.Unlock()
	for _, h := range holders {
		if h.pid == 0 {
			continue
		}
		if root, err := f.r.openRoot(h); err == nil {
			return root, nil
		}
	}
	return nil, errors.New("no process that has mapped it is there any more")
}

// openRoot opens the root folder of a holder's process. errOther says that the pid is another process's now.
func (r *Resolver) openRoot(h holder) (*os.File, error) {
	dir, err := r.openFolder(h.pid)
	if err != nil {
		return nil, fmt.Errorf("opening a process: %w", err)
	}
	defer unix.Close(dir)
	if start, err := began(dir); err != nil || start > h.seen {
		return nil, errOther
	}
	root, err := unix.Openat(dir, "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the root of a process: %w", err)
	}
	return os.NewFile(uintptr(root), fmt.Sprintf("%s/%d/root", r.proc, h.pid)), nil
}

// open opens the file of a key. It tries each holder, first by its mapping, then by the path in its root, and in the
// end the path in the host's root.
func (r *Resolver) open(key *fileKey, holders []holder, on *opening) (*os.File, *unix.Stat_t, error) {
	var errs []error
	for _, h := range holders {
		if h.pid == 0 {
			continue
		}
		dir, err := r.openFolder(h.pid)
		if err != nil {
			continue // it has ended
		}
		own := *key
		err = own.settle(dir, &h)
		var f *os.File
		var st *unix.Stat_t
		if err == nil {
			f, st, err = r.openMapped(dir, &own, h, on)
		}
		if err != nil {
			f, st, err = r.openIn(dir, &own, on)
		}
		unix.Close(dir)
		if err == nil {
			return f, st, nil
		}
		errs = append(errs, err)
	}
	f, st, err := r.openByPath(key, on)
	if err == nil {
		return f, st, nil
	}
	return nil, nil, errors.Join(append(errs, err)...)
}

// openMapped opens what a process, whose /proc folder is dir, has mapped at the range of h. The link in map_files
// leads to the mapped file itself, whatever its path is now.
func (r *Resolver) openMapped(dir int, key *fileKey, h holder, on *opening) (*os.File, *unix.Stat_t, error) {
	if r.avoided(dir, key.dev) {
		return nil, nil, errAvoided
	}
	path, err := unix.Openat(dir, fmt.Sprintf("map_files/%x-%x", h.start, h.end), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening what is mapped: %w", err)
	}
	if r.judge(dir, path, key.dev, on) == avoid {
		unix.Close(path)
		return nil, nil, errAvoided
	}
	return reopen(path, key)
}

// openIn opens the path of key below the root of the process whose /proc folder is dir.
func (r *Resolver) openIn(dir int, key *fileKey, on *opening) (*os.File, *unix.Stat_t, error) {
	if r.avoided(dir, key.dev) {
		return nil, nil, errAvoided
	}
	root, err := unix.Openat(dir, "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the root of a process: %w", err)
	}
	defer unix.Close(root)
	path, err := r.openBelow(dir, root, readMounts(dir), key.path, on)
	if err != nil {
		return nil, nil, err
	}
	return reopen(path, key)
}

// openByPath opens the path of key in the host's root.
func (r *Resolver) openByPath(key *fileKey, on *opening) (*os.File, *unix.Stat_t, error) {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the host's root: %w", err)
	}
	defer unix.Close(root)
	self, err := unix.Open("/proc/self", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening this process: %w", err)
	}
	defer unix.Close(self)
	path, err := r.openBelow(self, root, r.hostMounts(), filepath.Join(r.root, key.path), on)
	if err != nil {
		return nil, nil, err
	}
	return reopen(path, key)
}

// openBelow opens name below root, with O_PATH; mounts are those seen from root, the root of the process whose /proc folder
// is dir. It follows no links: the path that
// the kernel tells of a file has none. It opens the point of the file's mount and crosses no other mount from there,
// so that it cannot meet one that was mounted since mounts was read and may never answer.
func (r *Resolver) openBelow(dir, root int, mounts []mount, name string, on *opening) (int, error) {
	m := findMount(mounts, name)
	if m == nil || m.avoid {
		return -1, errAvoided
	}
	const resolve = unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	base, err := unix.Openat2(root, m.point, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve | unix.RESOLVE_IN_ROOT,
	})
	if err != nil {
		return -1, fmt.Errorf("opening a mount: %w", err)
	}
	defer unix.Close(base)
	if r.judge(dir, base, m.dev, on) == avoid {
		return -1, errAvoided
	}
	path, err := unix.Openat2(base, strings.TrimLeft(strings.TrimPrefix(name, m.point), "/"), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: resolve | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return -1, fmt.Errorf("opening a file of a process: %w", err)
	}
	return path, nil
}

// reopen opens for reading what the O_PATH descriptor path refers to, if that is the regular file of key. It closes
// path. The check comes first because to open a device can have effects, which O_PATH has not.
func reopen(path int, key *fileKey) (*os.File, *unix.Stat_t, error) {
	defer unix.Close(path)
	var st unix.Stat_t
	if err := unix.Fstat(path, &st); err != nil {
		return nil, nil, fmt.Errorf("looking at what is mapped: %w", err)
	}
	dev := device{unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev))} //nolint:unconvert // types differ by architecture
	// File systems without a disk of their own (major 0) have another number in stat than in /proc/PID/maps: those
	// numbers are not compared.
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Ino != key.inode || dev != key.dev && dev.major != 0 && key.dev.major != 0 {
		return nil, nil, errOther
	}
	if key.told != 0 && dev.major != 0 && dev.told() != key.told {
		return nil, nil, errOther
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(path), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening what is mapped: %w", err)
	}
	f, err := regular(fd, key.path)
	return f, &st, err
}

// regular makes the descriptor of a regular file, which was opened with O_NONBLOCK, an os.File. Go asks whether a descriptor
// that does not block can be polled, and everything in the process stands while a file system (FUSE) does not answer that.
func regular(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, false); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// bootTime is the time since boot in nanoseconds (CLOCK_BOOTTIME), the clock of gadgets' programs and of the kernel's
// events.
func bootTime() uint64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return uint64(time.Now().UnixNano())
	}
	return uint64(now.Nano())
}
