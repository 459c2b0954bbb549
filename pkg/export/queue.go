package export

import (
	"cmp"
	"slices"
	"time"
)

// sendQueue holds the waiting entries in two sets: ready and delayed. Entries in flight are in neither set.
type sendQueue struct {
	ready []*entry // oldest first
	// delayed contains entries that failed recently. They are few, so a scan is cheap. While the clock is slow, delayed contains
	// all entries.
	delayed map[*entry]struct{}
}

func newSendQueue() *sendQueue { return &sendQueue{delayed: map[*entry]struct{}{}} }

func bySeq(a, b *entry) int { return cmp.Compare(a.seq, b.seq) }

// push adds en, which can be sent after en.notBefore.
func (q *sendQueue) push(en *entry, now time.Time) {
	if en.notBefore.After(now) {
		q.delayed[en] = struct{}{}
		return
	}
	at, _ := slices.BinarySearchFunc(q.ready, en, bySeq)
	q.ready = slices.Insert(q.ready, at, en)
}

// promote moves the due entries to the ready set.
func (q *sendQueue) promote(now time.Time) {
	q.makeReady(func(en *entry) bool { return !en.notBefore.After(now) })
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
	q.makeReady(func(en *entry) bool { return !en.mustWait })
}

// makeReady moves the chosen delayed entries to the ready set. It sorts once, because it can move all entries.
func (q *sendQueue) makeReady(chosen func(*entry) bool) {
	before := len(q.ready)
	for en := range q.delayed {
		if chosen(en) {
			delete(q.delayed, en)
			q.ready = append(q.ready, en)
		}
	}
	if len(q.ready) > before {
		slices.SortFunc(q.ready, bySeq)
	}
}

// oldest returns the oldest ready entry, or nil.
func (q *sendQueue) oldest() *entry {
	if len(q.ready) == 0 {
		return nil
	}
	return q.ready[0]
}

// remove removes en from both sets. The oldest entry is removed most often, so that case moves no other entries.
func (q *sendQueue) remove(en *entry) {
	delete(q.delayed, en)
	switch at, found := slices.BinarySearchFunc(q.ready, en, bySeq); {
	case found && at == 0:
		q.ready[0] = nil // otherwise, the array would keep the entry
		q.ready = q.ready[1:]
	case found:
		q.ready = slices.Delete(q.ready, at, at+1)
	}
}
