package export

import (
	"container/list"
)

// budget limits the bytes of a set of entries, and chooses entries to evict. It chooses the oldest entries of the owner with
// the most evictable bytes. So an owner with many bytes cannot displace other owners. Entries in flight count but cannot be
// evicted.
type budget struct {
	bound, used    int64 // bytes
	limit, entries int64 // numbers of entries; a limit of 0 means no limit
	inFlight       int64 // bytes of the entries in flight
	owners         map[string]*owner
}

// owner is one owner's share of a budget.
type owner struct {
	bytes   int64     // bytes of the evictable entries
	entries list.List // list of *entry, oldest first; includes entries in flight
}

func newBudget(bound int64) *budget {
	return &budget{bound: bound, owners: map[string]*owner{}}
}

// fits reports whether size bytes fit after all evictable entries are evicted.
func (b *budget) fits(size int64) bool { return size <= b.bound-b.inFlight }

// over reports whether the bounds are exceeded, or would be exceeded with one more entry of extra bytes. If extra is 0, no entry
// is added.
func (b *budget) over(extra int64) bool {
	more := int64(0)
	if extra > 0 {
		more = 1
	}
	return b.used+extra > b.bound || (b.limit > 0 && b.entries+more > b.limit)
}

// acquire adds en, which is newer than all other entries. The caller then evicts entries while over returns true.
func (b *budget) acquire(en *entry) {
	o := b.owners[en.Owner]
	if o == nil {
		o = &owner{}
		b.owners[en.Owner] = o
	}
	en.budget, en.place = b, o.entries.PushBack(en)
	o.bytes += en.size
	b.used += en.size
	b.entries++
}

// release removes en from the budget.
func (b *budget) release(en *entry) {
	b.setInFlight(en, false)
	o := b.owners[en.Owner]
	o.entries.Remove(en.place)
	o.bytes -= en.size
	if o.entries.Len() == 0 {
		delete(b.owners, en.Owner)
	}
	en.budget, en.place = nil, nil
	b.used -= en.size
	b.entries--
}

// setInFlight sets whether en is in flight.
func (b *budget) setInFlight(en *entry, is bool) {
	if en.inFlight == is {
		return
	}
	size := en.size
	if !is {
		size = -size
	}
	en.inFlight = is
	b.inFlight += size
	b.owners[en.Owner].bytes -= size
}

// victim returns the next entry to evict, or nil if there is none. If several owners have the same number of bytes, victim
// chooses the oldest of their entries.
func (b *budget) victim() (victim *entry) {
	most := int64(0)
	for _, o := range b.owners {
		if o.bytes == 0 || o.bytes < most {
			continue
		}
		if en := o.oldest(); o.bytes > most || en.seq < victim.seq {
			most, victim = o.bytes, en
		}
	}
	return victim
}

// oldest returns the owner's oldest evictable entry. Such an entry exists while bytes is not 0.
func (o *owner) oldest() *entry {
	place := o.entries.Front()
	for place.Value.(*entry).inFlight {
		place = place.Next()
	}
	return place.Value.(*entry)
}

// each visits all entries, including entries in flight. Within an owner, the oldest entry comes first. visit can release its
// entry.
func (b *budget) each(visit func(*entry)) {
	for _, o := range b.owners {
		for place := o.entries.Front(); place != nil; {
			next := place.Next() // a removed element has no next element
			visit(place.Value.(*entry))
			place = next
		}
	}
}
