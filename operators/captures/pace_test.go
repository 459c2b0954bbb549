package captures

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPace(t *testing.T) {
	var set []uint64
	p := newPace(1000, func(step uint64) error { set = append(set, step); return nil })
	captures := uint64(0)
	second := func(n uint64) {
		captures += n
		require.NoError(t, p.look(captures, time.Second, 0))
	}
	second(mostCaptures)
	require.Empty(t, set)
	require.Equal(t, "1000", p.String())
	second(7 * mostCaptures)
	require.Equal(t, []uint64{8000}, set, "as large at once as it takes")
	second(mostCaptures)
	require.Equal(t, []uint64{8000}, set, "between the bounds nothing changes")
	second(mostCaptures/4 - 1)
	second(0)
	second(0)
	second(0)
	second(0)
	require.Equal(t, []uint64{8000, 4000, 2000, 1000}, set, "back, step by step, and not below what was asked for")
	require.Equal(t, "1000 to 8000, raised because there were many events", p.String())
}

// A burst must increase the step at once, because captures without room are lost.
func TestPaceEarly(t *testing.T) {
	var last uint64
	p := newPace(1000, func(step uint64) error { last = step; return nil })
	require.False(t, p.early(mostCaptures-1))
	require.True(t, p.early(mostCaptures))
	require.NoError(t, p.look(mostCaptures, time.Second/8, 0))
	require.EqualValues(t, 8000, last, "by the rate, as after a second")
	require.False(t, p.early(mostCaptures+1))
	p = newPace(0, nil)
	require.False(t, p.early(1<<40), "nothing can be done")
}

func TestPaceBounds(t *testing.T) {
	var last uint64
	p := newPace(maxStep/2+1, func(step uint64) error { last = step; return nil })
	require.NoError(t, p.look(1<<40, time.Second, 0))
	require.EqualValues(t, maxStep, last)
	last = 0
	require.NoError(t, p.look(1<<41, time.Second, 0))
	require.Zero(t, last, "it is the largest already")
	require.NoError(t, p.look(1<<41, time.Second, 0))
	require.EqualValues(t, maxStep/2+1, last, "an odd one is not halved below the first")

	p = newPace(0, func(uint64) error { return errors.New("called") })
	require.NoError(t, p.look(1<<40, time.Second, 0), "the step of a gadget that does not name it is left alone")
	require.Equal(t, "the gadget's default", p.String())

	p = newPace(1, func(uint64) error { return errors.New("no map") })
	require.EqualError(t, p.look(1<<40, time.Second, 0), "no map")
}

// TestPaceCPU has a program whose captures are slow to read.
func TestPaceCPU(t *testing.T) {
	var set []uint64
	p := newPace(1000, func(step uint64) error { set = append(set, step); return nil })
	second := func(share float64) {
		require.NoError(t, p.look(0, 2*time.Second, time.Duration(share*2*float64(time.Second))))
	}
	second(mostCPU)
	require.Empty(t, set)
	second(3 * mostCPU)
	require.Equal(t, []uint64{4000}, set)
	second(mostCPU / 2)
	require.Equal(t, []uint64{4000}, set)
	second(mostCPU / 5)
	second(0)
	second(0)
	require.Equal(t, []uint64{4000, 2000, 1000}, set)
}
