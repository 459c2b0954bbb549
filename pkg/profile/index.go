package profile

import (
	"hash/maphash"
	"math/bits"
)

// index is a hash table that finds the entries of another table. It stores only hashes and the numbers of entries:
// the caller of find compares keys with the entries in its own table. So it takes a fraction of a map's memory and
// time, and the key of an entry may be spread over several places. It is split into parts that grow one at a time,
// so that no row has to wait until all of it has been copied.
type index struct{ table[slot] }

type slot struct {
	hash  uint32
	entry uint32 // the number of the entry plus 1; 0 is an empty slot
}

func (s slot) taken() bool  { return s.entry != 0 }
func (s slot) home() uint32 { return s.hash }

// table is what index and keyTable have in common. Looking up is not: it is what each row does.
type table[S interface {
	taken() bool
	home() uint32 // the hash
}] struct {
	parts *[parts]part[S] // nil while there are no entries
}

type part[S any] struct {
	slots []S // their number is 0 or a power of two; at most three quarters are taken
	used  int
}

// of returns the slots of a hash's part, if there are any.
func (t *table[S]) of(hash uint32) []S {
	if t.parts == nil {
		return nil
	}
	return t.parts[partOf(hash)].slots
}

func (t *table[S]) put(s S) {
	if t.parts == nil {
		t.parts = new([parts]part[S])
	}
	p := &t.parts[partOf(s.home())]
	into := func(s S) {
		mask := uint32(len(p.slots) - 1)
		i := s.home() & mask
		for p.slots[i].taken() {
			i = (i + 1) & mask
		}
		p.slots[i] = s
	}
	if 4*(p.used+1) > 3*len(p.slots) {
		old := p.slots
		p.slots = make([]S, max(minSlots, 2*len(old)))
		for _, s := range old {
			if s.taken() {
				into(s)
			}
		}
	}
	into(s)
	p.used++
}

const (
	partBits = 6
	parts    = 1 << partBits
	minSlots = 8 // of a part
)

// fold turns a hash into the 32 bits that an index works with. It multiplies and takes high bits of the product,
// because the low bits of what hasher.mix returns can follow a pattern.
func fold(hash uint64) uint32 { return uint32(hash * 0x9e3779b97f4a7c15 >> 32) }

// partOf returns the part that a hash belongs to, by its high bits. The low ones choose the slot in the part.
func partOf(hash uint32) uint32 { return hash >> (32 - partBits) }

// find returns the entry with this hash for which same returns true.
func (x *index) find(hash uint64, same func(entry uint32) bool) (entry uint32, ok bool) {
	h := fold(hash)
	slots := x.of(h)
	if len(slots) == 0 {
		return 0, false
	}
	mask := uint32(len(slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		switch s := slots[i&mask]; {
		case s.entry == 0:
			return 0, false
		case s.hash == h && same(s.entry-1):
			return s.entry - 1, true
		}
	}
}

// add adds an entry under a hash. The caller makes sure that it is not there yet.
func (x *index) add(hash uint64, entry uint32) { x.put(slot{fold(hash), entry + 1}) }

// keyTable is a hash table from the keys of rows to numbers. Keys are hashes already, made with a secret that a
// workload does not know. They are folded once more because tests use consecutive numbers as keys.
type keyTable struct{ table[keySlot] }

type keySlot struct {
	low, high uint32 // the key's halves: a uint64 would be aligned to 8 bytes and make the slot a third larger
	value     uint32 // what the key stands for, plus 1; 0 is an empty slot
}

func (s keySlot) taken() bool  { return s.value != 0 }
func (s keySlot) home() uint32 { return fold(uint64(s.high)<<32 | uint64(s.low)) }

func keyOf(key uint64, value uint32) keySlot { return keySlot{uint32(key), uint32(key >> 32), value} }

func (t *keyTable) get(key uint64) (value uint32, ok bool) {
	k := keyOf(key, 0)
	h := k.home()
	slots := t.of(h)
	if len(slots) == 0 {
		return 0, false
	}
	mask := uint32(len(slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		switch s := &slots[i&mask]; {
		case s.value == 0:
			return 0, false
		case s.low == k.low && s.high == k.high:
			return s.value - 1, true
		}
	}
}

// add adds a key that is not in the table.
func (t *keyTable) add(key uint64, value uint32) { t.put(keyOf(key, value+1)) }

// remove removes a key and reports whether it was there.
func (t *keyTable) remove(key uint64) bool {
	if _, ok := t.get(key); !ok {
		return false
	}
	k := keyOf(key, 0)
	p := &t.parts[partOf(k.home())]
	slots, mask := p.slots, uint32(len(p.slots)-1)
	i := k.home() & mask
	for slots[i].low != k.low || slots[i].high != k.high {
		i = (i + 1) & mask
	}
	// Close the gap at i, or a search across it would end too early. Move back the slots that follow without a gap, but none
	// before the place where its own search begins.
	for j := (i + 1) & mask; slots[j].value != 0; j = (j + 1) & mask {
		if home := slots[j].home() & mask; (j-home)&mask >= (j-i)&mask {
			slots[i] = slots[j]
			i = j
		}
	}
	slots[i] = keySlot{}
	p.used--
	return true
}

// hasher makes the hashes for an index. It has a random key, because the workload chooses its names and must not be
// able to make them collide.
type hasher struct {
	seed   maphash.Seed
	k1, k2 uint64
}

func newHasher() hasher {
	seed := maphash.MakeSeed()
	return hasher{seed, maphash.Comparable(seed, uint64(1)), maphash.Comparable(seed, uint64(2))}
}

// mix combines v with a hash. It multiplies the two, each xored with a part of the key, and xors the halves of the 128-bit
// product.
func (h *hasher) mix(hash, v uint64) uint64 {
	hi, lo := bits.Mul64(hash^h.k1, v^h.k2)
	return hi ^ lo
}

// pair hashes two numbers.
func (h *hasher) pair(a, b uint32) uint64 {
	return h.mix(h.k2, uint64(a)<<32|uint64(b))
}

func (h *hasher) text(s string) uint64 { return maphash.String(h.seed, s) }

// frame hashes a frame. mapping and frameType are the numbers that its mapping and type have in their tables.
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
