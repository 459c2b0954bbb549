package otlpcheck

import (
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/proto"
)

// canonAt returns the canonical index. It returns an index out of range unchanged.
func canonAt(table []int32, i int32) int32 {
	if i < 0 || int(i) >= len(table) {
		return i
	}
	return table[i]
}

// finish completes the check of a table: it begins with its zero value, and has no duplicates. finish also fills the table's
// canon. key must give equal keys for equal elements.
func finish[T any](c *checker, table string, elements []T, key func(T) string) {
	if len(elements) == 0 {
		c.Fail(table, RuleTablePresent, "it is empty")
		return
	}
	size := 0
	switch zero := any(elements[0]).(type) {
	case string:
		size = len(zero)
	case proto.Message:
		size = proto.Size(zero)
	}
	if size != 0 {
		c.Fail(table+"[0]", RuleTableZero, "it has %d bytes", size)
	}
	canon := make([]int32, len(elements))
	first := make(map[string]int32, len(elements))
	for i, element := range elements {
		k := key(element)
		j, dup := first[k]
		if !dup {
			j = int32(i)
			first[k] = j
		} else {
			c.Fail(at(table, i), RuleDuplicate, "equal to element %d", j)
		}
		canon[i] = j
	}
	c.canon[table], c.used[table] = canon, make([]bool, len(elements))
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
	return k.list(nil, s)
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
