// Package procfs reads the kernel's data about processes in /proc. It uses no other file system, so it never blocks.
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
	// MaxMaps limits how many bytes of /proc/PID/maps are read. It has room for more than 65,530 mappings, the kernel's default
	// limit.
	MaxMaps = 8 << 20
	maxStat = 4096
)

// Dir is the open directory of a process in /proc. It never refers to a later process with the same PID.
type Dir int

// Open opens a process's directory in proc. See Folder.
func Open(proc string, pid uint32) (Dir, error) {
	folder, _ := Folder(proc, pid)
	fd, err := unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening process %d: %w", pid, err)
	}
	return Dir(fd), nil
}

// Close closes the directory.
func (d Dir) Close() { _ = unix.Close(int(d)) }

// Open opens a file in the directory.
func (d Dir) Open(name string) (*os.File, error) {
	fd, err := unix.Openat(int(d), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s of a process: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Read reads a file in the directory, up to limit bytes.
func (d Dir) Read(name string, limit int64) ([]byte, error) {
	f, err := d.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadFrom(f, limit)
}

// ReadFrom reads an open file of such a directory from its start, up to limit bytes.
func ReadFrom(f *os.File, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, limit))
	if err != nil {
		return nil, fmt.Errorf("reading %s of a process: %w", f.Name(), err)
	}
	return b, nil
}

// Began returns the start of the process in nanoseconds since boot, in whole ticks. pid and proc are the arguments of Open. A
// thread's directory only shows that thread's start, so Began then reads the first thread's directory.
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
		_, err = d.Read("stat", maxStat) // the thread still exists, so the PID belongs to no other process
	}
	return first, err
}

// Executable returns the inode and the modification time (in nanoseconds) of the process's executable, as cached by the kernel.
func (d Dir) Executable() (inode uint64, modified int64, err error) {
	var exe unix.Statx_t
	if err := unix.Statx(int(d), "exe", unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_MTIME, &exe); err != nil {
		return 0, 0, fmt.Errorf("inspecting the executable of a process: %w", err)
	}
	return exe.Ino, exe.Mtime.Sec*1e9 + int64(exe.Mtime.Nsec), nil
}

// ErrOther means that a PID or a path no longer leads to the wanted process or file.
var ErrOther = fmt.Errorf("the PID now belongs to another process, or the path leads to another file: %w", os.ErrNotExist)

// Reopen opens the target of the O_PATH descriptor path for reading, if the target is a wanted regular file. Otherwise, it
// returns ErrOther. It closes path. The check comes first, because opening a device without O_PATH can have side effects.
func Reopen(path int, name string, wanted func(*unix.Stat_t) bool) (*os.File, *unix.Stat_t, error) {
	defer unix.Close(path)
	var st unix.Stat_t
	if err := unix.Fstat(path, &st); err != nil {
		return nil, nil, fmt.Errorf("inspecting %s: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !wanted(&st) {
		return nil, nil, ErrOther
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(path), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening %s: %w", name, err)
	}
	// Go checks whether a non-blocking descriptor supports polling. The whole process would stop until the file system (FUSE) has
	// answered.
	if err := unix.SetNonblock(fd, false); err != nil {
		_ = unix.Close(fd)
		return nil, nil, fmt.Errorf("opening %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), &st, nil
}

// MountOf returns the mount ID of a file, which requires Linux 5.8. It does not call the file system. An empty path means dir
// itself.
func MountOf(dir int, path string) (uint64, bool) {
	flags := unix.AT_STATX_DONT_SYNC
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var st unix.Statx_t
	err := unix.Statx(dir, path, flags, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err == nil && st.Mask&unix.STATX_MNT_ID != 0
}
