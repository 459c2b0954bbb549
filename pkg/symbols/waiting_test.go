package symbols

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWaiting(t *testing.T) {
	queue := make(chan *entry, 10)
	for _, size := range []int64{100, 90, 3, 80, 1, 2} {
		queue <- &entry{id: FileID{Size: size}}
	}
	var w waiting
	w.take(queue, 5)
	require.Len(t, w.entries, 5)
	require.Len(t, queue, 1, "the bound holds")
	w.take(queue, 10)
	var order []int64
	for len(w.entries) > 0 {
		order = append(order, w.next().id.Size)
	}
	require.Equal(t, []int64{1, 100, 2, 90, 3, 80}, order, "the smallest and the oldest in turn")
}
