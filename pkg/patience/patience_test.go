package patience

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// At most two tasks that do not end are abandoned, and other tasks must still run. An abandoned task that ends must make room
// again.
func TestLeftBehind(t *testing.T) {
	r := New(50*time.Millisecond, 2)
	var pipes [2][2]int
	late := make(chan int, 2)
	for i := range pipes {
		require.NoError(t, unix.Pipe(pipes[i][:]))
		_, err := r.Do(t.Context(), func() { _, _ = unix.Read(pipes[i][0], make([]byte, 1)) }, func() func() { return func() { late <- i } })
		require.ErrorIs(t, err, ErrStuck)
		require.EqualValues(t, i+1, r.left.Load())
		if i == 0 {
			ran := false
			used, err := r.Do(t.Context(), func() {
				ran = true
			}, nil)
			require.NoError(t, err)
			require.True(t, ran)
			require.Positive(t, used)
		}
	}
	_, err := r.Do(t.Context(), func() { t.Error("there are too many") }, nil)
	require.ErrorIs(t, err, ErrTooMany)
	for i := range pipes {
		require.NoError(t, unix.Close(pipes[i][1]))
		require.Equal(t, i, <-late)
		require.NoError(t, unix.Close(pipes[i][0]))
	}
	require.Eventually(t, func() bool { return r.left.Load() == 0 }, 20*time.Second, time.Millisecond)
	require.EqualValues(t, 2, r.Total())
}

// Do must return soon after its context has ended.
func TestEnd(t *testing.T) {
	r := New(100*time.Millisecond, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	goOn := make(chan struct{})
	_, err := r.Do(ctx, func() { <-goOn }, func() func() { return func() {} })
	require.ErrorIs(t, err, ErrStuck)
	close(goOn)
}
