package symbols

import (
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// root is a folder in which a finder searches debug files.
type root struct {
	fd int
	// host marks the host's root. A container's root can contain FUSE and network file systems.
	host bool
}

// openRoots opens the folders in which to search for a request's debug file. file is the request's open file. The caller closes
// the folders.
//
// In a container, it opens only the file's mount, because that file system has already responded.
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

// open opens a regular file by its path. Symbolic links cannot lead out of the root or, in a container, out of the mount.
func (r root) open(name string) (*os.File, int64, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if !r.host {
		how.Resolve |= unix.RESOLVE_NO_XDEV
	}
	fd, err := unix.Openat2(r.fd, strings.TrimLeft(name, "/"), &how)
	if err != nil {
		return nil, 0, err
	}
	f, st, err := procfs.Reopen(fd, name, func(*unix.Stat_t) bool { return true }) // opening a regular file does not block
	if err != nil {
		return nil, 0, err
	}
	return f, st.Size, nil
}

// finder opens candidates for a file's separate debug file.
type finder struct {
	path  string // the file's path in the first root
	roots []root
}

func (d *finder) close() {
	for _, r := range d.roots {
		unix.Close(r.fd)
	}
}

const debugFolder = "/usr/lib/debug"

// Candidate implements symtab.DebugFiles. It searches like gdb
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
			if root.host { // d.path is a path in the container; on the host, it is valid only below debugFolder
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
