package captures

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// exampleLive uses a real map. The test controls when a snapshot reads it.
type exampleLive struct {
	*live
	t      testing.TB
	dead   map[uint32]bool
	closed bool
}

func newExampleLive(t testing.TB, entries uint32) *exampleLive {
	t.Helper()
	s, _ := exampleSums(t)
	e := &exampleLive{t: t, dead: map[uint32]bool{}}
	e.live = newLive(s, func() bool { return e.closed })
	e.inUse = igtest.Map(t, &ebpf.MapSpec{Type: ebpf.Hash, Flags: 1 /* BPF_F_NO_PREALLOC */, KeySize: 16, ValueSize: 24, MaxEntries: entries})
	e.alive = func(pid uint32) bool { return !e.dead[pid] }
	return e
}

// allocate puts an allocation into the map and adds its capture.
func (e *exampleLive) allocate(x example, address uint64, frames ...uint64) {
	e.t.Helper()
	e.walk(x, frames...)
	e.put(x, address)
}

func (e *exampleLive) walk(x example, frames ...uint64) {
	e.t.Helper()
	r, st := x.complete(e.t, e.sums, frames...)
	e.add(r, r.process(), st)
}

func (e *exampleLive) put(x example, address uint64) {
	e.t.Helper()
	require.NoError(e.t, e.inUse.Put(&addressKey{Address: address, PID: x.pid}, &liveValue{x.id, x.bytes, x.calls}))
}

func (e *exampleLive) free(x example, address uint64) {
	e.t.Helper()
	require.NoError(e.t, e.inUse.Delete(&addressKey{Address: address, PID: x.pid}))
}

// take returns a snapshot that reads the map.
func (e *exampleLive) take() map[string]readRow {
	e.t.Helper()
	e.next = time.Time{}
	return e.again()
}

// again returns a snapshot that does not read the map if the last read was recent.
func (e *exampleLive) again() map[string]readRow {
	e.t.Helper()
	rows, err := e.snapshot()
	require.NoError(e.t, err)
	out := map[string]readRow{}
	for _, r := range rows {
		at := read(e.t, r)
		at.stack = 0
		out[at.comm] = at
	}
	require.Len(e.t, out, len(rows))
	return out
}

func TestLive(t *testing.T) {
	e := newExampleLive(t, 100)
	one := example{id: 1, time: 1, comm: "shop", pid: 5, bytes: 100, calls: 1}
	two := one
	two.id, two.bytes, two.calls = 2, 7, 3
	other := example{id: 3, time: 1, comm: "other", pid: 6, bytes: 1000, calls: 1}
	e.allocate(one, 0x1000, 1, 2)
	e.allocate(two, 0x2000, 1, 2)
	e.allocate(other, 0x1000, 1, 2)
	require.Equal(t, map[string]readRow{
		"shop": {comm: "shop", bytes: 107, calls: 4}, "other": {comm: "other", bytes: 1000, calls: 1},
	}, e.take())
	e.free(one, 0x1000)
	require.EqualValues(t, 107, e.again()["shop"].bytes, "the map is read every few seconds only")
	require.EqualValues(t, 7, e.take()["shop"].bytes)
	require.NotContains(t, e.rows, uint64(1), "freed and forgotten")
	e.free(other, 0x1000)
	require.NotContains(t, e.take(), "other")
	e.free(two, 0x2000)
	e.closed = true
	require.Empty(t, e.again(), "at the end the map is read in any case")
}

// An allocation can be in the map shortly before or after its capture is added.
func TestLiveFresh(t *testing.T) {
	e := newExampleLive(t, 100)
	x := example{id: 1, time: 1, comm: "shop", pid: 5, bytes: 100, calls: 1}
	e.walk(x, 1)
	require.Empty(t, e.take())
	e.put(x, 0x1000)
	require.EqualValues(t, 100, e.take()["shop"].bytes, "the function has returned meanwhile")

	y := example{id: 2, time: 1, comm: "late", pid: 5, bytes: 5, calls: 1}
	e.put(y, 0x2000)
	require.NotContains(t, e.take(), "late")
	require.EqualValues(t, 1, e.unknown)
	e.walk(y, 1)
	require.EqualValues(t, 5, e.take()["late"].bytes)
	require.Zero(t, e.unknown)

	z := example{id: 3, time: 1, comm: "failed", pid: 5, bytes: 5, calls: 1}
	e.walk(z, 1)
	e.take()
	e.take()
	require.NotContains(t, e.rows, uint64(3), "it never came")
	require.Empty(t, e.fresh)
}

