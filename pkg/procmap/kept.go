package procmap

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A file that was identified is kept open for a moment, so that what is in it can be read although its process ends and
// the file goes with it: rows come a second after what they tell of.
//
// An open file keeps the file system that it is on from being unmounted. So only those are kept that are on the root
// mount of their process, which stays as long as the process's mount namespace; and of processes in the host's mount
// namespace only those on the host's own root, not those of somebody who has changed the root to what is to be unmounted.
const (
	holdFor = 5 * time.Second
	maxOpen = 64 // files that are kept open
)

// kept is a file that is kept open.
type kept struct {
	f     *file
	until time.Time
}

// hold keeps a file open, or closes it if that is not to be. Under r.mu.
func (r *Resolver) hold(f *file, opened *os.File) {
	if f.open != nil {
		f.open.Close()
		f.open = opened
		return // until when it would have been
	}
	if len(r.kept) >= maxOpen {
		r.release(1)
	}
	f.open = opened
	r.kept = append(r.kept, kept{f, time.Now().Add(holdFor)})
}

// release closes the first n of what is held. Under r.mu.
func (r *Resolver) release(n int) {
	for _, h := range r.kept[:n] {
		h.f.open.Close()
		h.f.open = nil
	}
	r.kept = append(r.kept[:0], r.kept[n:]...)
}

// releaseOld closes what was held long enough.
func (r *Resolver) releaseOld() {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for n < len(r.kept) && !time.Now().Before(r.kept[n].until) {
		n++
	}
	r.release(n)
}

// again opens what is held once more, nil if it is not. Under r.mu.
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

// mayHold tells whether an open file of one of these processes can be kept open without being in anybody's way.
func (r *Resolver) mayHold(f *os.File, holders []holder) bool {
	mount, ok := mountOf(int(f.Fd()), "", unix.AT_EMPTY_PATH)
	if !ok {
		return false
	}
	for _, h := range holders {
		if h.pid == 0 {
			continue
		}
		dir := r.proc + "/" + strconv.FormatUint(uint64(h.pid), 10)
		if root, ok := mountOf(unix.AT_FDCWD, dir+"/root", 0); !ok || root != mount {
			continue
		}
		hosts, ok := mountOf(unix.AT_FDCWD, r.proc+"/1/root", 0)
		if !ok {
			hosts, _ = mountOf(unix.AT_FDCWD, "/", 0)
		}
		return mount == hosts || r.otherMounts(dir)
	}
	return false
}

// otherMounts tells whether a process has a mount namespace other than the host's.
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

// mountOf returns which mount a file is on.
func mountOf(dir int, path string, flags int) (uint64, bool) {
	var st unix.Statx_t
	err := unix.Statx(dir, path, flags|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err == nil && st.Mask&unix.STATX_MNT_ID != 0
}
