package otlpcheck

import (
	"encoding/binary"
	"slices"
)

// canonAt returns the canonical index. It returns an index out of range unchanged.
func canonAt(table []int32, i int32) int32 {
	if i < 0 || int(i) >= len(table) {
		return i
	}
	return table[i]
}

// canonize fills canon and reports duplicates. key must give equal keys for equal elements.
func (c *checker) canonize(path string, n int, key func(i int) string) []int32 {
	canon := make([]int32, n)
	first := make(map[string]int32, n)
	for i := range n {
		k := key(i)
		j, dup := first[k]
		if !dup {
			j = int32(i)
			first[k] = j
		} else {
			c.fail(at(path, i), RuleDuplicate, "equal to element %d", j)
		}
		canon[i] = j
	}
	return canon
}

type keyBuilder struct{ b []byte }

func (k *keyBuilder) num(n ...uint64) *keyBuilder {
	for _, x := range n {
		k.b = binary.AppendUvarint(k.b, x)
	}
	return k
}

func (k *keyBuilder) bytes(b []byte) *keyBuilder {
	k.num(uint64(len(b)))
	k.b = append(k.b, b...)
	return k
}

// set adds canonical indices in sorted order, because they form a set.
func (k *keyBuilder) set(canon, indices []int32) *keyBuilder {
	s := make([]int32, 0, len(indices))
	for _, i := range indices {
		s = append(s, canonAt(canon, i))
	}
	slices.Sort(s)
	k.num(uint64(len(s)))
	for _, i := range s {
		k.num(uint64(uint32(i)))
	}
	return k
}

// list adds canonical indices in their order.
func (k *keyBuilder) list(canon, indices []int32) *keyBuilder {
	k.num(uint64(len(indices)))
	for _, i := range indices {
		k.num(uint64(uint32(canonAt(canon, i))))
	}
	return k
}

func (k *keyBuilder) String() string { return string(k.b) }
