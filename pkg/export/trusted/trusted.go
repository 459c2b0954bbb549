// Package trusted opens and locks files in folders in which other users can create symbolic links.
package trusted

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A privileged exporter must not follow another user's symbolic link, because it would write to files to which that user has no
// access. A link is trusted only if only root or this process's user can have created it.

// errLink is the error for a path with an untrusted link.
var errLink = errors.New("is a symbolic link that another user might have created: use the path of its target")

const maxLinks = 40

// openFolder matches the folder in which the kernel lists a process's open files. /dev/stdout leads to this folder.
var openFolder = regexp.MustCompile(`^/proc/[0-9]+/fd$`)

// Path returns an absolute path without links to the same file. The last part of the path need not exist.
func Path(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	links := 0
	cur, rest := "/", strings.Split(strings.TrimPrefix(abs, "/"), "/")
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			cur = filepath.Dir(cur)
			continue
		}
		next := filepath.Join(cur, part)
		info, err := os.Lstat(next)
		if errors.Is(err, fs.ErrNotExist) && len(rest) == 0 {
			return next, nil
		}
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 || openFolder.MatchString(cur) {
			cur = next
			continue
		}
		if err := trustedLink(cur, info); err != nil {
			return "", fmt.Errorf("%s: %s %w", path, next, err)
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: too many symbolic links", path)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			cur = "/"
		}
		rest = append(strings.Split(strings.Trim(target, "/"), "/"), rest...)
	}
	return cur, nil
}

// trustedLink returns an error if another user can have created or replaced the link in dir.
func trustedLink(dir string, link fs.FileInfo) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	_, foreignDir := ForeignOwner(info)
	_, foreignLink := ForeignOwner(link)
	open := info.Mode().Perm()&0o022 != 0
	sticky := info.Mode()&fs.ModeSticky != 0
	if foreignDir || foreignLink || open && !sticky {
		return errLink
	}
	return nil
}

// Open opens or creates a file. Only this user has access to a new file. Open follows no untrusted links and does not wait for
// the other end of a pipe.
func Open(path string, flag int) (*os.File, error) {
	real, err := Path(path)
	if err != nil {
		return nil, err
	}
	if openFolder.MatchString(filepath.Dir(real)) {
		return os.OpenFile(real, flag, 0o600) // one of this process's open files, which the kernel shows as a link
	}
	return openWithoutLinks(real, flag)
}

// openWithoutLinks opens a file if its path contains no link, not even a link that was just created. It does not wait for the
// other end of a pipe.
func openWithoutLinks(path string, flag int) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flag | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY), Resolve: unix.RESOLVE_NO_SYMLINKS}
	if flag&os.O_CREATE != 0 {
		how.Mode = 0o600
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // before Linux 5.6, or blocked by seccomp
		return os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// WithoutPath returns err without the file's path, for messages that already contain the path.
func WithoutPath(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// ErrLocked means that another process holds the lock.
var ErrLocked = errors.New("in use by other exporters")

// NoFollow prevents the opening of a link that another user created in the storage folder.
const NoFollow = unix.O_NOFOLLOW

// ForeignOwner reports whether a file belongs to a user other than root or this process's user.
func ForeignOwner(info os.FileInfo) (owner uint32, foreign bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, st.Uid != 0 && int(st.Uid) != os.Geteuid()
}

// Lock takes an exclusive lock without waiting. It returns ErrLocked if another process holds it.
func Lock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}

// Unlock releases a lock.
func Unlock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }
