package profile

import (
	"hash/maphash"
	"math/bits"
)

// index finds entries of another table by a hash. It only stores hashes and entry numbers. The caller of find compares keys
// with its own table, so the parts of a key can be in several places. If a hash is taken, the next free hash is used.
type index map[uint32]uint32

// fold reduces a hash to 32 bits. It uses high bits of a product, because the low bits from hasher.mix can follow a pattern.
func fold(hash uint64) uint32 { return uint32(hash * 0x9e3779b97f4a7c15 >> 32) }

// find returns the entry with this hash for which same returns true.
func (x index) find(hash uint64, same func(entry uint32) bool) (entry uint32, ok bool) {
	for h := fold(hash); ; h++ {
		if entry, ok = x[h]; !ok || same(entry) {
			return entry, ok
		}
	}
}

// add adds an entry under a hash. The entry must not exist yet.
func (x index) add(hash uint64, entry uint32) {
	h := fold(hash)
	for _, taken := x[h]; taken; _, taken = x[h] {
		h++
	}
	x[h] = entry
}

// hasher computes the hashes for an index. It uses a random key, because workloads choose their names and must not be able to
// cause collisions.
type hasher struct {
	seed   maphash.Seed
	k1, k2 uint64
}

func newHasher() hasher {
	seed := maphash.MakeSeed()
	return hasher{seed, maphash.Comparable(seed, uint64(1)), maphash.Comparable(seed, uint64(2))}
}

// mix combines v with a hash. It multiplies both after an XOR with a part of the key, and combines the halves of the 128-bit
// product by XOR.
func (h *hasher) mix(hash, v uint64) uint64 {
	hi, lo := bits.Mul64(hash^h.k1, v^h.k2)
	return hi ^ lo
}

// pair hashes two numbers.
func (h *hasher) pair(a, b uint32) uint64 {
	return h.mix(h.k2, uint64(a)<<32|uint64(b))
}

func (h *hasher) text(s string) uint64 { return maphash.String(h.seed, s) }

// frame hashes a frame. mapping and frameType are entry numbers in their tables.
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
