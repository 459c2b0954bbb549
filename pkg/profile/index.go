package profile

import (
	"hash/maphash"
	"math/bits"
)

// index finds the entries of a table by their hashes. It holds neither keys nor entries: who asks
// compares with the table. That makes it a fraction of a map in memory and time, and lets a key be
// bytes that are parts of several entries.
type index struct {
	slots []slot // 0 or a power of two; at most three quarters are taken
	used  int
}

type slot struct {
	hash  uint32
	entry uint32 // + 1, 0: empty
}

const minSlots = 16

// find returns the entry with this hash that same tells to be the one.
func (x *index) find(hash uint64, same func(entry uint32) bool) (entry uint32, ok bool) {
	if len(x.slots) == 0 {
		return 0, false
	}
	h := uint32(hash)
	mask := uint32(len(x.slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		switch s := x.slots[i&mask]; {
		case s.entry == 0:
			return 0, false
		case s.hash == h && same(s.entry-1):
			return s.entry - 1, true
		}
	}
}

// add makes an entry known by a hash.
func (x *index) add(hash uint64, entry uint32) {
	if 4*(x.used+1) > 3*len(x.slots) {
		old := x.slots
		x.slots = make([]slot, max(minSlots, 2*len(old)))
		for _, s := range old {
			if s.entry != 0 {
				x.put(s)
			}
		}
	}
	x.put(slot{uint32(hash), entry + 1})
	x.used++
}

func (x *index) put(s slot) {
	mask := uint32(len(x.slots) - 1)
	i := s.hash & mask
	for x.slots[i].entry != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = s
}

// keyTable finds what a row's key stands for. Keys are hashes with a secret that whoever makes rows
// does not have; home is for those that are not, as in tests, where they are numbers in a row.
type keyTable struct {
	slots []keySlot // as of an index
	used  int
}

type keySlot struct {
	low, high uint32 // of the key: as one number they would take room for alignment
	value     uint32 // + 1, 0: empty. It is below 1<<32 - 1.
}

func (s *keySlot) home() uint32 {
	return uint32((uint64(s.high)<<32 | uint64(s.low)) * 0x9e3779b97f4a7c15 >> 32)
}

func keyOf(key uint64, value uint32) keySlot { return keySlot{uint32(key), uint32(key >> 32), value} }

func (t *keyTable) get(key uint64) (value uint32, ok bool) {
	if len(t.slots) == 0 {
		return 0, false
	}
	k := keyOf(key, 0)
	mask := uint32(len(t.slots) - 1)
	for i := k.home() & mask; ; i = (i + 1) & mask {
		switch s := &t.slots[i&mask]; {
		case s.value == 0:
			return 0, false
		case s.low == k.low && s.high == k.high:
			return s.value - 1, true
		}
	}
}

// add makes a key known that is not.
func (t *keyTable) add(key uint64, value uint32) {
	if 4*(t.used+1) > 3*len(t.slots) {
		old := t.slots
		t.slots = make([]keySlot, max(minSlots, 2*len(old)))
		for _, s := range old {
			if s.value != 0 {
				t.put(s)
			}
		}
	}
	t.put(keyOf(key, value+1))
	t.used++
}

func (t *keyTable) put(s keySlot) {
	mask := uint32(len(t.slots) - 1)
	i := s.home() & mask
	for t.slots[i].value != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = s
}

// remove forgets a key and tells whether it was known.
func (t *keyTable) remove(key uint64) bool {
	if len(t.slots) == 0 {
		return false
	}
	k := keyOf(key, 0)
	mask := uint32(len(t.slots) - 1)
	i := k.home() & mask
	for ; t.slots[i].value == 0 || t.slots[i].low != k.low || t.slots[i].high != k.high; i = (i + 1) & mask {
		if t.slots[i].value == 0 {
			return false
		}
	}
	// What follows without a gap moves up, unless it would come before where it is looked for.
	for j := (i + 1) & mask; t.slots[j].value != 0; j = (j + 1) & mask {
		if home := t.slots[j].home() & mask; (j-home)&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = keySlot{}
	t.used--
	return true
}

// hasher hashes what tables are looked up by. It is keyed: names are the workload's, which must not
// be able to make them collide.
type hasher struct {
	seed   maphash.Seed
	k1, k2 uint64
}

func newHasher() hasher {
	seed := maphash.MakeSeed()
	return hasher{seed, maphash.Comparable(seed, uint64(1)), maphash.Comparable(seed, uint64(2))}
}

// mix adds v to h by a multiplication with a 128-bit product, whose halves are folded.
func (h *hasher) mix(hash, v uint64) uint64 {
	hi, lo := bits.Mul64(hash^h.k1, v^h.k2)
	return hi ^ lo
}

// pair hashes two numbers.
func (h *hasher) pair(a, b uint32) uint64 {
	return h.mix(h.k2, uint64(a)<<32|uint64(b))
}

func (h *hasher) text(s string) uint64 { return maphash.String(h.seed, s) }

// frame hashes a frame with what its mapping and type have become.
func (h *hasher) frame(f *Frame, mapping, frameType uint32) uint64 {
	v := h.mix(h.text(f.Name), uint64(mapping)<<32|uint64(frameType))
	v = h.mix(v, f.Address)
	if f.File != "" || f.Line != 0 {
		v = h.mix(h.mix(v, uint64(f.Line)), h.text(f.File))
	}
	return v
}

func (h *hasher) attribute(key string, v *Value) uint64 {
	n := h.mix(h.text(key), uint64(v.kind))
	n = h.mix(n, v.num)
	if v.str != "" {
		n = h.mix(n, h.text(v.str))
	}
	return n
}

func (h *hasher) sample(s *sample) uint64 {
	return h.mix(h.pair(s.resource, s.stack), uint64(s.attrs)<<32|uint64(s.link))
}

// list hashes a list of indices, two at a time.
func (h *hasher) list(list []uint32) uint64 {
	n := h.k2 + uint64(len(list))
	for ; len(list) > 1; list = list[2:] {
		n = h.mix(n, uint64(list[0])<<32|uint64(list[1]))
	}
	if len(list) == 1 {
		n = h.mix(n, uint64(list[0]))
	}
	return n
}
