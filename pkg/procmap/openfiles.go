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

// An identified file is kept open for some seconds, because a row comes a second after its event. So its symbols can be read even
// if its process ends and the file disappears.
//
// An open file keeps its file system from being unmounted. So a file is kept only if it is on the host's root mount, or on the
// root mount of a process in another mount namespace. That mount lasts as long as the namespace. The root of a process that has
// changed it within the host's mount namespace (chroot) does not count, because somebody may want to unmount it.
const (
	holdFor = 5 * time.Second
	maxOpen = 64 // files that are kept open
)

// heldFile is a file that stays open until a time.
type heldFile struct {
	f     *file
	until time.Time
}

// hold keeps opened as the open file of f, and closes it after holdFor. If f has one already, that is closed and
// opened takes its place. The caller holds r.mu.
func (r *Resolver) hold(f *file, opened *os.File) {
	if f.open != nil {
		r.closing = append(r.closing, f.open)
		f.open = opened
		return // until the time in the entry that r.heldFiles has of it
	}
	if len(r.heldFiles) >= maxOpen {
		r.release(1)
	}
	f.open = opened
	r.heldFiles = append(r.heldFiles, heldFile{f, time.Now().Add(holdFor)})
}

// release lets go of the first n files of r.heldFiles: closeFiles closes them. The caller holds r.mu.
func (r *Resolver) release(n int) {
	for _, h := range r.heldFiles[:n] {
		r.closing = append(r.closing, h.f.open)
		h.f.open = nil
	}
	r.heldFiles = append(r.heldFiles[:0], r.heldFiles[n:]...)
}

// releaseOld closes the files that were open for longer than holdFor at the time now.
func (r *Resolver) releaseOld(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for n < len(r.heldFiles) && !now.Before(r.heldFiles[n].until) {
		n++
	}
	r.release(n)
}

// closeFiles closes the files that are not kept any more: a file system can make that wait, too.
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

// again returns the open file of f with a descriptor of its own, which the caller closes; nil if f is not kept open.
// The caller holds r.mu.
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

// mayHold reports whether an open file can be kept open without preventing an unmount. holders have mapped it. The host's
// root is tried first, because it needs none of them: they may have ended.
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

// otherMounts reports whether the process with the /proc folder dir has another mount namespace than the host's.
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
