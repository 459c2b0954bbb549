package export

import (
	"container/heap"
	"time"
)

// sendQueue holds the entries that wait to be sent: those that may go now, the oldest first, and those that
// wait for their time. An entry in flight is in neither.
type sendQueue struct {
	now oldestFirst
	// later has the entries that failed lately, which are few, so that a scan is cheap. Only while the clock is behind
	// it has all of them.
	later map[*entry]struct{}
}

func newSendQueue() *sendQueue { return &sendQueue{later: map[*entry]struct{}{}} }

// push adds en, to be sent when en.ready has come.
func (q *sendQueue) push(en *entry, now time.Time) {
	if en.ready.After(now) {
		q.later[en] = struct{}{}
		return
	}
	heap.Push(&q.now, en)
}

// promote moves the entries whose time has come to those that may go, and returns when the next one's will
// have; zero if none waits.
func (q *sendQueue) promote(now time.Time) (next time.Time) {
	for en := range q.later {
		switch {
		case !en.ready.After(now):
			delete(q.later, en)
			heap.Push(&q.now, en)
		case next.IsZero() || en.ready.Before(next):
			next = en.ready
		}
	}
	return next
}

// hurry makes waiting entries due at once, except where the receiver asked for the wait or the data is ahead of the
// clock.
func (q *sendQueue) hurry() {
	for en := range q.later {
		if !en.asked {
			delete(q.later, en)
			heap.Push(&q.now, en)
		}
	}
}

// oldest is the oldest entry that may go now, nil if there is none.
func (q *sendQueue) oldest() *entry {
	if len(q.now) == 0 {
		return nil
	}
	return q.now[0]
}

// remove takes en out, wherever it waits.
func (q *sendQueue) remove(en *entry) {
	if en.index >= 0 {
		heap.Remove(&q.now, en.index)
	}
	delete(q.later, en)
}

// oldestFirst is a heap of entries by their order of arrival. Each knows its position.
type oldestFirst []*entry

func (h oldestFirst) Len() int           { return len(h) }
func (h oldestFirst) Less(i, j int) bool { return h[i].seq < h[j].seq }
func (h oldestFirst) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *oldestFirst) Push(x any) {
	en := x.(*entry)
	en.index = len(*h)
	*h = append(*h, en)
}

// Pop implements heap.Interface.
func (h *oldestFirst) Pop() any {
	last := len(*h) - 1
	en := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	en.index = -1
	return en
}
