package unwinder

import (
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

func TestFilter(t *testing.T) {
	s := &wire.Sample{Proc: &wire.Proc{PID: 7, MntNS: 1}, Comm: "worker"}
	for name, c := range map[string]struct {
		f    filter
		pass bool
	}{
		"everything":    {filter{}, true},
		"its PID":       {filter{pids: []uint32{6, 7}}, true},
		"another PID":   {filter{pids: []uint32{6}}, false},
		"its name":      {filter{comms: []string{"worker"}}, true},
		"a longer name": {filter{comms: []string{"worker1"}}, false},
		"PID, not name": {filter{pids: []uint32{7}, comms: []string{"main"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.pass, c.f.pass(s))
		})
	}
}

// The list of watched namespaces is a real map, as Inspektor Gadget's is.
func TestWatchedNamespaces(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("eBPF maps want root")
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: 16})
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, m.Put(uint64(7), uint32(1)))

	second := uint64(time.Second)
	now := 100 * second
	f := filter{namespaces: m, now: func() uint64 { return now }}
	of := func(ns, start uint64) *wire.Sample {
		return &wire.Sample{Proc: &wire.Proc{PID: 1, MntNS: ns, Start: start}}
	}
	f.look()
	assert.True(t, f.pass(of(7, 50*second)))
	assert.True(t, f.pass(of(7, 99*second+second/2)))
	assert.False(t, f.pass(of(8, 50*second)), "not watched")
	assert.False(t, f.pass(of(0, 50*second)), "nobody knows")

	// The container ends; samples of it are still under way. Another namespace, which is not watched, gets the
	// number.
	require.NoError(t, m.Delete(uint64(7)))
	now += second
	f.look()
	assert.True(t, f.pass(of(7, 50*second)), "began while it was watched")
	assert.False(t, f.pass(of(7, 100*second+second/2)), "began afterwards")
	now += keepWatched
	f.look()
	assert.False(t, f.pass(of(7, 50*second)), "long gone")

	// A namespace that was just added counts before the list is read again.
	require.NoError(t, m.Put(uint64(9), uint32(1)))
	assert.True(t, f.pass(of(9, now)))
}

// All namespaces of a long list are found.
func TestManyNamespaces(t *testing.T) {
	const n = 2*batch + 7
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: n})
	require.NoError(t, err)
	defer m.Close()
	f := filter{namespaces: m, now: sinceBoot}
	f.look()
	require.Empty(t, f.watched)
	for i := range n {
		require.NoError(t, m.Put(uint64(i+1), uint32(1)))
	}
	f.look()
	require.Len(t, f.watched, n)
}

// A process that has ended, and began before the container that its row names, belongs to another container.
func TestContainerOfTheRow(t *testing.T) {
	self, first := uint32(os.Getpid()), uint32(os.Getppid())
	began, err := startOf(self)
	require.NoError(t, err)
	require.Positive(t, began)
	c := containers{}
	c.begin(map[uint32]uint64{self: began, 1 << 30: 1, 1<<30 + 1: sinceBoot()})
	assert.True(t, c.right(self, first), "it is there")
	assert.True(t, c.right(1<<30+1, first), "it began later")
	assert.False(t, c.right(1<<30, first), "it began before, and has ended")
	assert.True(t, c.right(1<<30, 1<<30+5), "nobody knows when the container began")
	assert.True(t, c.right(first, first))
}

// A lower frequency than the unwinder's takes a fair share.
func TestShare(t *testing.T) {
	assert.Equal(t, uint64(1000), share(1000, 19, 19))
	assert.Equal(t, uint64(1000), share(1000, 99, 19), "there are no more than were taken")
	got := float64(share(100000, 19, 95))
	assert.InDelta(t, 20000, got, 1000)
}
