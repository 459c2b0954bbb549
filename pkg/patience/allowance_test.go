package patience

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A burst is free. CPU time beyond it makes callers wait, and the burst comes back over time.
func TestAllowance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := Allowance{Burst: 4 * time.Second, Slowdown: 5}
		require.Zero(t, a.Wait())
		a.Use(4 * time.Second)
		require.Zero(t, a.Wait(), "there is nothing to earn yet")
		a.Use(time.Second)
		require.Equal(t, 5*time.Second, a.Wait())
		time.Sleep(4 * time.Second)
		require.Equal(t, time.Second, a.Wait())
		time.Sleep(6 * time.Second)
		require.Zero(t, a.Wait())

		a.Use(2 * time.Second)
		require.Equal(t, 5*time.Second, a.Wait(), "a second of the burst had come back")
		time.Sleep(time.Hour)
		require.Zero(t, a.Wait())
		a.Use(5 * time.Second)
		require.Equal(t, 5*time.Second, a.Wait(), "no more than one burst is saved")
	})
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
