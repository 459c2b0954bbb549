package warnings

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		often, once := Rate{Every: time.Minute}, Rate{}
		require.False(t, often.Had("a"))
		var left []int
		for range 121 {
			if n, ok := often.Due("a"); ok {
				left = append(left, n)
			}
			time.Sleep(time.Second)
		}
		require.Equal(t, []int{0, 59, 59}, left)
		require.True(t, often.Had("a"))
		often.Missed("a", 3)
		time.Sleep(time.Minute)
		n, ok := often.Due("a")
		require.True(t, ok)
		require.Equal(t, 4, n)
		for want := range 2 {
			_, ok = once.Due("a")
			require.Equal(t, want == 0, ok)
			time.Sleep(time.Hour)
		}
		_, ok = once.Due("b")
		require.True(t, ok, "one kind does not hide another")
	})
}
