package stack

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestJanitor checks that stacks that rows refer to are kept, and that others are deleted.
func TestJanitor(t *testing.T) {
	igtest.NeedRoot(t)
	stacks := newStackMap(t, igStackEntries)
	record := func(depths int) { // in a goroutine, which has the same callers each time, so that stacks get their IDs again
		_, detach := recordStacks(t, "sys_enter", stacks, 1<<8|fastStackCmp)
		var wg sync.WaitGroup
		wg.Go(func() {
			for depth := range depths {
				syscallAt(depth)
			}
		})
		wg.Wait()
		detach()
	}
	record(60)
	ids := keys(t, stacks)
	require.Greater(t, len(ids), 20)
	j := NewJanitor(stacks, 10*time.Second)
	start := time.Now()
	sweep := func(second int) int {
		t.Helper()
		deleted, err := j.Sweep(start.Add(time.Duration(second) * time.Second))
		require.NoError(t, err)
		return deleted
	}
	require.Zero(t, sweep(0), "an entry that is met for the first time is given its time")
	used := ids[:5]
	for second := 1; second < 10; second++ {
		for _, id := range used {
			j.Seen(int32(id))
		}
		require.Zero(t, sweep(second))
	}
	require.Equal(t, len(ids)-len(used), sweep(10), "what no row ever named goes")
	require.Equal(t, used, keys(t, stacks))
	require.Zero(t, sweep(17))
	require.Equal(t, len(used), sweep(18), "what rows name no more goes")
	require.Empty(t, keys(t, stacks))
	require.Zero(t, sweep(19))

	// A stack that returns to the map must stay for the full time again.
	record(4)
	require.Condition(t, func() bool {
		return slices.ContainsFunc(keys(t, stacks), func(id uint32) bool { return slices.Contains(ids, id) })
	}, "a stack returns")
	require.Zero(t, sweep(21))
	require.Zero(t, sweep(30))
	require.NotEmpty(t, keys(t, stacks))
	require.Positive(t, sweep(31))
	require.Empty(t, keys(t, stacks))
}

// TestJanitorMakesRoom checks that a full map accepts new stacks again.
func TestJanitorMakesRoom(t *testing.T) {
	igtest.NeedRoot(t)
	const entries = 8
	stacks := newStackMap(t, entries)
	j := NewJanitor(stacks, time.Second)
	lastError, detach := recordStacks(t, "sys_enter", stacks, 1<<8|fastStackCmp)
	for depth := range 200 {
		syscallAt(depth)
	}
	detach()
	var errno int64
	require.NoError(t, lastError.Lookup(uint32(0), &errno))
	require.Negative(t, errno, "the map has no room left")
	held := len(keys(t, stacks))
	now := time.Now()
	_, err := j.Sweep(now)
	require.NoError(t, err)
	deleted, err := j.Sweep(now.Add(time.Second))
	require.NoError(t, err)
	require.Equal(t, held, deleted)

	_, detach = recordStacks(t, "sys_enter", stacks, 1<<8|fastStackCmp)
	syscallAt(500)
	detach()
	require.NotEmpty(t, keys(t, stacks), "there is room again")
}

// TestJanitorAfterSilence checks that the first rows after an hour without rows find their stacks.
func TestJanitorAfterSilence(t *testing.T) {
	igtest.NeedRoot(t)
	stacks := newStackMap(t, 64)
	_, detach := recordStacks(t, "sys_enter", stacks, 1<<8|fastStackCmp)
	syscallAt(0)
	detach()
	j := NewJanitor(stacks, 20*time.Second)
	start := time.Now()
	sweep := func(after time.Duration) int {
		deleted, err := j.Sweep(start.Add(after))
		require.NoError(t, err)
		return deleted
	}
	require.Zero(t, sweep(0))
	require.Zero(t, sweep(time.Hour))
	require.Positive(t, sweep(time.Hour+10*time.Second))
}

// TestJanitorWalksInSteps has more entries than one Sweep checks.
func TestJanitorWalksInSteps(t *testing.T) {
	igtest.NeedRoot(t)
	stacks := newStackMap(t, igStackEntries)
	_, detach := recordStacks(t, "sys_enter", stacks, 1<<8|fastStackCmp)
	for a := range 60 {
		for b := range 60 {
			deepSyscall(a, b)
		}
	}
	detach()
	held := len(keys(t, stacks))
	require.Greater(t, held, 2*sweepKeys)

	j := NewJanitor(stacks, 20*time.Second)
	start := time.Now()
	total := 0
	for second := range 20 {
		deleted, err := j.Sweep(start.Add(time.Duration(second) * time.Second))
		require.NoError(t, err)
		require.Zero(t, deleted)
	}
	for second := 40; total < held; second++ {
		require.Less(t, second, 60)
		deleted, err := j.Sweep(start.Add(time.Duration(second) * time.Second))
		require.NoError(t, err)
		require.LessOrEqual(t, deleted, sweepKeys)
		total += deleted
	}
	require.Equal(t, held, total)
	require.Empty(t, keys(t, stacks))
}

// deepSyscall makes a system call with a different user stack for each a and b.
//
//go:noinline
func deepSyscall(a, b int) {
	if a > 0 {
		deepSyscall(a-1, b)
		return
	}
	syscallAt(b)
}

func TestJanitorIgnoresOtherIDs(t *testing.T) {
	igtest.NeedRoot(t)
	j := NewJanitor(newStackMap(t, 5), time.Minute)
	require.Len(t, j.seen, 8, "the kernel takes IDs up to the next power of two")
	for _, id := range []int32{-17, -1, 0, 7, 8, 1 << 30} {
		j.Seen(id)
	}
	now := time.Now()
	for i := range 3 {
		deleted, err := j.Sweep(now.Add(time.Duration(i) * time.Hour))
		require.NoError(t, err)
		require.Zero(t, deleted, "the map is empty")
	}
}

func TestJanitorOnClosedMap(t *testing.T) {
	igtest.NeedRoot(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.StackTrace, KeySize: 4, ValueSize: igStackDepth * 8, MaxEntries: 16})
	require.NoError(t, err)
	j := NewJanitor(m, time.Minute)
	_, err = j.Sweep(time.Now())
	require.NoError(t, err)
	require.NoError(t, m.Close())
	_, err = j.Sweep(time.Now())
	require.ErrorContains(t, err, "walking the stack map")
	frames, outcome := NewKernel(KernelOptions{Map: func() *ebpf.Map { return m }}).Append(nil, list("a"), 0, true)
	require.Equal(t, OK, outcome)
	require.Equal(t, []string{"a"}, names(frames))
}
