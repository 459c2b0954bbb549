package export

import (
	"container/heap"
	"time"
)

// entryOverhead is what a held message costs beside its body; it counts in the queue's bytes, so
// that a flood of tiny messages is bounded too.
const entryOverhead = 512

// entry is a message that the exporter holds. All fields but Message, seq and size are guarded by
// Exporter.mu. Body is nil while it is only on disk.
type entry struct {
	Message
	seq  uint64 // order of arrival; with storage, the name of its file
	size int64  // bytes it is charged with, fixed

	budget  *budget // that it is charged to; nil once it has left
	onDisk  bool
	retry   backoffState
	tries   int
	firstAt time.Time // of the first try
	ready   time.Time // not to be sent before this
	asked   bool      // ready is not for this side to cut short: the receiver asked for it, or the clock
	early   bool      // it waits for the clock

	inSend, inOwner int // positions in heaps, -1 outside
}

func newEntry(seq uint64, m Message) *entry {
	// Without what they have of the monotonic clock, which stands still while a machine is suspended and does
	// not follow when the clock is set: ages are those that a receiver sees.
	m.Start, m.End = m.Start.Round(0), m.End.Round(0)
	return &entry{
		Message: m, seq: seq, size: int64(len(m.Body)+len(m.Owner)) + entryOverhead,
		inSend: -1, inOwner: -1,
	}
}

// from is the time that receivers judge a request by: its start.
func (en *entry) from() time.Time {
	if en.Start.IsZero() {
		return en.End
	}
	return en.Start
}

// entryHeap is a heap of entries that know their position in it.
type entryHeap struct {
	items []*entry
	less  func(a, b *entry) bool
	pos   func(*entry) *int
}

func (h *entryHeap) Len() int           { return len(h.items) }
func (h *entryHeap) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }
func (h *entryHeap) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	*h.pos(h.items[i]), *h.pos(h.items[j]) = i, j
}

func (h *entryHeap) Push(x any) {
	en := x.(*entry)
	*h.pos(en) = len(h.items)
	h.items = append(h.items, en)
}

func (h *entryHeap) Pop() any {
	last := len(h.items) - 1
	en := h.items[last]
	h.items[last] = nil
	h.items = h.items[:last]
	*h.pos(en) = -1
	return en
}

func (h *entryHeap) top() *entry {
	if len(h.items) == 0 {
		return nil
	}
	return h.items[0]
}

func bySeq(a, b *entry) bool   { return a.seq < b.seq }
func byReady(a, b *entry) bool { return a.ready.Before(b.ready) }

// sendQueue orders the entries that wait to be sent: those that may go now by age, those that
// wait for a retry by the time when they may. An entry in flight is in neither.
type sendQueue struct {
	now, later entryHeap
}

func newSendQueue() *sendQueue {
	pos := func(en *entry) *int { return &en.inSend }
	return &sendQueue{now: entryHeap{less: bySeq, pos: pos}, later: entryHeap{less: byReady, pos: pos}}
}

// push adds en, to be sent when en.ready has come.
func (q *sendQueue) push(en *entry, now time.Time) {
	if en.ready.After(now) {
		heap.Push(&q.later, en)
		return
	}
	heap.Push(&q.now, en)
}

// promote moves those whose time has come to where they can be sent.
func (q *sendQueue) promote(now time.Time) {
	for en := q.later.top(); en != nil && !en.ready.After(now); en = q.later.top() {
		heap.Pop(&q.later)
		heap.Push(&q.now, en)
	}
}

// hurry makes all waiting entries sendable now, except those whose wait is not for this side to cut short.
func (q *sendQueue) hurry() {
	var keep []*entry
	for q.later.Len() > 0 {
		en := heap.Pop(&q.later).(*entry)
		if en.asked {
			keep = append(keep, en)
			continue
		}
		heap.Push(&q.now, en)
	}
	for _, en := range keep {
		heap.Push(&q.later, en)
	}
}

