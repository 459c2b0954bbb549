// Package procfs reads the kernel's data on processes in /proc. It uses no other file system, so it never blocks.
package procfs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// MaxMaps is enough of /proc/PID/maps for more than 65,530 mappings, the kernel's default limit.
	MaxMaps = 8 << 20
	maxStat = 4096
)

// Dir is the open folder of a process in /proc. It stays that of one process when its PID is given to another.
type Dir int

// Open opens the folder of a process in proc, see Folder.
func Open(proc string, pid uint32) (Dir, error) {
	folder, _ := Folder(proc, pid)
	fd, err := unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening process %d: %w", pid, err)
	}
	return Dir(fd), nil
}

// Close closes the folder.
func (d Dir) Close() { _ = unix.Close(int(d)) }

// Open opens a file in the folder.
func (d Dir) Open(name string) (*os.File, error) {
	fd, err := unix.Openat(int(d), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s of a process: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Read reads a file in the folder, up to limit bytes.
func (d Dir) Read(name string, limit int64) ([]byte, error) {
	f, err := d.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadFrom(f, limit)
}

// ReadFrom reads an open file of such a folder from its beginning, up to limit bytes.
func ReadFrom(f *os.File, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, limit))
	if err != nil {
		return nil, fmt.Errorf("reading %s of a process: %w", f.Name(), err)
	}
	return b, nil
}

// Began returns the start of the process that Open opened by that PID in proc, in nanoseconds since boot, in whole ticks. A thread's
// folder only has the start of that thread, so the first thread's folder is read then.
func (d Dir) Began(proc string, pid uint32) (uint64, error) {
	stat, err := d.Read("stat", maxStat)
	if err != nil {
		return 0, err
	}
	if bytes.HasPrefix(stat, fmt.Appendf(nil, "%d ", pid)) {
		return began(stat)
	}
	first, err := Began(proc, pid)
	if err == nil {
		_, err = d.Read("stat", maxStat) // no other process gets the PID while the thread is there
	}
	return first, err
}

// Executable returns the inode of the process's executable and when that was modified, in nanoseconds, as the kernel knows them.
func (d Dir) Executable() (inode uint64, modified int64, err error) {
	var exe unix.Statx_t
	if err := unix.Statx(int(d), "exe", unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_MTIME, &exe); err != nil {
		return 0, 0, fmt.Errorf("inspecting the executable of a process: %w", err)
	}
	return exe.Ino, exe.Mtime.Sec*1e9 + int64(exe.Mtime.Nsec), nil
}

// Reopen opens for reading the regular file that the descriptor path, which has O_PATH, refers to.
func Reopen(path int, name string) (*os.File, error) {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(path), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	// Go checks whether a non-blocking descriptor can be polled. The whole process stops while a file system (FUSE) does not
	// answer that.
	if err := unix.SetNonblock(fd, false); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// MountOf returns the ID of the mount that a file is on, which needs Linux 5.8. It does not ask its file system. An empty path is that of dir itself.
func MountOf(dir int, path string) (uint64, bool) {
	flags := unix.AT_STATX_DONT_SYNC
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var st unix.Statx_t
	err := unix.Statx(dir, path, flags, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err == nil && st.Mask&unix.STATX_MNT_ID != 0
}
