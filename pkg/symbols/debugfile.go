package symbols

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path"
	"strings"

	"github.com/therootcompany/xz"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
)

// root is a folder in which debug files are looked for.
type root struct {
	fd int
	// host says that this is the host's root. That of a container can lead to file systems that its processes or a
	// network answer for.
	host bool
}

// openRoots opens the folders in which the debug file of a request's open file is looked for. The caller closes them.
//
// Of a container only the mount that the file is on is looked at: that file system has answered already.
func (s *Store) openRoots(r *Request, file *os.File) []root {
	var roots []root
	if r.Root != nil {
		if f, err := r.Root(); err == nil {
			if mount, ok := mountOf(int(f.Fd())); ok {
				if other, ok := mountOf(int(file.Fd())); ok && mount == other {
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

// mountOf returns the ID of the mount that a file is on, without asking its file system.
func mountOf(fd int) (uint64, bool) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err == nil && st.Mask&unix.STATX_MNT_ID != 0 // Linux 5.8
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
	// With O_PATH the file was not opened. It is a regular one, so that opening it does not wait.
	ready, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	// Regular files are open at once. A descriptor that is non-blocking makes Go ask whether it can be polled, and everything
	// in the process stands while a file system (FUSE) does not answer that.
	if err := unix.SetNonblock(ready, false); err != nil {
		_ = unix.Close(ready)
		return nil, 0, err
	}
	return os.NewFile(uintptr(ready), name), st.Size, nil
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

// candidate implements debugFiles, as gdb does
// (https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html).
func (d *finder) candidate(by debugKey, n int) (*os.File, int64, bool) {
	if !by.valid() {
		return nil, 0, true
	}
	for _, root := range d.roots {
		var names []string
		if by.id != "" {
			names = []string{debugFolder + "/.build-id/" + by.id[:2] + "/" + by.id[2:] + ".debug"}
		} else {
			dir := path.Dir(path.Clean("/" + d.path))
			names = []string{path.Join(debugFolder, dir, by.link), path.Join(dir, ".debug", by.link), path.Join(dir, by.link)}
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

// maxCandidates is how many files may be the debug file.
const maxCandidates = 8

// findDebug opens the debug file of f, whose build ID is id, and returns its headers and the open file, which the caller
// closes. Both are nil if there is none. It is found by build ID, which the debug file has as well, or by the name and the
// checksum in .gnu_debuglink. The only error is that the time is up.
func (f *elfFile) findDebug(d debugFiles, id string) (*elfFile, *os.File, error) {
	if d == nil {
		return nil, nil, nil
	}
	found, file, err := f.tryDebug(d, debugKey{id: id}, func(r io.ReaderAt, size int64) bool {
		other, err := buildid.Read(r, size)
		return err == nil && other.GNU == id
	})
	if err != nil || found != nil {
		return found, file, err
	}
	name, sum := f.debugLink()
	return f.tryDebug(d, debugKey{link: name}, func(r io.ReaderAt, size int64) bool { return f.checksum(r, size) == sum })
}

// tryDebug returns the first candidate of which right says that it is the debug file.
func (f *elfFile) tryDebug(d debugFiles, by debugKey, right func(io.ReaderAt, int64) bool) (*elfFile, *os.File, error) {
	if !by.valid() {
		return nil, nil, nil
	}
	for n := range maxCandidates {
		file, size, last := d.candidate(by, n)
		if file != nil {
			if right(file, size) {
				if found, err := openELF(&reader{ctx: f.ctx, r: file, size: size, left: f.left}); err == nil {
					return found, file, nil
				}
			}
			file.Close()
		}
		if err := f.ctx.Err(); err != nil || last {
			return nil, nil, err
		}
	}
	return nil, nil, nil
}

// checksum returns the sum of a whole file, 0 if there is too much to read.
func (f *elfFile) checksum(r io.ReaderAt, size int64) uint32 {
	in := &reader{ctx: f.ctx, r: r, size: size, left: f.left}
	buf := make([]byte, chunk)
	sum := uint32(0)
	for off := int64(0); off < size; off += chunk {
		b := buf[:min(chunk, size-off)]
		if in.at(b, uint64(off)) != nil {
			return 0
		}
		sum = crc32.Update(sum, crc32.IEEETable, b)
	}
	return sum
}

// debugLink returns what .gnu_debuglink says: a name without folder, padded to four bytes, and a checksum.
func (f *elfFile) debugLink() (name string, sum uint32) {
	s := f.sectionNamed(".gnu_debuglink")
	if s == nil || s.size > 4096 {
		return "", 0
	}
	b := make([]byte, s.size)
	if f.at(b, s.offset) != nil {
		return "", 0
	}
	n := bytes.IndexByte(b, 0)
	at := (n + 4) &^ 3
	if n <= 0 || at+4 > len(b) || bytes.ContainsRune(b[:n], '/') {
		return "", 0
	}
	return string(b[:n]), f.order.Uint32(b[at:])
}

// Bounds of .gnu_debugdata.
const (
	maxMiniDebug = 64 << 20 // bytes that it unpacks to
	maxXZWindow  = 16 << 20 // "xz -7"
)

// miniDebug unpacks .gnu_debugdata, an ELF file with the symbols of functions that .dynsym does not have
// (https://sourceware.org/gdb/current/onlinedocs/gdb.html/MiniDebugInfo.html). It is nil if there is none, or
// if it is damaged: then the file has its other names.
func (f *elfFile) miniDebug() (*elfFile, error) {
	s := f.sectionNamed(".gnu_debugdata")
	if s == nil || s.size > maxMiniDebug {
		return nil, nil
	}
	if err := f.hold(2 * maxXZWindow); err != nil {
		return nil, err
	}
	in, err := xz.NewReader(f.stream(s), maxXZWindow)
	if err != nil {
		return nil, nil
	}
	var plain pieces
	for size := 0; ; {
		if err := f.expired(); err != nil {
			return nil, err
		}
		if err := f.hold(chunk); err != nil {
			return nil, err
		}
		piece := make([]byte, chunk)
		n, err := io.ReadFull(in, piece)
		if size += n; size > maxMiniDebug {
			return nil, nil
		}
		plain = append(plain, piece[:n])
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, nil
		}
	}
	mini, err := openELF(&reader{ctx: f.ctx, r: plain, size: plain.size(), left: f.left})
	if err != nil {
		return nil, nil
	}
	return mini, nil
}

// pieces is what was unpacked, each piece but the last with chunk bytes: to grow, one slice would be copied time and again.
type pieces [][]byte

func (p pieces) size() int64 { return int64(len(p)-1)*chunk + int64(len(p[len(p)-1])) }

// ReadAt implements io.ReaderAt.
func (p pieces) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		if off >= p.size() {
			return n, io.EOF
		}
		more := copy(b[n:], p[off/chunk][off%chunk:])
		n, off = n+more, off+int64(more)
	}
	return n, nil
}
