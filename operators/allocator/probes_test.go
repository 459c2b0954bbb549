package allocator

import (
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

// fakeLink records that it was closed.
type fakeLink struct {
	link.Link
	closed int
}

func (l *fakeLink) Close() error {
	l.closed++
	return nil
}

// All probes must be removed, beginning with the most frequently called program.
func TestCloseProbes(t *testing.T) {
	require.Zero(t, closeProbes(nil, byProgram{}))
	var links []probe
	for n := range 3 * closers {
		links = append(links, probe{&fakeLink{}, allocators.Program(n % int(allocators.Programs))})
	}
	all := slices.Clone(links)
	closeProbes(links, byProgram{allocators.SizeThird: 20, allocators.SizeFirst: 30, allocators.AddressSize: 1})
	for _, l := range all {
		require.Equal(t, 1, l.Link.(*fakeLink).closed)
	}
	var order []allocators.Program
	for _, l := range links {
		order = append(order, l.program)
	}
	require.Equal(t, []allocators.Program{allocators.SizeFirst, allocators.SizeThird, allocators.AddressSize}, slices.Compact(order)[:3])
}

// If probes are never called, their slow removal must not count.
func TestSpread(t *testing.T) {
	times := [allocators.Programs]time.Duration{allocators.SizeFirst: 20 * time.Millisecond, allocators.SizeThird: 100 * time.Millisecond, allocators.CountSize: time.Hour}
	require.Equal(t, 40*time.Millisecond, spread(times, byProgram{allocators.SizeFirst: 3000, allocators.SizeThird: 1000}).Round(time.Microsecond))
	require.Equal(t, 100*time.Millisecond, spread(times, byProgram{allocators.SizeThird: 1}).Round(time.Microsecond))
	require.Zero(t, spread(times, byProgram{}))
}
