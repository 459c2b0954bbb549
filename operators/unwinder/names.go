package unwinder

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// maxNamedFiles is how many files are remembered, and openQueue how many wait to be opened.
	maxNamedFiles = 8192
	openQueue     = 1024
	// vdso is the unwinder's name for the code that the kernel gives each process.
	vdso = "linux-vdso.1.so"
)

// sharedNames is the process's names: there while any run is.
type sharedNames struct {
	mu    sync.Mutex
	users int
	names *names
}

func (s *sharedNames) acquire() *names {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users++; s.users == 1 {
		s.names = newNames()
	}
	return s.names
}

func (s *sharedNames) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		s.names.close()
		s.names = nil
	}
}

// names knows the functions of native code. Files are opened in a goroutine of its own as soon as the first stack with one
// arrives, because their process may end at any time, and read in the store's. No look-up waits.
type names struct {
	store *symbols.Store

	mu    sync.Mutex
	files map[fileKey]*namedFile
	queue chan *namedFile
	stop  chan struct{}
}

// fileKey is what tells files apart.
type fileKey struct {
	hash          [16]byte
	device, inode uint64
}

// namedFile is a file whose functions are asked for. Under names.mu.
type namedFile struct {
	wire.File
	opened bool // id is set, or never will be
	id     symbols.FileID
	handle *os.File // by path only; nil where it cannot be had
}

func newNames() *names {
	n := &names{
		store: symbols.NewStore(symbols.Options{HostRoot: os.Getenv("HOST_ROOT")}),
		files: map[fileKey]*namedFile{}, queue: make(chan *namedFile, openQueue), stop: make(chan struct{}),
	}
	go n.run()
	return n
}

// close ends the goroutines. A file system that does not answer can hold up the one that opens files; it ends when that does.
func (n *names) close() {
	close(n.stop)
	n.store.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forget()
}

// forget forgets all files. The caller holds mu.
func (n *names) forget() {
	for _, f := range n.files {
		if f.handle != nil {
			f.handle.Close()
			f.handle = nil
		}
	}
	clear(n.files)
}

// lookup returns the function at an address of a file. With pending, it may be known later.
func (n *names) lookup(f *wire.File, address uint64) (symbol symbols.Symbol, pending bool) {
	if n == nil {
		return symbols.Symbol{}, false
	}
	if f.Name == vdso {
		symbol, _ = n.store.Lookup(symbols.VDSO, address)
		return symbol, false
	}
	if f.Proc == 0 {
		return symbols.Symbol{}, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	key := fileKey{f.Hash, f.Device, f.Inode}
	known := n.files[key]
	if known == nil {
		if len(n.files) >= maxNamedFiles {
			n.forget()
		}
		known = &namedFile{File: *f}
		select {
		case n.queue <- known:
			n.files[key] = known
		default: // asked for again with the next row
		}
		return symbols.Symbol{}, true
	}
	if !known.opened {
		return symbols.Symbol{}, true
	}
	if known.id == (symbols.FileID{}) {
		return symbols.Symbol{}, false
	}
	symbol, state := n.store.Lookup(known.id, address)
	if state == symbols.Unknown || state == symbols.Busy {
		state = n.request(known, address)
	}
	return symbol, !state.Final()
}

// request has the store read a file. The caller holds mu.
func (n *names) request(f *namedFile, address uint64) symbols.State {
	if f.handle == nil {
		return symbols.Unreadable
	}
	// The store reads through a handle of its own: this one may be closed meanwhile.
	fd, err := unix.FcntlInt(f.handle.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return symbols.Busy
	}
	own := os.NewFile(uintptr(fd), f.Path)
	pid := f.Proc
	return n.store.Request(symbols.Request{
		ID: f.id, Path: f.Path, Address: address,
		Open: func() (*os.File, error) { return reopen(own) },
		Root: func() (*os.File, error) {
			return os.OpenFile(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		},
		Release: func() { own.Close() },
	})
}

// run opens files.
func (n *names) run() {
	for {
		select {
		case <-n.stop:
			return
		case f := <-n.queue:
			handle, id, err := locate(&f.File)
			n.mu.Lock()
			f.opened = true
			select {
			case <-n.stop:
				err = errors.New("closed")
			default:
			}
			if err == nil {
				f.handle, f.id = handle, id
				n.request(f, 0)
			} else if handle != nil {
				handle.Close()
			}
			n.mu.Unlock()
		}
	}
}

// locate finds the file that a process has mapped: by the mapping itself or, where that has gone, by its path in the process's
// root or the host's. It counts only if it is the regular file that the unwinder has seen, on a file system that no process
// and no network can stop. It is not opened for reading.
func locate(f *wire.File) (*os.File, symbols.FileID, error) {
	err := error(unix.ENOENT)
	for _, at := range []struct {
		root, path string
	}{
		{"", fmt.Sprintf("/proc/%d/map_files/%x-%x", f.Proc, f.Low, f.High)},
		{fmt.Sprintf("/proc/%d/root", f.Proc), f.Path},
		{"/", f.Path},
	} {
		var fd int
		if at.root == "" {
			fd, err = unix.Open(at.path, unix.O_PATH|unix.O_CLOEXEC, 0)
		} else {
			fd, err = openIn(at.root, at.path)
		}
		if err != nil {
			continue
		}
		handle := os.NewFile(uintptr(fd), f.Path)
		var id symbols.FileID
		if id, err = identify(handle, f); err == nil {
			return handle, id, nil
		}
		handle.Close()
	}
	return nil, symbols.FileID{}, err
}

func openIn(root, path string) (int, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return unix.Openat2(dir, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// identify checks that a file is the one, and tells its identity. It asks no file system for anything that has not been
// asked before: AT_STATX_DONT_SYNC leaves FUSE and NFS alone.
func identify(handle *os.File, f *wire.File) (symbols.FileID, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(handle.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &st); err != nil {
		return symbols.FileID{}, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return symbols.FileID{}, errors.New("not a regular file")
	case st.Ino != f.Inode:
		return symbols.FileID{}, errors.New("another file")
	// On btrfs a file's device is not that of its mount, which the list of mappings has: the profiler makes one number of its two, which
	// is the second one as long as it is small and the first one 0, as there.
	case remote(f.Proc, st.Dev_major, st.Dev_minor) && (f.Device > 255 || remote(f.Proc, 0, uint32(f.Device))):
		return symbols.FileID{}, errors.New("a file system that may not answer")
	}
	return symbols.Identify(handle)
}

// remote tells whether a file system needs a process or a network to answer. A process's own mounts tell, or else this
// process's; those that are in neither are taken for it.
func remote(pid uint32, major, minor uint32) bool {
	device := fmt.Sprintf("%d:%d", major, minor)
	for _, path := range []string{fmt.Sprintf("/proc/%d/mountinfo", pid), "/proc/self/mountinfo"} {
		if kind, ok := fileSystem(path, device); ok {
			for _, bad := range []string{"fuse", "nfs", "cifs", "smb", "9p", "ceph", "afs", "virtiofs", "glusterfs", "lustre", "orangefs", "coda"} {
				if strings.HasPrefix(kind, bad) {
					return true
				}
			}
			return false
		}
	}
	return true
}

// fileSystem finds the type of a mounted device.
func fileSystem(mountinfo, device string) (string, bool) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return "", false
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if ok && len(fields) > 2 && fields[2] == device {
			kind, _, _ := strings.Cut(after, " ")
			return kind, true
		}
	}
	return "", false
}

// reopen opens for reading what is open by path only.
func reopen(handle *os.File) (*os.File, error) {
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", handle.Fd()), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
}
