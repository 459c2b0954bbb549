package procmap

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// TestMemory simulates a machine that compiles. Processes start, are requested and exit. Many have their own program. The
// memory must not increase steadily, and must agree with the estimate.
func TestMemory(t *testing.T) {
	r := bare()
	before := igtest.Heap()
	const processes, steps = 5 * maxLives, 4 // the first step fills the tables
	var levels []int64
	for i := range uint64(processes) {
		pid, now := uint32(i%(2*maxLives)+1), 1000*i
		path := "/usr/bin/cc1"
		if i%4 == 0 {
			path = fmt.Sprintf("/tmp/build/%d/program", i)
		}
		events := []event{{kind: recordFork, pid: pid, parent: 1 << 22, time: now}, {kind: recordComm, pid: pid, time: now + 1}}
		for j := range uint64(12) {
			file := newFileKey(8, 1, j, fmt.Sprint("/usr/lib/x86_64-linux-gnu/lib", j))
			if j == 0 {
				file = newFileKey(8, 1, 1000+i, path)
			}
			events = append(events, event{kind: recordMmap2, pid: pid, time: now + 2, start: j << 12, end: (j + 1) << 12, file: file})
		}
		r.take(now+10, events, 0)
		for len(r.toRead) > 0 { // like the goroutine
			f := <-r.toRead
			f.queued, f.checked = false, now+1
			f.known = &File{Path: f.key.path, ID: symtab.FileID{Inode: f.key.inode}, f: f, r: r}
		}
		r.Locate(nil, Process{PID: pid, ExeInode: 1000 + i, Space: uint32(i)}, now+10, []uint64{1, 5 << 12})
		r.take(now+20, []event{{kind: recordExit, pid: pid, time: now + 15}}, 0)
		if i%1000 == 0 {
			r.sweep()
		}
		if (i+1)%(processes/steps) == 0 {
			level := igtest.Heap() - before
			levels = append(levels, level)
			require.Less(t, level, int64(r.held()), "the estimate is on the high side")
			require.Less(t, 2*level, 3*levels[0], "%v: it does not grow", levels)
		}
	}
	runtime.KeepAlive(r)
	t.Log(levels)
}

func TestBounds(t *testing.T) {
	r := &Resolver{history: newHistory(), processes: map[Process]*entry{}, queue: make(chan request, 3*maxProcesses)}
	for i := range 2 * maxProcesses {
		_, pending := r.Locate(nil, Process{PID: uint32(i + 1), ExeInode: 1}, 0, []uint64{1})
		require.True(t, pending)
		require.LessOrEqual(t, len(r.processes), maxProcesses)
	}
	require.Contains(t, r.processes, Process{PID: 2 * maxProcesses, ExeInode: 1}, "the newest stays")

	r = &Resolver{history: newHistory(), processes: map[Process]*entry{}, queue: make(chan request, 1)}
	for pid, want := range []State{Gone, Pending, Pending, Gone} {
		place, _ := r.Locate(nil, Process{PID: uint32(min(pid, 2)), ExeInode: 1}, 0, []uint64{1})
		if pid == 2 {
			want = Gone // the queue is full
		}
		require.Equal(t, want, place[0].State, pid)
	}
}

// TestHeld checks that the held memory is bounded, whatever processes do.
func TestHeld(t *testing.T) {
	r := &Resolver{watching: true, changed: make(chan struct{}), history: newHistory(), processes: map[Process]*entry{}, files: map[fileKey]*file{}, toRead: make(chan *file, 1)}
	path := "/" + strings.Repeat("x", maxPath-100)
	const processes = 500 // of 200 KB each: three times the bound
	for pid := range uint32(processes) {
		events := []event{{kind: recordComm, pid: pid + 1, time: uint64(pid)}}
		for i := range uint64(50) {
			events = append(events, event{kind: recordMmap2, pid: pid + 1, start: i << 12, end: (i + 1) << 12, file: newFileKey(1, 1, uint64(pid)<<16|i, fmt.Sprint(path, pid, i))})
		}
		r.take(uint64(pid), events, 0)
		r.Locate(nil, Process{PID: pid + 1, ExeInode: 1}, uint64(pid), []uint64{1})
		if pid%100 == 99 {
			r.sweep()
			require.LessOrEqual(t, r.held(), maxHeld)
		}
	}
	require.LessOrEqual(t, len(r.files), maxFiles)
	for pid := range uint32(processes) {
		r.take(processes, []event{{kind: recordExit, pid: pid + 1}}, 0)
	}
	require.LessOrEqual(t, len(r.history.ended), maxLives)
}

// TestHeldByLives checks that files that only a life refers to are counted, and that memory is bounded between two sweeps.
func TestHeldByLives(t *testing.T) {
	r := bare()
	path := "/" + strings.Repeat("x", maxPath-100)
	var paths int
	for pid := range uint32(100) {
		events := []event{{kind: recordComm, pid: pid + 1, time: uint64(pid)}}
		for i := range uint64(200) {
			events = append(events, event{kind: recordMmap2, pid: pid + 1, start: i << 12, end: (i + 1) << 12, file: newFileKey(1, 1, uint64(pid)<<16|i, fmt.Sprint(path, pid, i))})
		}
		r.take(uint64(pid), events, 0)
		r.Locate(nil, Process{PID: pid + 1, ExeInode: 1}, uint64(pid), []uint64{1})
		if pid%10 != 9 {
			continue
		}
		files := map[*file]bool{}
		add := func(l *life) {
			for _, m := range l.ranges {
				files[m.file] = true
			}
		}
		for _, ls := range r.history.byPID {
			for _, l := range ls {
				add(l)
			}
		}
		for _, e := range r.processes {
			if e.life != nil {
				add(e.life)
			}
		}
		paths = 0
		for f := range files {
			paths += len(f.key.path)
		}
		require.Greater(t, r.held(), paths)
		require.LessOrEqual(t, r.held(), maxHeld*3/2+1<<20, "without a sweep")
	}
	require.Positive(t, paths)
}
