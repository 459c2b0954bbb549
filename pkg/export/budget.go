package export

import (
	"container/list"
)

// budget bounds the bytes of a set of entries, and chooses the entries to give up. It takes the oldest of the owner with the most
// removable bytes, so a loud owner cannot push out the others. Entries in flight count, but cannot be given up.
type budget struct {
	bound, used    int64 // bytes
	limit, entries int64 // numbers of entries; a limit of 0 is none
	inFlight       int64 // bytes of those in flight
	owners         map[string]*owner
}

// owner is one owner's share of a budget.
type owner struct {
	bytes   int64     // of the entries that can be given up
	entries list.List // of *entry, the oldest first, those in flight too
}

func newBudget(bound int64) *budget {
	return &budget{bound: bound, owners: map[string]*owner{}}
}

// fits reports whether size bytes fit if everything removable is removed.
func (b *budget) fits(size int64) bool { return size <= b.bound-b.inFlight }

// over reports whether the bounds are exceeded, or would be with one more entry of extra bytes. Extra is 0 for the current state.
func (b *budget) over(extra int64) bool {
	more := int64(0)
	if extra > 0 {
		more = 1
	}
	return b.used+extra > b.bound || (b.limit > 0 && b.entries+more > b.limit)
}

// acquire takes room for en, which is younger than all other entries. The caller then gives up others while the
// budget is over.
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

// release gives en's room back.
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

// setInFlight sets whether en is in flight. Entries in flight cannot be given up.
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

// victim is the entry to give up next, nil if there is none. Of owners with the same number of bytes, it is the
// one with the oldest entry.
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

// oldest is the owner's oldest entry that can be given up. There is one while bytes is not 0.
func (o *owner) oldest() *entry {
	place := o.entries.Front()
	for place.Value.(*entry).inFlight {
		place = place.Next()
	}
	return place.Value.(*entry)
}

// each visits all entries, those in flight too, in no order but by age within an owner. The visitor may release the
// entry that it is shown.
func (b *budget) each(visit func(*entry)) {
	for _, o := range b.owners {
		for place := o.entries.Front(); place != nil; {
			next := place.Next() // a removed place has none
			visit(place.Value.(*entry))
			place = next
		}
	}
}
