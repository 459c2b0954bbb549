// Package trusted opens and locks files where other users of the machine may have put something in the way.
package trusted

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A privileged exporter must not follow a symbolic link that somebody else has put in its way: it would
// write where that one cannot. A link counts only where nobody but root and this process's user can have
// made it.

// errLink says that a path leads over a link that cannot be trusted.
var errLink = errors.New("is a symbolic link that another user may have made: name its target")

const maxLinks = 40

// openFolder is the kernel's folder of a process's open files: /dev/stdout leads there.
var openFolder = regexp.MustCompile(`^/proc/[0-9]+/fd$`)

// Path returns an absolute path to the same file without links. The last part need not exist.
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

// trustedLink returns an error unless only root and this user can have made or replaced the link, which is in dir.
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

// Open opens a file for its user alone, without following links that cannot be trusted, and without
// waiting for the other end of a pipe.
func Open(path string, flag int) (*os.File, error) {
	real, err := Path(path)
	if err != nil {
		return nil, err
	}
	if openFolder.MatchString(filepath.Dir(real)) {
		return os.OpenFile(real, flag, 0o600) // an open file of this process: the kernel shows it as a link, which is followed
	}
	return openWithoutLinks(real, flag)
}

// WithoutPath is an error of a file without its path, for a message that has it already.
func WithoutPath(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// ErrLocked says that somebody else has a lock.
var ErrLocked = errors.New("in use by other exporters")
