package captures

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

func settingsMap(t *testing.T) *ebpf.Map {
	t.Helper()
	return igtest.Map(t, &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1})
}

func TestControl(t *testing.T) {
	m := settingsMap(t)
	now := func() (s settings) {
		t.Helper()
		require.NoError(t, m.Lookup(uint32(0), &s))
		return s
	}
	c := newControl()
	require.NoError(t, c.start(m, 1<<20))
	require.Equal(t, settings{Step: 1 << 20}, now())
	require.NoError(t, c.Close(1))
	require.Equal(t, settings{Step: 1 << 20, Closed: 1}, now())
	w, ok := c.weight(0)
	require.True(t, ok)
	require.EqualValues(t, 1, w, "what is drawn all the time stands for itself, whatever Close says")

	require.NoError(t, c.Open(0.25))
	require.Equal(t, settings{Step: 1 << 18, Stretch: 1}, now(), "a quarter of the time, four times as much")
	_, ok = c.weight(1)
	require.False(t, ok, "nobody knows yet what the stretch stands for")
	require.NoError(t, c.Close(4.5))
	require.NoError(t, c.Close(9), "it is closed already")
	w, ok = c.weight(1)
	require.True(t, ok)
	require.EqualValues(t, 4.5, w)

	require.NoError(t, c.Open(1e-9))
	require.Equal(t, settings{Step: minStep, Stretch: 2}, now(), "captures have a price")
	require.NoError(t, c.setStep(2<<20))
	require.NoError(t, c.Close(2))
	require.NoError(t, c.Always())
	require.Equal(t, settings{Step: 2 << 20}, now())
	w, ok = c.weight(2)
	require.True(t, ok)
	require.EqualValues(t, 2, w, "its captures may come late")

	require.NoError(t, c.setStep(minStep/2))
	require.NoError(t, c.Open(0.5))
	require.Equal(t, settings{Step: minStep / 2, Stretch: 3}, now(), "not more than what was asked for all the time")
	c.finish()
	w, ok = c.weight(3)
	require.True(t, ok)
	require.EqualValues(t, 1, w, "the run has ended before the stretch")
}

// The weights of old stretches must be dropped, and their captures must not wait.
func TestControlForgets(t *testing.T) {
	c := newControl()
	for range 3 * remembered {
		require.NoError(t, c.Open(0.5))
		require.NoError(t, c.Close(2))
		w, ok := c.weight(0)
		require.True(t, ok)
		require.EqualValues(t, 1, w)
	}
	require.LessOrEqual(t, len(c.weights), remembered+1)
	w, ok := c.weight(1)
	require.True(t, ok)
	require.EqualValues(t, 1, w)
	w, ok = c.weight(c.stretch - remembered + 1)
	require.True(t, ok)
	require.EqualValues(t, 2, w)
	_, ok = c.weight(c.stretch + 1)
	require.True(t, ok, "no gadget's number keeps a row for ever")
	c.stretch = ^uint32(0)
	require.NoError(t, c.Open(0.5))
	require.EqualValues(t, 1, c.now.Stretch, "0 is no stretch")
	require.NoError(t, c.Close(2))
}

func TestControlWithoutMap(t *testing.T) {
	c := newControl()
	require.NoError(t, c.Open(0.5), "before the gadget starts")
	m := settingsMap(t)
	require.NoError(t, c.start(m, 1<<20))
	var s settings
	require.NoError(t, m.Lookup(uint32(0), &s))
	require.Equal(t, settings{Step: 1 << 19, Stretch: 1}, s)
	m.Close()
	require.ErrorContains(t, c.Close(1), "setting the sampling step")
}
