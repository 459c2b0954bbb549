package allocator

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// child is a Python process that maps libraries on request.
type child struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	t   *testing.T
}

func newChild(t *testing.T) *child {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	c := &child{t: t, Cmd: exec.Command(python, "-c", "import ctypes, sys\nprint(0, flush=True)\nfor l in sys.stdin:\n  exec(l)\n  print(1, flush=True)")}
	c.in, err = c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.out = bufio.NewScanner(out)
	require.NoError(t, c.Start())
	t.Cleanup(c.end)
	require.True(t, c.out.Scan())
	return c
}

func (c *child) pid() uint32 { return uint32(c.Process.Pid) }

// run runs a line of Python in the child.
func (c *child) run(line string) {
	c.t.Helper()
	_, err := fmt.Fprintln(c.in, line)
	require.NoError(c.t, err)
	require.True(c.t, c.out.Scan())
}

func (c *child) end() {
	_ = c.Process.Kill()
	_ = c.Wait()
}

// exampleStore returns a store that reads files in this process.
func exampleStore(t *testing.T) *symbols.Store {
	t.Helper()
	store := symbols.NewStore(symbols.Options{Reader: parse.Here{}})
	t.Cleanup(store.Close)
	return store
}

func exampleFinder(t *testing.T) *finder {
	t.Helper()
	f := newFinder(t.Context(), exampleStore(t), func() map[symtab.FileID]bool { return nil }, func(err error) { t.Log(err) })
	t.Cleanup(f.close)
	return f
}

// settled inspects a process until all files are known.
func settled(t *testing.T, f *finder, pid uint32) (out found) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		out, err = f.allocators(pid)
		require.NoError(t, err)
		return !out.pending && !out.more
	}, 30*time.Second, time.Millisecond)
	return out
}

// The next inspection must find a library that was mapped later.
func TestFinder(t *testing.T) {
	f := exampleFinder(t)
	c := newChild(t)
	before := settled(t, f, c.pid())
	require.Len(t, before.files, 1)
	require.NotZero(t, before.start)
	require.NotNil(t, f.files[before.files[0]].open)
	if all, _ := filepath.Glob("/usr/lib/*-linux-gnu/libtcmalloc_minimal.so.4"); len(all) == 0 {
		t.Skip("this machine has no tcmalloc")
	}
	c.run("ctypes.CDLL('libtcmalloc_minimal.so.4')")
	require.Len(t, settled(t, f, c.pid()).files, 2)
	require.Equal(t, 2, f.open)
	require.Equal(t, before.start, settled(t, f, c.pid()).start)
	c.end()
	_, err := f.allocators(c.pid())
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A process that maps files all the time must not be able to hide its allocator.
func TestFinderOfRestlessProcess(t *testing.T) {
	f := exampleFinder(t)
	c := newChild(t)
	c.run("import mmap, os, tempfile; kept = []")
	known := func() bool {
		c.run("f = tempfile.TemporaryFile(); f.write(bytes(4096)); f.flush(); kept.append(mmap.mmap(f.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))")
		out, err := f.allocators(c.pid())
		require.NoError(t, err)
		return len(out.files) > 0
	}
	require.Eventually(t, known, 30*time.Second, 10*time.Millisecond)
	c.end()
	_, err := f.allocators(c.pid())
	require.Error(t, err)
}

// slowReader needs longer than an inspection for each two files.
type slowReader struct {
	parse.Here
	reads *atomic.Int32
}

func (s slowReader) Read(ctx context.Context, t *symtab.Task) (*symtab.Table, time.Duration, error) {
	s.reads.Add(1)
	time.Sleep(lookMost * 2 / 3)
	return s.Here.Read(ctx, t)
}

// TestFinderOfSlowFiles requires that the inspection of one process does not read many slow files at once.
func TestFinderOfSlowFiles(t *testing.T) {
	var reads atomic.Int32
	store := symbols.NewStore(symbols.Options{Reader: slowReader{reads: &reads}})
	t.Cleanup(store.Close)
	f := newFinder(t.Context(), store, func() map[symtab.FileID]bool { return nil }, func(err error) { t.Log(err) })
	t.Cleanup(f.close)
	pid, files := newChild(t).pid(), 0
	require.Eventually(t, func() bool {
		mapped, _, pending, err := f.resolver.Files(pid)
		require.NoError(t, err)
		files = len(mapped)
		return !pending
	}, 30*time.Second, time.Millisecond)
	before := reads.Load()
	out, err := f.allocators(pid)
	require.NoError(t, err)
	require.True(t, out.more)
	require.LessOrEqual(t, reads.Load()-before, int32(2))
	require.Len(t, settled(t, f, pid).files, 1)
	require.EqualValues(t, files, len(f.files))
}

// Unused files must make room, and used files must stay.
func TestFinderMakesRoom(t *testing.T) {
	f := exampleFinder(t)
	files := settled(t, f, newChild(t).pid()).files
	require.Len(t, files, 1)
	for i := range uint64(mostFiles) {
		f.files[symtab.FileID{Inode: i + 1, MtimeNS: -1}] = &file{}
	}
	used := map[symtab.FileID]bool{files[0]: true}
	f.used = func() map[symtab.FileID]bool { return used }
	require.True(t, f.makeRoom())
	require.Len(t, f.files, 1)
	require.Contains(t, f.files, files[0])
	for i := range mostOpen - 1 {
		id := symtab.FileID{Inode: uint64(i + 1), MtimeNS: -1}
		open, err := os.Open("/dev/null")
		require.NoError(t, err)
		f.files[id], used[id] = &file{open: open}, true
		f.open++
	}
	require.False(t, f.makeRoom(), "all are used")
	clear(used)
	require.True(t, f.makeRoom())
	require.Empty(t, f.files)
	require.Zero(t, f.open)
}

func TestLater(t *testing.T) {
	now := time.Now()
	p := &process{since: now, next: now}
	for _, at := range looks[1:] {
		p.later(now, false)
		require.Equal(t, now.Add(at), p.next)
	}
	p.later(now, false)
	require.Equal(t, now.Add(lookInterval), p.next)
	// Files that stay unknown must be checked less and less often.
	total := time.Duration(0)
	for range 20 {
		p.later(now, true)
		require.GreaterOrEqual(t, p.next.Sub(now), tick)
		require.LessOrEqual(t, p.next.Sub(now), lookInterval)
		total += p.next.Sub(now)
	}
	require.Greater(t, total, time.Minute)
	p.rescan(now.Add(1))
	require.Equal(t, now.Add(1), p.next)
	p.later(now, true)
	require.Equal(t, now.Add(tick), p.next)
}
