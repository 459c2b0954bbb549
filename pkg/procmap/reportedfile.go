package procmap

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// Mapping is the place of a file in a process, as reported by another program (see ReportedFile).
type Mapping struct {
	PID uint32
	// Seen is a time at which the file was mapped, in nanoseconds since boot, 0 for now. A process with this PID that
	// has begun after it is another one.
	Seen uint64
	// Start and End are the addresses as the process has them, 0 if they are not known.
	Start, End uint64
}

// ReportedFile describes a file that processes have mapped, as reported by another program, such as the unwinder.
type ReportedFile struct {
	// Device and Inode are as stat returns them.
	Device, Inode uint64
	// Path is the path in the first process that had the file.
	Path string
	// Version distinguishes contents of the file at different times.
	Version [16]byte
}

// File returns the file that t describes, for callers that know it from another program and not from Locate. mapped are processes
// that have mapped it. The first one is tried first. If pending, a later call may return the file; nil without pending means that
// it cannot be read.
func (r *Resolver) File(t ReportedFile, mapped ...Mapping) (file *File, pending bool) {
	if t.Device == 0 || t.Inode == 0 || !strings.HasPrefix(t.Path, "/") {
		return nil, false
	}
	key := newFileKey(0, 0, t.Inode, t.Path)
	key.stat, key.version = t.Device, t.Version
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[key]
	for i := len(mapped) - 1; i >= 0; i-- {
		m := &mapped[i]
		if m.PID == 0 || f != nil && f.heldBy(m.PID) {
			continue
		}
		h := holder{m.PID, m.Start, m.End, m.Seen}
		if h.seen == 0 {
			h.seen = procfs.SinceBoot()
		}
		f = r.intern(key, h)
	}
	switch {
	case f == nil:
		return nil, false
	case f.known != nil:
		return f.known, false
	case f.failed && procfs.SinceBoot() < f.checked+retryFile:
		return nil, false
	}
	r.check(f) // if the queue is full, the next call asks again
	return nil, f.kind == ordinary
}

// is reports whether the device of a mapping can be the device that stat returned. With btrfs and overlayfs the numbers differ, and one of them or
// both have major 0, as file systems have that are no disk's.
func (d device) is(stat uint64) bool {
	of := device{unix.Major(stat), unix.Minor(stat)}
	return d == of || d.major == 0 || of.major == 0
}

// heldBy reports whether a process is known to have mapped the file. Under Resolver.mu.
func (f *file) heldBy(pid uint32) bool {
	for i := range f.holders {
		if f.holders[i].pid == pid {
			return true
		}
	}
	return false
}

// fillFromMaps completes the key of a reported file from the maps of the process with the /proc folder dir. It adds device and
// path and, in h, the mapping. The device decides whether its file system is avoided. Other keys are complete already and stay as
// they are.
func (k *fileKey) fillFromMaps(dir procfs.Dir, h *holder) error {
	if k.dev != (device{}) || k.stat == 0 {
		return nil
	}
	text, err := dir.Read("maps", procfs.MaxMaps)
	if err != nil {
		return err
	}
	for _, a := range parseMaps(text) {
		if a.key.inode == k.inode && a.key.dev.is(k.stat) && strings.HasPrefix(a.key.path, "/") {
			k.dev, k.path = a.key.dev, a.key.path
			h.start, h.end = a.start, a.end
			return nil
		}
	}
	return errOther
}
