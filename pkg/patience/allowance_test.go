package patience

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A burst is free. CPU time beyond it makes callers wait, and the burst comes back over time.
func TestAllowance(t *testing.T) {
	a := Allowance{Burst: 4 * time.Second, Slowdown: 5}
	now := time.Now()
	require.Zero(t, a.wait(now))
	a.use(now, 4*time.Second)
	require.Zero(t, a.wait(now), "there is nothing to earn yet")
	a.use(now, time.Second)
	require.Equal(t, 5*time.Second, a.wait(now))
	require.Equal(t, time.Second, a.wait(now.Add(4*time.Second)))
	require.Zero(t, a.wait(now.Add(time.Hour)))

	now = now.Add(10 * time.Second)
	a.use(now, 2*time.Second)
	require.Equal(t, 5*time.Second, a.wait(now), "a second of the burst had come back")
	now = now.Add(time.Hour)
	a.use(now, 5*time.Second)
	require.Equal(t, 5*time.Second, a.wait(now), "no more than one burst is saved")
}

// Rest returns when its context ends.
func TestRest(t *testing.T) {
	a := Allowance{Burst: time.Second, Slowdown: 1 << 20}
	a.Rest(t.Context())
	a.Use(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.Rest(ctx)
	require.NotZero(t, a.Wait())
	a = Allowance{Slowdown: 1}
	a.Use(time.Millisecond)
	a.Rest(t.Context())
	require.Zero(t, a.Wait())
}