func (q *sendQueue) pop() *entry { return heap.Pop(&q.now).(*entry) }

// remove takes en out, wherever it waits.
func (q *sendQueue) remove(en *entry) {
	if en.inSend < 0 {
		return
	}
	if h := &q.now; en.inSend < h.Len() && h.items[en.inSend] == en {
		heap.Remove(h, en.inSend)
		return
	}
	heap.Remove(&q.later, en.inSend)
}

// budget bounds the bytes of a set of entries and chooses, when they are too many, which to give
// up: the oldest of the owner with the most bytes that can be given up, so that a loud owner
// cannot push out the others. Entries in flight are charged but cannot be given up.
type budget struct {
	bound, used int64
	entries     int64
	limit       int64 // of entries; 0: none
	pinned      int64 // bytes that cannot be given up
	owners      map[string]*owner
	heap        ownerHeap
}

// owner is one owner's share of a budget.
type owner struct {
	name  string
	bytes int64 // that can be given up
	all   entryHeap
	pos   int
}

func newBudget(bound int64) *budget {
	return &budget{bound: bound, owners: map[string]*owner{}}
}

// fits tells whether size bytes could be held if everything that can be given up was.
func (b *budget) fits(size int64) bool { return size <= b.bound-b.pinned }

// over tells whether more is charged than the bounds allow, or would be with one more entry of
// extra bytes; 0 asks for what is charged now.
func (b *budget) over(extra int64) bool {
	more := int64(0)
	if extra > 0 {
		more = 1
	}
	return b.used+extra > b.bound || (b.limit > 0 && b.entries+more > b.limit)
}

// charge adds en to the budget; it can be given up from now on. The caller then evicts while the
// budget is over.
func (b *budget) charge(en *entry) {
	en.budget = b
	b.used += en.size
	b.entries++
	b.pinned += en.size
	b.unpin(en)
}

// release takes en out of the budget.
func (b *budget) release(en *entry) {
	if en.inOwner >= 0 {
		b.pin(en)
	}
	b.pinned -= en.size
	b.used -= en.size
	b.entries--
	en.budget = nil
}

// pin keeps en from being given up: it is in flight.
func (b *budget) pin(en *entry) {
	o := b.owners[en.Owner]
	heap.Remove(&o.all, en.inOwner)
	o.bytes -= en.size
	b.pinned += en.size
	if o.all.Len() == 0 {
		heap.Remove(&b.heap, o.pos)
		delete(b.owners, o.name)
		return
	}
	heap.Fix(&b.heap, o.pos)
}

// unpin undoes pin.
func (b *budget) unpin(en *entry) {
	b.pinned -= en.size
	o := b.owners[en.Owner]
	if o == nil {
		o = &owner{name: en.Owner, all: entryHeap{less: bySeq, pos: func(en *entry) *int { return &en.inOwner }}}
		b.owners[en.Owner] = o
		heap.Push(&b.heap, o)
	}
	heap.Push(&o.all, en)
	o.bytes += en.size
	heap.Fix(&b.heap, o.pos)
}

// victim is the entry to give up next, nil if there is none.
func (b *budget) victim() *entry {
	if len(b.heap) == 0 {
		return nil
	}
	return b.heap[0].all.top()
}

// ownerHeap has the owner with the most bytes on top; of equals, the one with the oldest entry.
type ownerHeap []*owner

func (h ownerHeap) Len() int { return len(h) }
func (h ownerHeap) Less(i, j int) bool {
	if h[i].bytes != h[j].bytes {
		return h[i].bytes > h[j].bytes
	}
	a, b := h[i].all.top(), h[j].all.top()
	return a != nil && b != nil && a.seq < b.seq
}

func (h ownerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *ownerHeap) Push(x any) {
	o := x.(*owner)
	o.pos = len(*h)
	*h = append(*h, o)
}

func (h *ownerHeap) Pop() any {
	old := *h
	last := len(old) - 1
	o := old[last]
	old[last] = nil
	*h = old[:last]
	return o
}