// Allocations of an exited process must not count as in use.
func TestLiveGone(t *testing.T) {
	e := newExampleLive(t, 100)
	x := example{id: 1, time: 10, comm: "shop", pid: 5, space: 1, bytes: 100, calls: 1}
	y := example{id: 2, time: 10, comm: "other", pid: 6, space: 2, bytes: 100, calls: 1}
	e.allocate(x, 0x1000, 1)
	e.allocate(y, 0x1000, 1)
	e.dead[5] = true
	require.Len(t, e.take(), 1)
	require.EqualValues(t, 1, e.gone)
	var n int
	var key addressKey
	var value liveValue
	for it := e.inUse.Iterate(); it.Next(&key, &value); {
		n++
	}
	require.Equal(t, 1, n, "and its place in the map is free")

	// The process has called execve, or another process has got its PID.
	e.allocate(example{id: 3, time: 20, comm: "next", pid: 6, space: 3, bytes: 7, calls: 1}, 0x2000, 1)
	require.Equal(t, map[string]readRow{"next": {comm: "next", bytes: 7, calls: 1}}, e.take())
	require.EqualValues(t, 2, e.gone)
	e.walk(example{id: 4, time: 15, comm: "old", pid: 6, space: 2, bytes: 7, calls: 1}, 1)
	require.Len(t, e.take(), 1, "a capture of the program before that was walked late")
	for range 3 {
		e.free(example{pid: 6}, 0x2000)
		e.take()
		e.put(example{id: 9, pid: 6}, 0x2000)
	}
	require.Empty(t, e.spaces, "nothing is kept of processes without rows")
}

// Allocations from before an execve must not count as in use, even if the new program allocates nothing.
func TestLiveExec(t *testing.T) {
	e := newExampleLive(t, 100)
	e.execs = igtest.Map(t, &ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: 8, MaxEntries: 10})
	for pid, comm := range []string{"other", "shop"} {
		e.allocate(example{id: uint64(pid + 1), time: 10, comm: comm, pid: uint32(pid), space: 1, bytes: 100, calls: 1}, 0x1000, 1)
	}
	e.allocate(example{id: 5, time: 30, comm: "next", pid: 1, space: 1, bytes: 7, calls: 1}, 0x2000, 1)
	require.Len(t, e.take(), 3)
	require.NoError(t, e.execs.Put(uint32(1), uint64(20)))
	require.Equal(t, map[string]readRow{"other": {comm: "other", bytes: 100, calls: 1}, "next": {comm: "next", bytes: 7, calls: 1}}, e.take())
	require.EqualValues(t, 1, e.gone)
}

// Entries without a capture must not occupy the map forever.
func TestLiveStrays(t *testing.T) {
	e := newExampleLive(t, 2)
	x := example{id: 1, time: 1, comm: "shop", pid: 5, bytes: 100, calls: 1}
	stray := x
	stray.id = 2
	e.allocate(x, 0x1000, 1)
	e.put(stray, 0x2000) // an inner call: memalign calls malloc and returns an address inside the block
	for range 10 {
		require.EqualValues(t, 100, e.take()["shop"].bytes)
	}
	require.Zero(t, e.removed, "captures are walked some seconds later")
	require.Contains(t, e.strays, stray.id)
	e.strays[stray.id] = e.strays[stray.id].Add(-strayPatience)
	require.EqualValues(t, 100, e.take()["shop"].bytes)
	require.EqualValues(t, 1, e.removed)
	late := example{id: 3, time: 1, comm: "late", pid: 5, bytes: 5, calls: 1}
	e.put(late, 0x3000)
	e.take()
	e.walk(late, 1)
	require.EqualValues(t, 5, e.take()["late"].bytes)
	require.Empty(t, e.strays)
}

