package procmap

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// heap is how much memory is in use, in bytes.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools have kept
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// On a machine that compiles, processes come, are asked for and are gone, many of them with a program of their own. What
// is kept of them stays level, and it is what the estimate says.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("60,000 processes come and go")
	}
	r := bare()
	before := heap()
	const processes, steps = 60_000, 6
	var levels []int64
	for i := range uint64(processes) {
		pid, now := uint32(i%30_000+1), 1000*i
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
		for len(r.toRead) > 0 { // as the goroutine does
			f := <-r.toRead
			f.queued, f.checked = false, now+1
			f.known = &File{Path: f.key.path, ID: symbols.FileID{Inode: f.key.inode}, f: f, r: r}
		}
		r.Locate(nil, Process{PID: pid, ExeInode: 1000 + i, Space: uint32(i)}, now+10, []uint64{1, 5 << 12})
		r.take(now+20, []event{{kind: recordExit, pid: pid, time: now + 15}}, 0)
		if i%1000 == 0 {
			r.sweep()
		}
		if (i+1)%(processes/steps) == 0 {
			level := heap() - before
			levels = append(levels, level)
			require.Less(t, level, int64(r.held()), "the estimate is on the high side")
			require.Less(t, 2*level, 3*levels[0], "%v: it does not grow", levels)
		}
	}
	runtime.KeepAlive(r)
	t.Log(levels)
}
