package export

import (
	"container/heap"
	"time"
)

// sendQueue holds the waiting entries in two sets: ready and delayed. Entries in flight are in neither set.
type sendQueue struct {
	ready oldestFirst
	// delayed contains entries that failed recently. They are few, so a scan is cheap. While the clock is slow, delayed contains
	// all entries.
	delayed map[*entry]struct{}
}

func newSendQueue() *sendQueue { return &sendQueue{delayed: map[*entry]struct{}{}} }

// push adds en, which can be sent after en.notBefore.
func (q *sendQueue) push(en *entry, now time.Time) {
	if en.notBefore.After(now) {
		q.delayed[en] = struct{}{}
		return
	}
	heap.Push(&q.ready, en)
}

// promote moves the due entries to the ready set.
func (q *sendQueue) promote(now time.Time) {
	for en := range q.delayed {
		if !en.notBefore.After(now) {
			delete(q.delayed, en)
			heap.Push(&q.ready, en)
		}
	}
}

// due returns when the first delayed entry becomes ready, or zero if there is none.
func (q *sendQueue) due() (next time.Time) {
	for en := range q.delayed {
		if next.IsZero() || en.notBefore.Before(next) {
			next = en.notBefore
		}
	}
	return next
}

// hurry makes delayed entries ready, unless the receiver requested the wait or the data is ahead of the clock.
func (q *sendQueue) hurry() {
	for en := range q.delayed {
		if !en.mustWait {
			delete(q.delayed, en)
			heap.Push(&q.ready, en)
		}
	}
}

// oldest returns the oldest ready entry, or nil.
func (q *sendQueue) oldest() *entry {
	if len(q.ready) == 0 {
		return nil
	}
	return q.ready[0]
}

// remove removes en from both sets.
func (q *sendQueue) remove(en *entry) {
	if en.index >= 0 {
		heap.Remove(&q.ready, en.index)
	}
	delete(q.delayed, en)
}

// oldestFirst is a heap of entries in order of arrival. Each entry stores its index in the heap.
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
