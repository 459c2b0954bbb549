package export

import (
	"container/heap"
	"time"
)

// sendQueue has the waiting entries in two lists: ready ones, the oldest first, and delayed ones.
// An entry in flight is in neither.
type sendQueue struct {
	ready oldestFirst
	// delayed has the entries that failed lately, which are few, so that a scan is cheap. Only while the clock is behind
	// it has all of them.
	delayed map[*entry]struct{}
}

func newSendQueue() *sendQueue { return &sendQueue{delayed: map[*entry]struct{}{}} }

// push adds en, which may be sent after en.notBefore.
func (q *sendQueue) push(en *entry, now time.Time) {
	if en.notBefore.After(now) {
		q.delayed[en] = struct{}{}
		return
	}
	heap.Push(&q.ready, en)
}

// promote moves the due entries to the ready ones.
func (q *sendQueue) promote(now time.Time) {
	for en := range q.delayed {
		if !en.notBefore.After(now) {
			delete(q.delayed, en)
			heap.Push(&q.ready, en)
		}
	}
}

// due is the time of the first delayed entry, or zero if there is none.
func (q *sendQueue) due() (next time.Time) {
	for en := range q.delayed {
		if next.IsZero() || en.notBefore.Before(next) {
			next = en.notBefore
		}
	}
	return next
}

// hurry makes waiting entries due, unless the receiver requested the wait or the data is ahead of the clock.
func (q *sendQueue) hurry() {
	for en := range q.delayed {
		if !en.mustWait {
			delete(q.delayed, en)
			heap.Push(&q.ready, en)
		}
	}
}

// oldest is the oldest ready entry, or nil.
func (q *sendQueue) oldest() *entry {
	if len(q.ready) == 0 {
		return nil
	}
	return q.ready[0]
}

// remove takes en out, wherever it waits.
func (q *sendQueue) remove(en *entry) {
	if en.index >= 0 {
		heap.Remove(&q.ready, en.index)
	}
	delete(q.delayed, en)
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
