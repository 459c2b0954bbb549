package procmap

import (
	"context"
	"os"
	"os/exec"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
)

// identifyHere identifies a file in this process.
func identifyHere(ctx context.Context, f *os.File) (buildid.Info, time.Duration, error) {
	return symbols.Info(ctx, parse.Here{}, f)
}

// bare returns a Resolver without goroutines. Tests add events with take, and requests stay in the queues.
func bare() *Resolver {
	return &Resolver{
		identifyFile: identifyHere, watching: true, proc: "/proc", changed: make(chan struct{}), history: newHistory(), processes: map[Process]*entry{},
		files: map[fileKey]*file{}, toRead: make(chan *file, maxQueue), queue: make(chan request, maxQueue), avoid: map[device]verdict{},
		judgements: map[uint64]judgement{}, stuck: map[device]*stuckDevice{}, disks: patience.New(wait, maxStuck), readings: patience.New(wait, maxStuck),
	}
}

// TestMappedAfterReading checks that a process's later mappings are also known.
func TestMappedAfterReading(t *testing.T) {
	path, err := exec.LookPath("sleep")
	require.NoError(t, err)
	eachWay(t, func(t *testing.T, r *Resolver) {
		p := self(t)
		require.Equal(t, Known, known(t, r, p, procfs.SinceBoot(), uint64(reflect.ValueOf(TestMappedAfterReading).Pointer()))[0].State)
		require.Equal(t, Unmapped, known(t, r, p, procfs.SinceBoot(), 1)[0].State)

		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		code, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
		require.NoError(t, err)
		defer func() { require.NoError(t, unix.Munmap(code)) }()
		r.mu.Lock()
		r.processes[p].retry = r.processes[p].used // simulates that time has passed
		r.mu.Unlock()
		place := known(t, r, p, procfs.SinceBoot(), uint64(reflect.ValueOf(code).Pointer()))[0]
		require.NotNil(t, place.File)
		require.Equal(t, "sleep", place.File.Path[len(place.File.Path)-5:])
	})
}

// TestRowBeforeEvents checks that a row waits for the kernel's events of its time, but not forever.
func TestRowBeforeEvents(t *testing.T) {
	key := func(inode uint64) fileKey { return fileKey{dev: device{8, 1}, inode: inode, path: "/bin/x"} }
	r := bare()
	seen := procfs.SinceBoot()
	r.take(seen-10, []event{
		{kind: recordComm, pid: 5, time: seen - 20},
		{kind: recordMmap2, pid: 5, time: seen - 19, start: 100, end: 200, file: key(1)},
	}, 0)
	p := Process{PID: 5, ExeInode: 1, Space: 1}
	changed := r.Changed()
	place, pending := r.Locate(nil, p, seen, []uint64{150})
	require.True(t, pending)
	require.Equal(t, Pending, place[0].State)
	require.Empty(t, r.queue, "nothing has to be read")
	r.take(seen+1, nil, 0)
	select {
	case <-changed:
	default:
		t.Fatal("whoever waits is to be told, also without events")
	}

	r.take(seen+2, []event{
		{kind: recordComm, pid: 5, time: seen - 5},
		{kind: recordMmap2, pid: 5, time: seen - 4, start: 300, end: 400, file: key(2)},
	}, 0)
	e := r.bind(p, seen)
	require.Equal(t, seen-5, e.life.start)
	require.NotNil(t, e.life.find(350))
	require.Nil(t, e.life.find(150))

	// A process that was bound too early must later be bound to the correct life.
	r.take(seen+20, []event{{kind: recordComm, pid: 5, time: seen + 10}}, 0)
	require.Same(t, e, r.bind(p, seen+15))
	require.Equal(t, seen+10, e.life.start)
	require.Same(t, e, r.bind(p, seen), "a late row takes nothing back")
	require.Equal(t, seen+10, e.life.start)

	require.False(t, r.lags(seen-maxLag-1), "not for ever")
	require.False(t, r.lags(procfs.SinceBoot()+1e12), "a time to come is none")
	require.False(t, r.lags(0))
	r.history.until = 0
	require.True(t, r.lags(procfs.SinceBoot()))
	require.True(t, r.lags(procfs.SinceBoot()-uint64(2*readEvery)), "longer than the time between two reads")
	require.False(t, r.lags(procfs.SinceBoot()-2*maxLag))
}

