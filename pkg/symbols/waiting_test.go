package symbols

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

func TestWaiting(t *testing.T) {
	queue := make(chan *entry, 10)
	for _, e := range []entry{
		{id: symtab.FileID{Size: 100 << 20}}, {id: symtab.FileID{Size: 90 << 20}}, {id: symtab.FileID{Size: 30 << 20}},
		{id: symtab.FileID{Size: 80 << 20}, asked: 1000}, {id: symtab.FileID{Size: 1 << 20}}, {id: symtab.FileID{Size: 2 << 20}, asked: 20},
		{id: symtab.FileID{Size: 200 << 20}, table: &symtab.Table{Golang: &symtab.GoTable{}}},
	} {
		queue <- &e
	}
	var w waiting
	w.take(queue, 5)
	require.Len(t, w.entries, 5)
	require.Len(t, queue, 2, "the bound holds")
	w.take(queue, 10)
	var order []int64
	for len(w.entries) > 0 {
		order = append(order, w.next().id.Size>>20)
	}
	require.Equal(t, []int64{80, 2, 200, 100, 1, 30, 90}, order, "what most wait for, by what it takes; every fourth time the oldest")
}
