package symbols

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// root is a folder that is searched for debug files.
type root struct {
	fd int
	// host marks the host's root. A container's root can lead to file systems with answers from its processes or a
	// network.
	host bool
}

// openRoots opens the folders in which the debug file of a request's open file is looked for. The caller closes them.
//
// In a container, it opens only the mount of the file: that file system has answered already.
func (s *Store) openRoots(r *Request, file *os.File) []root {
	var roots []root
	if r.Root != nil {
		if f, err := r.Root(); err == nil {
			if mount, ok := procfs.MountOf(int(f.Fd()), ""); ok {
				if other, ok := procfs.MountOf(int(file.Fd()), ""); ok && mount == other {
					if fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0); err == nil {
						roots = append(roots, root{fd: fd})
					}
				}
			}
			f.Close()
		}
	}
	if fd, err := unix.Open(path.Join("/", s.options.HostRoot), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
		roots = append(roots, root{fd, true})
	}
	return roots
}

var errNotRegular = errors.New("not a regular file")

// open opens a regular file by its path. Links stay within the root, and in a container within its mount.
func (r root) open(name string) (*os.File, int64, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if !r.host {
		how.Resolve |= unix.RESOLVE_NO_XDEV
	}
	fd, err := unix.Openat2(r.fd, strings.TrimLeft(name, "/"), &how)
	if err != nil {
		return nil, 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, 0, errNotRegular
	}
	f, err := procfs.Reopen(fd, name) // a regular file, so that opening it does not wait
	return f, st.Size, err
}

// finder opens files that may be the debug file, which distributions keep separate, of a file.
type finder struct {
	path  string // the file's, in the first root
	roots []root
}

func (d *finder) close() {
	for _, r := range d.roots {
		unix.Close(r.fd)
	}
}

const debugFolder = "/usr/lib/debug"

// Candidate implements debugFiles, as gdb does
// (https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html).
func (d *finder) Candidate(by symtab.DebugKey, n int) (*os.File, int64, bool) {
	if !by.Valid() {
		return nil, 0, true
	}
	for _, root := range d.roots {
		var names []string
		if by.ID != "" {
			names = []string{debugFolder + "/.build-id/" + by.ID[:2] + "/" + by.ID[2:] + ".debug"}
		} else {
			dir := path.Dir(path.Clean("/" + d.path))
			names = []string{path.Join(debugFolder, dir, by.Link), path.Join(dir, ".debug", by.Link), path.Join(dir, by.Link)}
			if root.host { // d.path is one in the container: on the host only the path below debugFolder counts
				names = names[:1]
			}
		}
		if n < len(names) {
			file, size, err := root.open(names[n])
			if err != nil {
				return nil, 0, false
			}
			return file, size, false
		}
		n -= len(names)
	}
	return nil, 0, true
}
