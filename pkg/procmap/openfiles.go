package procmap

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// An identified file stays open for some seconds, because a row arrives a second after its event. So its symbols can be read
// even if the process exits and the file disappears.
//
// An open file prevents an unmount of its file system. So a file only stays open if it is on a root mount. This is the root
// mount of the host, or of a process in another mount namespace. Such a mount exists as long as its namespace. The root of a
// process that called chroot in the host's mount namespace does not qualify, because a user can want to unmount it.
const (
	holdFor = 5 * time.Second
	maxOpen = 64 // number of files that stay open
)

// heldFile is a file that stays open until a time.
type heldFile struct {
	f     *file
	until time.Time
}

// hold stores opened as f's open file, and closes it after holdFor. It closes an earlier open file of f. The caller holds r.mu.
func (r *Resolver) hold(f *file, opened *os.File) {
	if f.open != nil {
		r.closing = append(r.closing, f.open)
		f.open = opened
		return // f already has an entry in r.heldFiles, with the time of closing
	}
	if len(r.heldFiles) >= maxOpen {
		r.release(1)
	}
	f.open = opened
	r.heldFiles = append(r.heldFiles, heldFile{f, time.Now().Add(holdFor)})
}

// release passes the first n files of r.heldFiles to closeFiles. The caller holds r.mu.
func (r *Resolver) release(n int) {
	for _, h := range r.heldFiles[:n] {
		r.closing = append(r.closing, h.f.open)
		h.f.open = nil
	}
	r.heldFiles = append(r.heldFiles[:0], r.heldFiles[n:]...)
}

// releaseOld releases the files that have been open for longer than holdFor.
func (r *Resolver) releaseOld(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for n < len(r.heldFiles) && !now.Before(r.heldFiles[n].until) {
		n++
	}
	r.release(n)
}

// closeFiles closes the released files. A file system can also block this.
func (r *Resolver) closeFiles(ctx context.Context) {
	r.mu.Lock()
	closing := r.closing
	r.closing = nil
	r.mu.Unlock()
	if len(closing) == 0 {
		return
	}
	_, err := r.disks.Do(ctx, func() {
		for _, f := range closing {
			f.Close()
		}
	}, func() func() { return func() {} })
	if errors.Is(err, patience.ErrTooMany) {
		r.mu.Lock()
		r.closing = append(r.closing, closing...)
		r.mu.Unlock()
	}
}

// again returns a new descriptor for f's open file, or nil if f is not open. The caller holds r.mu, and closes the descriptor.
func (f *file) again() *os.File {
	if f.open == nil {
		return nil
	}
	fd, err := unix.FcntlInt(f.open.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), f.key.path)
}

// mayHold reports whether an open file can stay open without preventing an unmount. holders have mapped it. The host's root is
// tried first, because it does not depend on holders, which can have exited.
func (r *Resolver) mayHold(f *os.File, holders []holder) bool {
	mount, ok := procfs.MountOf(int(f.Fd()), "")
	if !ok {
		return false
	}
	hosts, ok := procfs.MountOf(unix.AT_FDCWD, r.proc+"/1/root")
	if !ok {
		hosts, ok = procfs.MountOf(unix.AT_FDCWD, "/")
	}
	if ok && mount == hosts {
		return true
	}
	for _, h := range holders {
		if h.pid == 0 {
			continue
		}
		dir, _ := procfs.Folder(r.proc, h.pid)
		if root, ok := procfs.MountOf(unix.AT_FDCWD, dir+"/root"); ok && root == mount {
			return r.otherMounts(dir)
		}
	}
	return false
}

// otherMounts reports whether the process whose /proc directory is dir has another mount namespace than the host.
func (r *Resolver) otherMounts(dir string) bool {
	var own, hosts unix.Stat_t
	if unix.Stat(dir+"/ns/mnt", &own) != nil {
		return false
	}
	if unix.Stat(r.proc+"/1/ns/mnt", &hosts) != nil && unix.Stat("/proc/self/ns/mnt", &hosts) != nil {
		return false
	}
	return own.Ino != hosts.Ino
}