// TestLostEvents checks that, after lost events, an earlier life does not count as the current life.
func TestLostEvents(t *testing.T) {
	cmd, p := start(t, "sleep", "600")
	areas := areasOf(t, p.PID)
	r := bare()
	// At this time, the process is the earlier shell. The event of its execve arrives, and then events are lost.
	began := procfs.SinceBoot()
	r.take(began+3, []event{
		{kind: recordFork, pid: p.PID, parent: 1, time: began},
		{kind: recordMmap2, pid: p.PID, time: began, start: areas[0].start, end: areas[0].end, file: fileKey{dev: device{8, 1}, inode: 1, path: "/bin/sh"}},
		{kind: recordComm, pid: p.PID, time: began + 2},
	}, 0)
	seen := procfs.SinceBoot()
	r.history.until = seen
	e := r.bind(p, seen)
	require.Equal(t, began+2, e.life.start)
	r.take(seen, nil, 1)
	require.True(t, e.life.forgot)
	require.Nil(t, r.history.at(p.PID, seen))
	require.Nil(t, r.history.current(p.PID))
	require.NotNil(t, r.history.at(p.PID, began+1), "what was before is known still")

	r.readProcess(t.Context(), request{p, seen})
	require.Same(t, r.history.at(p.PID, seen), e.life)
	require.True(t, e.life.whole)
	require.Equal(t, areas[0].key, e.life.find(areas[0].start).file.key)
	other := p
	other.ExeInode++
	require.Nil(t, r.bind(other, seen), "another program is not taken for it")

	// Events update the process that rows see.
	r.take(seen, []event{{kind: recordMmap2, pid: p.PID, time: seen, start: 1 << 20, end: 2 << 20, file: fileKey{dev: device{8, 1}, inode: 3, path: "/lib"}}}, 0)
	place, _ := r.Locate(nil, p, seen, []uint64{1 << 20})
	require.Equal(t, Pending, place[0].State, "its file is to be read")
	require.NoError(t, cmd.Process.Kill())
}

// TestChooser checks that files are read even if requests for processes never stop.
func TestChooser(t *testing.T) {
	queue, toRead := make(chan request, 100), make(chan *file, 3)
	for range 100 {
		queue <- request{}
	}
	for range 3 {
		toRead <- &file{}
	}
	var c chooser
	files, processes := 0, 0
	for i := range 103 {
		req, f := c.ready(queue, toRead)
		require.NotEqual(t, req == nil, f == nil)
		if req != nil {
			processes++
			continue
		}
		files++
		require.LessOrEqual(t, i, files*(maxInRow+1))
	}
	require.Equal(t, [2]int{100, 3}, [2]int{processes, files})
	req, f := c.ready(queue, toRead)
	require.Nil(t, req)
	require.Nil(t, f)
	toRead <- &file{}
	_, f = c.ready(queue, toRead)
	require.NotNil(t, f)
}

// TestMemfd checks that a file from memfd_create is identified although no mount contains it.
func TestMemfd(t *testing.T) {
	fd, err := unix.MemfdCreate("jit", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, int64(os.Getpagesize())))
	code, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(code)) }()
	addr := uint64(reflect.ValueOf(code).Pointer())
	eachWay(t, func(t *testing.T, r *Resolver) {
		known(t, r, self(t), procfs.SinceBoot(), addr)
		r.mu.Lock()
		defer r.mu.Unlock()
		for key, f := range r.files {
			if key.path == "/memfd:jit" {
				require.False(t, f.failed || f.checked == 0, "it is looked at")
				return
			}
		}
		t.Fatal("it is not known")
	})
}

// TestRenew checks that after the online CPUs change, all of them are watched, and possibly outdated data is forgotten.
func TestRenew(t *testing.T) {
	newResolver(t, Options{}) // skips if the kernel's events are not available
	r := bare()
	w := watch()
	require.NotNil(t, w)
	require.NotEmpty(t, w.online)
	require.Len(t, w.rings, len(w.online))
	r.take(5, []event{{kind: recordComm, pid: 5, time: 5}}, 0)
	require.Same(t, w, r.renew(w))
	require.NotNil(t, r.history.current(5))
	all := w.online
	w.online = w.online[1:] // as if a CPU had come online
	if len(w.online) == 0 {
		w.online = []int{4095}
	}
	next := r.renew(w)
	defer func() { next.close() }()
	require.NotSame(t, w, next)
	require.Empty(t, w.rings, "the old one is closed")
	require.Equal(t, all, next.online)
	require.Len(t, next.rings, len(all))
	require.Nil(t, r.history.current(5))
	require.Same(t, next, r.renew(next))
}