// Rows with the same stack must share it.
func TestLiveStacks(t *testing.T) {
	e := newExampleLive(t, 100)
	for id := range uint64(10) {
		x := example{id: id + 1, time: 1, comm: "shop", pid: 5, bytes: 100, calls: 1}
		e.allocate(x, 0x1000*id, 1+id%2)
		if id > 1 {
			require.Same(t, e.rows[id-1].stack, e.rows[id+1].stack)
		}
	}
	require.NotSame(t, e.rows[1].stack, e.rows[2].stack)
	require.Len(t, e.stacks, 2)
	rows, err := e.snapshot()
	require.NoError(t, err)
	require.Len(t, rows, 2)
	// In the gadget's map, another stack now has this ID.
	reused := example{id: 11, time: 1, comm: "reused", pid: 5, bytes: 100, calls: 1}
	r, st := reused.complete(t, e.sums, 1)
	other := &stack{id: st.id, frames: [mostFrames]uint64{9}}
	e.add(r, r.process(), other)
	require.Same(t, other, e.rows[11].stack)
	require.Same(t, other, e.stacks[st.id])
	for id := range uint64(10) {
		e.free(example{pid: 5}, 0x1000*id)
	}
	require.Empty(t, e.take(), "the last one is not in the map")
	require.Empty(t, e.take())
	require.Empty(t, e.stacks)
}

// Captures of failed allocations must not fill the memory. Captures that nobody reads must not fill it either.
func TestLiveBounded(t *testing.T) {
	e := newExampleLive(t, 10)
	for i := range uint64(10 + mostFresh + 100) {
		e.walk(example{id: i + 1, time: i, comm: "bomb", pid: uint32(i), space: uint32(i), bytes: 1, calls: 1}, i)
	}
	require.LessOrEqual(t, len(e.rows), 10+mostFresh)
	require.LessOrEqual(t, len(e.fresh), 10+mostFresh)
	require.LessOrEqual(t, len(e.spaces), 10+mostFresh)
	require.EqualValues(t, 100, e.refused)
	e.take()
	e.take()
	require.Empty(t, e.rows)
	require.Empty(t, e.spaces)
}

func TestLiveMapFails(t *testing.T) {
	e := newExampleLive(t, 10)
	e.allocate(example{id: 1, comm: "shop", pid: 5, bytes: 100, calls: 1}, 0x1000, 1)
	require.Len(t, e.take(), 1)
	e.inUse.Close()
	e.next = time.Time{}
	rows, err := e.snapshot()
	require.Error(t, err)
	require.Len(t, rows, 1, "the last that was known")
	rows[0].value[0]++
	rows[0].key[0]++
	e.next = time.Now().Add(time.Hour)
	require.EqualValues(t, 100, e.again()["shop"].bytes, "readers may change what they get")
}

// If reading the map is slow, it must be read less often.
func TestLiveInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExampleLive(t, 10)
		e.allocate(example{id: 1, comm: "shop", pid: 5, bytes: 100, calls: 1}, 0x1000, 1)
		before := time.Now()
		e.take()
		require.Equal(t, liveInterval, e.next.Sub(before))

		const long = time.Minute
		e.alive = func(uint32) bool { time.Sleep(long); return true }
		before = time.Now()
		e.take()
		require.GreaterOrEqual(t, e.next.Sub(before), liveShare*long)
	})
}

func TestLives(t *testing.T) {
	require.True(t, lives(uint32(os.Getpid())))
	c := exec.Command("true")
	require.NoError(t, c.Run())
	require.False(t, lives(uint32(c.Process.Pid)))
	// A zombie must have no memory in use.
	c = exec.Command("sleep", "60")
	require.NoError(t, c.Start())
	require.True(t, lives(uint32(c.Process.Pid)))
	require.NoError(t, c.Process.Kill())
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") Z ")
	}, time.Minute, time.Millisecond)
	require.False(t, lives(uint32(c.Process.Pid)))
	require.Error(t, c.Wait(), "it was killed")
	// In a container, the host's /proc is below HOST_ROOT.
	t.Setenv("HOST_ROOT", t.TempDir())
	require.False(t, lives(uint32(os.Getpid())))
	require.NoError(t, os.MkdirAll(os.Getenv("HOST_ROOT")+"/proc/1234567", 0o755))
	require.NoError(t, os.Symlink("/bin/true", os.Getenv("HOST_ROOT")+"/proc/1234567/exe"))
	require.True(t, lives(1234567))
}

// This test adds captures during reads. Run it with go test -race.
func TestLiveConcurrent(t *testing.T) {
	e := newExampleLive(t, 10000)
	e.closed = true
	var done sync.WaitGroup
	done.Go(func() {
		for i := range uint64(2000) {
			x := example{id: i + 1, comm: "shop", pid: 5, bytes: 1, calls: 1}
			e.put(x, i) // before the capture is added: here, two reads can follow faster than the function returns
			e.walk(x, 1)
		}
	})
	for range 50 {
		e.again()
	}
	done.Wait()
	require.EqualValues(t, 2000, e.again()["shop"].bytes)
}
