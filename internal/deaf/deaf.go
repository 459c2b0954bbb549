// Package deaf is a FUSE file system that leaves some requests unanswered, for tests of code that must not wait for a file system.
// The kernel's include/uapi/linux/fuse.h describes the protocol.
package deaf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// FS is a file system that this process serves. It has one file, which every name refers to.
type FS struct {
	// Dev is the descriptor of /dev/fuse.
	Dev int
	// Ignored counts the unanswered requests.
	Ignored atomic.Int64
	// Polled counts the requests to poll a file.
	Polled atomic.Int64

	content []byte
	ignore  func(name string) bool
	close   func()
}

// The requests that FS knows, and the node ID of its file.
const (
	fuseLookup, fuseForget, fuseGetattr, fuseOpen, fuseRead, fuseStatfs, fuseRelease  = 1, 2, 3, 14, 15, 17, 18
	fuseFlush, fuseInit, fuseOpendir, fuseReleasedir, fuseAccess, fuseInterrupt, node = 25, 26, 27, 29, 34, 36, 2
	fusePoll                                                                          = 40
)

// New returns an FS that is not mounted. It ignores a thread's requests if ignore returns true for the thread's name
// (/proc/PID/comm). At the end of the test, waiting callers get an error.
//
// The test process itself sends the answers. So code in this process must not wait for a request while Go cannot run other
// code. There are two such places: a child between fork and exec, which closes this process's files, and the runtime's poll
// check. FS always answers these requests with ENOSYS, so the kernel sends each only once.
func New(t testing.TB, content []byte, ignore func(name string) bool) *FS {
	t.Helper()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	f := &FS{Dev: dev, content: content, ignore: ignore}
	done := make(chan struct{})
	go func() { f.serve(stop); close(done) }()
	f.close = sync.OnceFunc(func() {
		_, _ = unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		<-done
		_ = unix.Close(stop)
		_ = unix.Close(dev) // the last descriptor: the kernel ends waiting requests
	})
	t.Cleanup(f.close)
	return f
}

// Close stops all answers. Waiting callers get an error.
func (f *FS) Close() { f.close() }

// Options returns the mount options for a process that has Dev open as fd.
func Options(fd int) string {
	return fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", fd)
}

// Mount mounts an FS at dir until the end of the test. After it returns, the kernel sends no further poll or
// flush requests.
func Mount(t testing.TB, dir string, content []byte, ignore func(name string) bool) *FS {
	t.Helper()
	var ready atomic.Bool
	f := New(t, content, func(name string) bool { return ready.Load() && ignore(name) })
	require.NoError(t, unix.Mount("deaf", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, Options(f.Dev)))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	// Unlike os.Open, these system calls let Go run other code.
	fd, err := unix.Open(filepath.Join(dir, "first"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	ready.Store(true)
	return f
}

func (f *FS) serve(stop int) {
	buf := make([]byte, 1<<20)
	for {
		ready := []unix.PollFd{{Fd: int32(stop), Events: unix.POLLIN}, {Fd: int32(f.Dev), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && err != unix.EINTR {
			return
		}
		if ready[0].Revents != 0 {
			return
		}
		n, err := unix.Read(f.Dev, buf)
		switch {
		case err == unix.EPERM: // not mounted yet
			time.Sleep(time.Millisecond)
			continue
		case err == unix.EINTR, err == unix.ENOENT, err == unix.EAGAIN:
			continue
		case err != nil || n < 40:
			return
		}
		le := binary.LittleEndian
		op, unique, at := le.Uint32(buf[4:]), le.Uint64(buf[8:]), le.Uint64(buf[16:])
		who, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", le.Uint32(buf[32:])))
		if !always(op) && f.ignore(strings.TrimSpace(string(who))) {
			f.Ignored.Add(1)
			continue
		}
		if op == fusePoll {
			f.Polled.Add(1)
		}
		var out bytes.Buffer
		put := func(values ...any) {
			for _, v := range values {
				_ = binary.Write(&out, le, v)
			}
		}
		errno := int32(0)
		switch op {
		case fuseInit:
			put(uint32(7), uint32(31), uint32(0), uint32(0), uint32(0), uint32(1<<16), make([]byte, 40))
		case fuseLookup:
			// These are the ID and generation, and how long the kernel can cache the entry and its attributes.
			put(uint64(node), uint64(0), uint64(1<<30), uint64(1<<30), uint32(0), uint32(0))
			put(f.attr(node))
		case fuseGetattr:
			put(uint64(1<<30), uint32(0), uint32(0), f.attr(at))
		case fuseOpen, fuseOpendir:
			put(uint64(1), uint32(0), uint32(0))
		case fuseRead:
			from, size := le.Uint64(buf[48:]), uint64(le.Uint32(buf[56:]))
			from = min(from, uint64(len(f.content)))
			put(f.content[from:min(from+size, uint64(len(f.content)))])
		case fuseStatfs:
			put(make([]byte, 80))
		case fuseRelease, fuseReleasedir, fuseAccess:
		case fuseForget, fuseInterrupt:
			continue
		default: // including fusePoll and fuseFlush
			errno = -int32(unix.ENOSYS)
			out.Reset()
		}
		head := make([]byte, 16)
		le.PutUint32(head, uint32(16+out.Len()))
		le.PutUint32(head[4:], uint32(errno))
		le.PutUint64(head[8:], unique)
		_, _ = unix.Write(f.Dev, append(head, out.Bytes()...))
	}
}

// always reports whether ignore does not apply to a request, because every sender gets an answer or no answer is due.
func always(op uint32) bool {
	switch op {
	case fusePoll, fuseFlush, fuseRelease, fuseReleasedir, fuseForget, fuseInterrupt:
		return true
	}
	return false
}

// attr is struct fuse_attr.
func (f *FS) attr(of uint64) []byte {
	var out bytes.Buffer
	mode, size := uint32(unix.S_IFDIR|0o755), uint64(0)
	if of == node {
		mode, size = unix.S_IFREG|0o755, uint64(len(f.content))
	}
	for _, v := range []any{of, size, size/512 + 1, [3]uint64{}, [3]uint32{}, mode, uint32(1), [2]uint32{}, uint32(0), uint32(4096), uint32(0)} {
		_ = binary.Write(&out, binary.LittleEndian, v)
	}
	return out.Bytes()
}
