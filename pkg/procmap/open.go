package procmap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// identify opens and identifies a file. If the file is still the known one, it returns known. Otherwise it returns a new File
// and the open file, which the caller closes.
func (r *Resolver) identify(ctx context.Context, key *fileKey, holders []holder, known *File, on *opening) (*File, *os.File, time.Duration, error) {
	opened, st, err := r.open(key, holders, on)
	if err != nil {
		return nil, nil, 0, err
	}
	id := symtab.IdentifyStat(st)
	if known != nil && known.ID == id {
		opened.Close()
		return known, nil, 0, nil
	}
	info, cpu, err := r.identifyFile(ctx, opened)
	if err != nil {
		opened.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) { // the file system does not answer, and no thread waits for the event any longer
			r.unmarkStuck(r.markStuck(on))
		}
		return nil, nil, cpu, err
	}
	return &File{Path: key.path, Info: info, ID: id}, opened, cpu, nil
}

// Open opens the file for reading. The caller closes it. The file system can block this call and every use of the file forever:
// see package patience and Stuck.
func (f *File) Open() (*os.File, error) {
	if f.r == nil {
		return nil, errors.New("the mapping has no file to open")
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

// Root opens the root directory of a process that has mapped the file, with O_PATH. Use it to find other files below that root.
// The caller closes it.
func (f *File) Root() (*os.File, error) {
	if f.r == nil {
		return nil, errors.New("no process has mapped the file")
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
	return nil, errors.New("all processes that had mapped the file have exited")
}

// openRoot opens the root directory of a holder's process. The error is errOther if the pid now belongs to another process.
func (r *Resolver) openRoot(h holder) (*os.File, error) {
	dir, err := procfs.Open(r.proc, h.pid)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if start, err := dir.Began(r.proc, h.pid); err != nil || start > h.seen {
		return nil, errOther
	}
	root, err := unix.Openat(int(dir), "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the root of a process: %w", err)
	}
	return os.NewFile(uintptr(root), fmt.Sprintf("%s/%d/root", r.proc, h.pid)), nil
}

// open opens the file with this key. For each holder, it tries the mapping and then the path in the holder's root. Finally, it
// tries the path in the host's root.
func (r *Resolver) open(key *fileKey, holders []holder, on *opening) (*os.File, *unix.Stat_t, error) {
	var errs []error
	for _, h := range holders {
		if h.pid == 0 {
			continue
		}
		dir, err := procfs.Open(r.proc, h.pid)
		if err != nil {
			continue // the process has exited
		}
		own := *key
		var f *os.File
		var st *unix.Stat_t
		if own.fillFromMaps(dir, &h) != nil || r.avoided(dir, own.dev) {
			err = errAvoided
		} else if f, st, err = r.openMapped(dir, &own, h, on); err != nil {
			f, st, err = r.openInRoot(dir, own.path, own.is, on)
		}
		dir.Close()
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

// openMapped opens the file mapped at h's range. dir is the process's /proc directory. The link in map_files leads to the
// mapped file itself, whatever the file's path is now.
func (r *Resolver) openMapped(dir procfs.Dir, key *fileKey, h holder, on *opening) (*os.File, *unix.Stat_t, error) {
	path, err := unix.Openat(int(dir), mapLink(h.start, h.end), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the mapped file: %w", err)
	}
	if r.judge(dir, path, key.dev, on) == avoid {
		unix.Close(path)
		return nil, nil, errAvoided
	}
	return procfs.Reopen(path, key.path, key.is)
}

// mapLink returns the name of a mapping's link in its process's /proc directory.
func mapLink(start, end uint64) string { return fmt.Sprintf("map_files/%x-%x", start, end) }

// openInRoot opens name below the root of the process whose /proc directory is dir. See procfs.Reopen.
func (r *Resolver) openInRoot(dir procfs.Dir, name string, wanted func(*unix.Stat_t) bool, on *opening) (*os.File, *unix.Stat_t, error) {
	root, err := unix.Openat(int(dir), "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the root of a process: %w", err)
	}
	defer unix.Close(root)
	path, err := r.openBelow(dir, root, readMounts(dir), name, on)
	if err != nil {
		return nil, nil, err
	}
	return procfs.Reopen(path, name, wanted)
}

// openByPath opens key's path in the host's root.
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
	path, err := r.openBelow(procfs.Dir(self), root, r.hostMounts(), filepath.Join(r.root, key.path), on)
	if err != nil {
		return nil, nil, err
	}
	return procfs.Reopen(path, key.path, key.is)
}

// openBelow opens name below root with O_PATH. root is the root of the process whose /proc directory is dir, and mounts are the
// mounts seen from there. openBelow follows no links, because the kernel's path contains none. It opens the mount point of the
// file's mount, and crosses no other mount from there. So it cannot reach a later mount that might never answer.
func (r *Resolver) openBelow(dir procfs.Dir, root int, mounts []mount, name string, on *opening) (int, error) {
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
