package allocator

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

// exampleShares returns a run with the gadget's maps and without goroutines.
func exampleShares(t *testing.T) *instance {
	t.Helper()
	i, _ := exampleRun(t, 1<<30, "")
	i.processes = map[uint32]*process{}
	i.pacer = &pacer{budget: i.maxCost, each: time.Microsecond}
	i.attached = true
	return i
}

// call counts calls of a process, as the gadget's programs do.
func call(t *testing.T, i *instance, p *process, calls uint64) {
	t.Helper()
	for _, slot := range []uint32{0, p.slot} {
		var perCPU []counts
		require.NoError(t, i.counts.Lookup(slot, &perCPU))
		perCPU[0].Calls[allocators.SizeFirst] += calls
		require.NoError(t, i.counts.Update(slot, perCPU, ebpf.UpdateAny))
	}
}

// A program that calls malloc all the time must get stretches, while other programs keep their probes. If another program calls
// as much, it must also get stretches. When the first program is quiet, its probes must stay again.
func TestSharedOut(t *testing.T) {
	i := exampleShares(t) // 5 % of a CPU, which is 50,000 calls a second
	now := time.Now()
	for pid := range uint32(4) {
		i.add(pid + 1)
	}
	processes := func() (all [5]*process) {
		for pid, p := range i.processes {
			p.at, all[pid] = now, p
		}
		return all
	}
	p := processes()
	settings := func(pid uint32) uint32 {
		var e entry
		require.NoError(t, i.known.Lookup(pid, &e))
		require.Equal(t, i.processes[pid].slot, e.Slot)
		return e.Settings
	}
	second := func(calls ...uint64) {
		for n, c := range calls {
			call(t, i, p[n+1], c)
		}
		now = now.Add(time.Second)
	}
	i.pacer.begin(now, i.usage())
	for range 3 {
		second(3_000_000, 10_000, 8_000, 0)
		require.NoError(t, i.step(now))
		if i.pacer.plan.period > 0 {
			break // the next second could have a random stretch
		}
	}
	require.Positive(t, i.pacer.plan.period, "there are stretches")
	require.True(t, p[1].paced)
	require.InDelta(t, 0.05-0.018, i.pacer.budget, 0.0001, "the others' part is taken off")
	require.InDelta(t, 3, i.pacer.cost, 0.01)
	for pid, want := range []bool{1: false, 2: true, 3: true, 4: true} {
		if pid > 0 {
			require.Equal(t, want, i.wants(p[pid]), pid)
			require.EqualValues(t, map[bool]int{true: settingsAlways}[want], settings(uint32(pid)), pid)
		}
	}
	before := i.usage()
	second(0, 10_000, 8_000, 0)
	require.Equal(t, before, i.usage(), "what the others call is not the pacer's")

	i.add(5)
	require.False(t, i.wants(i.processes[5]), "nobody knows what a new one costs")
	i.forget(i.processes[5])
	require.ErrorIs(t, i.known.Lookup(uint32(5), new(entry)), ebpf.ErrKeyNotExist)

	// The second process begins to call as much.
	p[2].at, p[3].at, p[4].at, i.measured = now, now, now, now
	second(0, 2_000_000, 8_000, 0)
	i.attached = true
	i.watchAlways(now)
	require.False(t, p[2].paced, "an open stretch would count it twice")
	i.attached = false
	i.watchAlways(now)
	require.True(t, p[2].paced)
	require.True(t, p[2].skip, "the next stretch is for a time in which it had its probes")
	require.True(t, i.wants(p[3]))

	// Both have stretches, and the first process now makes few calls.
	for n := range mostCalm {
		i.openStretch()
		require.Equal(t, n > 0, i.wants(p[2]) && p[2].paced)
		begin := now
		second(100, 2_000_000, 8_000, 0)
		i.settled(now, begin)
		if !p[1].paced {
			break
		}
	}
	require.False(t, p[1].paced)
	require.True(t, p[2].paced)
	require.EqualValues(t, settingsAlways, settings(1))
	require.True(t, i.wants(p[1]))
}

// A process's probes must stay after several consecutive cheap stretches. An expensive stretch restarts the count.
func TestCheapStretchesInARow(t *testing.T) {
	i := exampleShares(t)
	i.pacer.plan.period = time.Second
	i.add(1)
	p, now := i.processes[1], time.Now()
	stretch := func(calls uint64) {
		require.True(t, p.paced)
		i.openStretch()
		call(t, i, p, calls)
		i.settled(now.Add(time.Second), now)
	}
	for _, calls := range []uint64{0, 0, 60_000, 0, 0, 0, 0} { // the estimate at most halves, so the first stretch after the 60,000 is not cheap
		stretch(calls)
	}
	require.False(t, p.paced)
	i.pace(p, true)
	for range calm {
		stretch(0)
	}
	require.False(t, p.paced)
}

// An exited process's slot must be free again.
func TestSlotIsGivenBack(t *testing.T) {
	i := exampleShares(t)
	i.add(1)
	slot := i.processes[1].slot
	require.NotZero(t, slot)
	i.forget(i.processes[1])
	i.add(2)
	require.Equal(t, slot, i.processes[2].slot)
}
