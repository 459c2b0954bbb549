package procmap

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// Mapping is a process's mapping of a file that another program has reported (see ReportedFile).
type Mapping struct {
	PID uint32
	// Seen is a time at which the file was mapped, in nanoseconds since boot, or 0 for now. If a process with this PID began
	// later, it is another process.
	Seen uint64
	// Start and End are addresses in the process, or 0 if they are unknown.
	Start, End uint64
}

// ReportedFile describes a file that processes have mapped. Another program has reported it, for example the unwinder.
type ReportedFile struct {
	// Device and Inode are from stat.
	Device, Inode uint64
	// Path is the path in the first process that had mapped the file.
	Path string
	// Version distinguishes the file's contents at different times.
	Version [16]byte
}

// File returns the file that t describes, for callers that know it from another program and not from Locate. mapped lists
// processes that have mapped the file, the preferred process first. pending reports that a later call can return the file. If
// File returns nil and false, the file cannot be read.
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

// is reports whether a mapping's device number can correspond to the device number from stat. With btrfs and overlayfs, the
// numbers differ. Then one or both have major 0, like all file systems without a disk.
func (d device) is(stat uint64) bool {
	of := device{unix.Major(stat), unix.Minor(stat)}
	return d == of || d.major == 0 || of.major == 0
}

// heldBy reports whether a process is known to have mapped the file. The caller holds Resolver.mu.
func (f *file) heldBy(pid uint32) bool {
	for i := range f.holders {
		if f.holders[i].pid == pid {
			return true
		}
	}
	return false
}

// fillFromMaps completes a reported file's key from the maps of the process whose /proc directory is dir. It sets the key's
// device and path, and the mapping in h. The device decides whether the file system is avoided. All other keys are already
// complete.
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
