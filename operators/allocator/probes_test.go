package allocator

import (
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
)

// fakeLink is closed once.
type fakeLink struct {
	link.Link
	closed int
}

func (l *fakeLink) Close() error {
	l.closed++
	return nil
}

// What is called most goes first, whatever program that is, and all go.
func TestCloseProbes(t *testing.T) {
	require.Zero(t, closeProbes(nil, byProgram{}))
	var links []probe
	for n := range 3 * closers {
		links = append(links, probe{&fakeLink{}, program(n % int(programs))})
	}
	all := slices.Clone(links)
	closeProbes(links, byProgram{sizeThird: 20, sizeFirst: 30, addressSize: 1})
	for _, l := range all {
		require.Equal(t, 1, l.Link.(*fakeLink).closed)
	}
	var order []program
	for _, l := range links {
		order = append(order, l.program)
	}
	require.Equal(t, []program{sizeFirst, sizeThird, addressSize}, slices.Compact(order)[:3])
}

// Probes that nobody calls can take their time.
func TestSpread(t *testing.T) {
	times := [programs]time.Duration{sizeFirst: 20 * time.Millisecond, sizeThird: 100 * time.Millisecond, countSize: time.Hour}
	require.Equal(t, 40*time.Millisecond, spread(times, byProgram{sizeFirst: 3000, sizeThird: 1000}).Round(time.Microsecond))
	require.Equal(t, 100*time.Millisecond, spread(times, byProgram{sizeThird: 1}).Round(time.Microsecond))
	require.Zero(t, spread(times, byProgram{}))
}
