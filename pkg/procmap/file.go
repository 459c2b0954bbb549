package procmap

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// File is an executable file that a process has mapped, in the state in which the Resolver identified it. A File is immutable.
// A modified file becomes another File.
type File struct {
	// Path is the path as the process sees it, for example in its container. [vdso] is the code that the kernel maps into
	// processes.
	Path string
	// Info identifies the file. It is the zero value if the file could not be read.
	Info buildid.Info
	// ID is the key of this file in package symbols.
	ID symtab.FileID

	r *Resolver
	f *file
}

// device is a device number as in /proc/PID/maps and in the kernel's events. On btrfs and overlayfs, stat returns another
// number for the same file.
type device struct{ major, minor uint32 }

// fileKey is the kernel's identification of a mapped file. Equal keys mean the same file.
type fileKey struct {
	dev        device
	inode      uint64
	generation uint64 // of the inode number, which a file system can reuse; 0: unknown
	path       string
	// stat is the device number from stat, if dev does not identify the file. All subvolumes of a btrfs share one dev but have
	// their own inode numbers. 0 means the same number, or unknown.
	stat uint64
	// version is only set for a file from Resolver.File (see ReportedFile). Such a key has dev 0. fillFromMaps sets dev in a
	// copy of the key when the file is opened.
	version [16]byte
}

// is reports whether this is the key's file.
func (k *fileKey) is(st *unix.Stat_t) bool {
	dev := uint64(st.Dev) //nolint:unconvert // types differ by architecture
	return st.Ino == k.inode && k.dev.is(dev) && (k.stat == 0 || k.stat == dev)
}

// setStat completes a key through the mapped file's link in map_files, without a call into the file system. It reports whether
// dev equals the device number from stat, as on most file systems.
func (k *fileKey) setStat(dir procfs.Dir, link string) (same bool) {
	var st unix.Statx_t
	if !k.ambiguous() || unix.Statx(int(dir), link, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st) != nil || st.Ino != k.inode {
		return false
	}
	if k.dev == (device{st.Dev_major, st.Dev_minor}) {
		return true
	}
	k.stat = unix.Mkdev(st.Dev_major, st.Dev_minor)
	return false
}

// ambiguous reports whether two files can have this key. A file system on a disk has the disk's device number.
func (k *fileKey) ambiguous() bool { return k.dev.major == 0 && k.inode != 0 && kindOf(k) == ordinary }

func newFileKey(major, minor uint32, inode uint64, path string) fileKey {
	path = strings.TrimSuffix(path, " (deleted)")
	if len(path) > maxPath {
		path = path[:maxPath]
	}
	return fileKey{dev: device{major, minor}, inode: inode, path: path}
}

// file is a mapped file, identified or not. Resolver.mu guards its fields. kind never changes.
type file struct {
	key     fileKey
	known   *File // nil if not identified
	kind    kind
	queued  bool
	checked uint64    // the time of the last identification or attempt, in nanoseconds since boot
	failed  bool      // the last attempt to identify it failed, and none has succeeded
	holders [3]holder // newest first
	open    *os.File  // set while it is held: see hold
	counted uint64    // see Resolver.held
	opening opening   // needs no lock
}

type kind uint8

const (
	ordinary   kind = iota
	generated       // memory without a file, filled by a JIT compiler
	unreadable      // without a path in a file system
	perfMap         // not mapped: see perfmap.go
)

// holder is a process that had a file mapped from start to end at the time seen (nanoseconds since boot). If a process with
// this pid began after seen, it is another process.
type holder struct {
	pid        uint32
	start, end uint64
	seen       uint64
}

// intern returns the file with this key, and creates it if necessary. It puts h first among the file's holders. The caller
// holds r.mu.
func (r *Resolver) intern(key fileKey, h holder) *file {
	generation := key.generation
	key.generation = 0 // /proc/PID/maps does not contain it
	f := r.files[key]
	if f == nil || generation != 0 && f.key.generation != 0 && f.key.generation != generation {
		if len(r.files) >= maxFiles || r.fileBytes > maxHeld/2 {
			clear(r.files)
			r.fileBytes = 0
		}
		f = &file{key: key, kind: kindOf(&key)}
		if key.inode == 0 && key.path == "[vdso]" {
			f.known = &File{Path: key.path, ID: symtab.VDSO}
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

// size estimates a file's memory in bytes.
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

// place returns the Place of the code at an offset in the file. The caller holds r.mu.
func (f *file) place(offset uint64) Place {
	switch {
	case f.kind == generated:
		return Place{State: Generated}
	case f.known != nil && f.known.ID == symtab.VDSO:
		return Place{State: Known, File: f.known, Offset: offset, Address: offset}
	case f.known != nil:
		p := Place{State: Known, File: f.known, Offset: offset}
		var ok bool
		if p.Address, ok = f.known.Info.Virtual(offset); !ok {
			p.State = Unreadable // not an ELF file, or its headers have no code at the offset
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

// These times are in nanoseconds. A file that a new life has mapped is identified again after recheck, because its content can
// have changed while it was not mapped. After retryFile, an unreadable file is tried again.
const (
	recheck   = 2e9
	retryFile = 30e9
)

// modified reports whether the executable with this inode and modification time is f, modified after its identification.
func (f *file) modified(exe uint64, modified int64) bool {
	return modified != 0 && f.known != nil && f.known.ID.Inode == exe && f.known.ID.MtimeNS != modified && f.checked+recheck < procfs.SinceBoot()
}

// checkFiles queues the files of a new life whose identification is older than recheck. The caller holds r.mu.
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

// check queues a file to be identified, and reports whether it is in the queue. It does not queue files that are never read or
// that failed recently, or if the queue is full. The caller holds r.mu.
func (r *Resolver) check(f *file) bool {
	if f.kind != ordinary && f.kind != perfMap || f.known != nil && f.known.ID == symtab.VDSO {
		return false
	}
	if f.queued {
		return true
	}
	if f.failed && procfs.SinceBoot() < f.checked+retryFile {
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

// readFile identifies a file, and returns the used CPU time. Only the goroutine of run calls it.
func (r *Resolver) readFile(ctx context.Context, f *file) time.Duration {
	r.mu.Lock()
	key, known, holders := f.key, f.known, f.holders
	r.mu.Unlock()
	now := procfs.SinceBoot()
	f.opening.set(key.dev, doubtful)
	type result struct {
		found  *File
		opened *os.File
		cpu    time.Duration
		err    error
	}
	work := new(result)
	used, err := r.disks.Do(ctx, func() {
		if f.kind == perfMap {
			work.found, work.err = r.identifyPerfMap(holders[0], known, &f.opening)
		} else {
			work.found, work.opened, work.cpu, work.err = r.identify(ctx, &key, holders[:], known, &f.opening)
		}
		if work.opened != nil && !r.mayHold(work.opened, holders[:]) {
			work.opened.Close()
			work.opened = nil
		}
	}, func() func() {
		dev := r.markStuck(&f.opening)
		return func() {
			work.opened.Close() // Close of nil does nothing
			r.unmarkStuck(dev)
		}
	})
	var got result
	if err == nil {
		got = *work
		used += got.cpu
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
		}
		f.failed = false
	case errors.Is(got.err, symtab.ErrReader) && !errors.Is(got.err, os.ErrDeadlineExceeded): // it will be requested again
	case known == nil:
		if f.kind != perfMap && !f.failed && errors.Is(got.err, os.ErrPermission) { // most processes have no perf map
			r.stats.DeniedFiles++
		}
		f.failed = true
	}
	r.tell()
	return used
}
