//go:build e2e

package polyglot

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// deafFS is a file system in this process (FUSE, by the kernel's include/uapi/linux/fuse.h) with one file, a program. It
// answers everybody but the unwinder.
type deafFS struct {
	dev     int
	content []byte
	ignored atomic.Int64 // requests without an answer
}

// The requests that it knows, and the node of its file.
const (
	fuseLookup, fuseForget, fuseGetattr, fuseOpen, fuseRead, fuseStatfs, fuseRelease  = 1, 2, 3, 14, 15, 17, 18
	fuseFlush, fuseInit, fuseOpendir, fuseReleasedir, fuseAccess, fuseInterrupt, node = 25, 26, 27, 29, 34, 36, 2
)

// mountDeaf mounts it at dir.
func mountDeaf(t *testing.T, dir string, content []byte) *deafFS {
	t.Helper()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Mount("deaf", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", dev)))
	f := &deafFS{dev: dev, content: content}
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		_ = unix.Close(dev) // whoever waits for an answer gets an error
	})
	go f.serve()
	return f
}

func (f *deafFS) serve() {
	buf := make([]byte, 1<<20)
	for {
		n, err := unix.Read(f.dev, buf)
		if err == unix.EINTR || err == unix.ENOENT {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		le := binary.LittleEndian
		op, unique, at := le.Uint32(buf[4:]), le.Uint64(buf[8:]), le.Uint64(buf[16:])
		who, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", le.Uint32(buf[32:])))
		if string(who) == "unwinder\n" && op != fuseInterrupt && op != fuseForget {
			f.ignored.Add(1)
			continue
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
			// Its ID and generation; both for ever.
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
		case fuseFlush, fuseRelease, fuseReleasedir, fuseAccess:
		case fuseForget, fuseInterrupt:
			continue
		default:
			errno = -int32(unix.ENOSYS)
			out.Reset()
		}
		head := make([]byte, 16)
		le.PutUint32(head, uint32(16+out.Len()))
		le.PutUint32(head[4:], uint32(errno))
		le.PutUint64(head[8:], unique)
		_, _ = unix.Write(f.dev, append(head, out.Bytes()...))
	}
}

// attr is struct fuse_attr.
func (f *deafFS) attr(of uint64) []byte {
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

// TestDeafFileSystem runs a program from a file system that does not answer the unwinder: reading its file never ends. The unwinder is found out to
// wait, started anew without that program, and takes samples of those that start later.
func TestDeafFileSystem(t *testing.T) {
	h := startHostile(t)
	p := buildLoads(t, find(t, "c"))[0]
	content, err := os.ReadFile(p.Binary)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	fs := mountDeaf(t, dir, content)
	// Not directly: this process, which has to answer, cannot do so between its fork and its exec.
	program := exec.Command("/bin/sh", "-c", `exec "$0"`, filepath.Join(dir, "evil"))
	program.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdout, err := program.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, program.Start())
	t.Cleanup(func() { _ = program.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	require.True(t, h.run.wait("the unwinder is started anew", 4*time.Minute, func() bool {
		return bytes.Contains([]byte(h.run.log.String()), []byte("got nowhere"))
	}), "%d requests were ignored", fs.ignored.Load())
	require.Positive(t, fs.ignored.Load())
	later, err := buildLoads(t, find(t, "c-fp"))[0].Start(t.Context(), loads.DefaultLimit)
	require.NoError(t, err)
	t.Cleanup(func() { later.Stop() })
	require.True(t, h.run.wait("samples of a program that started later", 3*time.Minute, func() bool { return h.run.counted(later.PID, time.Time{}) > 20 }))
	_, b := h.finish()
	require.EqualValues(t, 1, b.restarts)
}
