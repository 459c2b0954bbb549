package allocator

import (
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/deaf"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// deafFolder mounts a file system with one file. After a call of stop, it no longer responds to this process.
func deafFolder(t *testing.T, content []byte) (dir string, fs *deaf.FS, stop func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	comm, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	own := strings.TrimSpace(string(comm))
	var isDeaf atomic.Bool
	dir = t.TempDir()
	return dir, deaf.Mount(t, dir, content, func(name string) bool { return isDeaf.Load() && name == own }), func() { isDeaf.Store(true) }
}

// within fails the test if f hangs.
func within(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		require.Fail(t, "it waits for a file system that does not answer")
	}
}

// A program on a file system that does not respond must not delay the inspection of other programs.
func TestIdentifyDeaf(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	content, err := os.ReadFile(sleep)
	require.NoError(t, err)
	dir, fs, stop := deafFolder(t, content)
	// A shell starts the program, because Go would block this process, which serves the file system, until its child has called
	// execve.
	cmd := exec.Command("sh", "-c", `exec "$0" 600`, filepath.Join(dir, "evil"))
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	pid := uint32(cmd.Process.Pid)
	f := exampleFinder(t)
	require.Eventually(t, func() bool {
		comm, err := os.ReadFile(procDir(pid) + "/comm")
		return err == nil && string(comm) == "evil\n"
	}, time.Minute, time.Millisecond)
	stop()
	within(t, func() {
		_, start, _, err := f.resolver.Files(pid)
		require.NoError(t, err)
		require.NotZero(t, start)
		_, err = f.allocators(pid)
		require.NoError(t, err)
	})
	fs.Close()
}

// If a file stops responding before its process gets probes, the process gets none, and the run must continue.
func TestAttachDeaf(t *testing.T) {
	found, _ := filepath.Glob("/lib/*-linux-gnu/libc.so.6")
	if len(found) == 0 {
		t.Skip("no glibc where Debian has it")
	}
	content, err := os.ReadFile(found[0])
	require.NoError(t, err)
	dir, fs, stop := deafFolder(t, content)
	open, err := os.Open(filepath.Join(dir, "libc.so"))
	require.NoError(t, err)
	known := file{open: open}
	require.NoError(t, exampleFinder(t).ask(open, &known))
	require.NotEmpty(t, known.functions)

	pid := uint32(os.Getpid())
	i, gadgetCtx := exampleRun(t, pid, "")
	v, _ := gadgetCtx.GetVar(operators.MapPrefix + "allocator_programs")
	i.loaded, err = load(v.(*ebpf.Map))
	require.NoError(t, err)
	defer i.loaded.close()
	i.pacer, i.finder = &pacer{}, exampleFinder(t)
	i.finder.attaches = patience.New(100*time.Millisecond, maxStuck)
	id := symtab.FileID{Inode: 1}
	i.finder.files[id], i.finder.open = &known, 1
	p := &process{pid: pid, thread: pid, files: map[symtab.FileID][]probe{id: nil}}
	// Drop the file from the page cache.
	require.NoError(t, unix.Fadvise(int(open.Fd()), 0, 0, unix.FADV_DONTNEED))
	_, err = elf.NewFile(open)
	require.NoError(t, err, "it still answers")
	require.NoError(t, unix.Fadvise(int(open.Fd()), 0, 0, unix.FADV_DONTNEED))
	stop()
	within(t, func() { i.attach(p, id) })
	require.NotZero(t, fs.Ignored.Load())
	require.Zero(t, i.probes)
	require.Nil(t, p.files[id])
	require.Zero(t, i.finder.open)
	asked := fs.Ignored.Load()
	within(t, func() { i.attach(p, id) })
	require.Equal(t, asked, fs.Ignored.Load(), "it is not asked again")
	fs.Close() // pending reads return
	require.Eventually(t, func() bool {
		_, err := open.ReadAt(make([]byte, 1), 0)
		return err != nil && err != io.EOF
	}, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { _, err := open.Stat(); return err != nil }, time.Minute, time.Millisecond, "it is closed")
}

// If too many reads hang, further reads are tried later. Other processes must keep their probes and still be inspected.
func TestTooMany(t *testing.T) {
	i := exampleShares(t)
	i.finder = exampleFinder(t)
	i.finder.patience = patience.New(time.Second, 0)
	pid := uint32(os.Getpid())
	i.add(pid)
	i.look()
	require.Contains(t, i.processes, pid)
	require.NotZero(t, i.processes[pid].pending)
	require.Nil(t, i.finder.file(&procmap.File{ID: symtab.FileID{Inode: 1}}))
	require.Empty(t, i.finder.files)
}
