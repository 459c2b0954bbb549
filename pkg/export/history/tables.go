package history

import (
	"encoding/binary"
	"errors"
	"slices"
)

// kind identifies a table in a segment's dictionary.
type kind uint8

// number marks a field that is not a reference.
const number kind = 255

const (
	text kind = iota
	attribute
	set // attributes of a sample, a location, a mapping or a profile
	function
	mapping
	location
	link
	resource // a ResourceProfiles without its profiles
	scope    // a ScopeProfiles without its profiles
	measure  // type, unit and period of a profile
	kinds
)

// shapes describes each table's entries: the fixed fields, the fields that repeat until the end, and whether the rest is bytes.
// An entry is a sequence of varints. Its stored form is also its key.
var shapes = [kinds]struct {
	fixed, repeated []kind
	rest            bool
}{
	text:      {rest: true},
	attribute: {fixed: []kind{text, text}, rest: true},            // key, unit, value
	function:  {fixed: []kind{text, text, text, number}},          // name, system name, file, first line
	mapping:   {fixed: []kind{number, number, number, text, set}}, // start, limit, offset, file
	location:  {fixed: []kind{mapping, number, set}, repeated: []kind{function, number, number}},
	link:      {rest: true},
	resource:  {rest: true},
	scope:     {rest: true},
	measure:   {fixed: []kind{text, text, text, text, number, set}}, // type and unit; type and unit of the period; period
}

// errFormat is the error for a record in another format.
var errFormat = errors.New("in an unknown format")

// tables is a dictionary. Entry 0 of each table is the zero value and is not stored. A stack is a node, which consists of a
// location and the caller's node. So stacks share common callers.
type tables struct {
	entries [kinds][]string
	parents []uint32 // by node, from 1
	places  []uint32 // by node: the location
}

// entry returns entry i of a table, or "" if there is no such entry.
func (t *tables) entry(k kind, i uint32) string {
	if i == 0 || int(i) > len(t.entries[k]) {
		return ""
	}
	return t.entries[k][i-1]
}

// interned is a dictionary with an index from entries to numbers.
type interned struct {
	tables
	known [kinds]map[string]uint32
	nodes map[uint64]uint32
	bytes int64 // estimated memory
}

func newInterned() *interned {
	t := &interned{nodes: map[uint64]uint32{}}
	for k := range t.known {
		t.known[k] = map[string]uint32{}
	}
	return t
}

// entryBytes and nodeBytes are the approximate memory for an entry and a node, without their content.
const entryBytes, nodeBytes = 64, 40

func (t *interned) add(k kind, entry []byte) uint32 {
	if len(entry) == 0 {
		return 0
	}
	if i, ok := t.known[k][string(entry)]; ok {
		return i
	}
	s := string(entry)
	t.entries[k] = append(t.entries[k], s)
	i := uint32(len(t.entries[k]))
	t.known[k][s] = i
	t.bytes += int64(len(s)) + entryBytes
	return i
}

func (t *interned) set(list []int32) uint32 {
	var buf [64]byte
	b := buf[:0]
	for _, i := range list {
		b = binary.AppendUvarint(b, uint64(uint32(i)))
	}
	return t.add(set, b)
}

func (t *interned) node(parent, place uint32) uint32 {
	key := uint64(parent)<<32 | uint64(place)
	if i, ok := t.nodes[key]; ok {
		return i
	}
	t.parents, t.places = append(t.parents, parent), append(t.places, place)
	i := uint32(len(t.parents))
	t.nodes[key] = i
	t.bytes += nodeBytes
	return i
}

// translator copies entries from one dictionary to another as they are used.
type translator struct {
	from  *tables
	to    *interned
	memo  [kinds][]uint32
	nodes []uint32
}

// grow extends the translator after its source has grown.
func (t *translator) grow() {
	for k := range t.memo {
		t.memo[k] = append(t.memo[k], make([]uint32, len(t.from.entries[k])+1-len(t.memo[k]))...)
	}
	t.nodes = append(t.nodes, make([]uint32, len(t.from.parents)+1-len(t.nodes))...)
}

// of returns the target's index of entry i, and copies the entry on first use. It returns 0 if i is out of range.
func (t *translator) of(k kind, i uint32) uint32 {
	if i == 0 || int(i) >= len(t.memo[k]) {
		return 0
	}
	if known := t.memo[k][i]; known != 0 {
		return known
	}
	if k == set {
		t.memo[k][i] = t.set(t.from.setOf(i))
		return t.memo[k][i]
	}
	in := t.from.entries[k][i-1]
	out := make([]byte, 0, len(in)+8)
	fields := func(list []kind) {
		for _, f := range list {
			v, rest := number64(in)
			in = rest
			if f != number {
				v = uint64(t.of(f, uint32(v)))
			}
			out = binary.AppendUvarint(out, v)
		}
	}
	shape := &shapes[k]
	fields(shape.fixed)
	for len(shape.repeated) > 0 && len(in) > 0 {
		fields(shape.repeated)
	}
	if shape.rest {
		out = append(out, in...)
	}
	t.memo[k][i] = t.to.add(k, out)
	return t.memo[k][i]
}

// set returns the target's set with the source's attributes. Their order does not matter.
func (t *translator) set(list []int32) uint32 {
	ids := make([]int32, len(list))
	for i, a := range list {
		ids[i] = int32(t.of(attribute, uint32(a)))
	}
	slices.Sort(ids)
	return t.to.set(ids)
}

// node returns the target's node. A parent comes before its children, so damaged data cannot create a cycle.
func (t *translator) node(i uint32) uint32 {
	if i == 0 || int(i) >= len(t.nodes) {
		return 0
	}
	if known := t.nodes[i]; known != 0 {
		return known
	}
	parent := uint32(0)
	if p := t.from.parents[i-1]; p < i {
		parent = t.node(p)
	}
	t.nodes[i] = t.to.node(parent, t.of(location, t.from.places[i-1]))
	return t.nodes[i]
}

// number64 reads a varint from the start of s. If there is none, it returns 0 and "".
func number64(s string) (uint64, string) {
	v := uint64(0)
	for i := 0; i < len(s) && i < binary.MaxVarintLen64; i++ {
		v |= uint64(s[i]&0x7f) << (7 * i)
		if s[i] < 0x80 {
			return v, s[i+1:]
		}
	}
	return 0, ""
}
