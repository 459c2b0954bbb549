package history

import (
	"encoding/binary"
	"errors"
	"slices"
)

// A kind is one of the tables of a segment's dictionary.
type kind uint8

// number stands for a field that is no reference.
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
	measure  // what a profile measures
	kinds
)

// shapes are the fields of the entries: common ones, ones that repeat until the end, and whether the rest is bytes. Entries are
// sequences of varints. So an entry is its own key, and is compared in its stored form.
var shapes = [kinds]struct {
	fixed, repeated []kind
	rest            bool
}{
	text:      {rest: true},
	attribute: {fixed: []kind{text, text}, rest: true}, // key, unit, value
	set:       {repeated: []kind{attribute}},
	function:  {fixed: []kind{text, text, text, number}},          // name, system name, file, first line
	mapping:   {fixed: []kind{number, number, number, text, set}}, // start, limit, offset, file
	location:  {fixed: []kind{mapping, number, set}, repeated: []kind{function, number, number}},
	link:      {rest: true},
	resource:  {rest: true},
	scope:     {rest: true},
	measure:   {fixed: []kind{text, text, text, text, number, set}}, // type and unit, those of the period, period
}

// errFormat is the error for a record in another format.
var errFormat = errors.New("not in this format")

// tables is a dictionary. Entry 0 of each table is its zero value and not kept. A stack is a node with a location and the node of
// its caller, so stacks share common parts.
type tables struct {
	entries [kinds][]string
	parents []uint32 // by node, from 1
	places  []uint32 // by node: its location
}

// entry returns entry i of a table, empty if it has none.
func (t *tables) entry(k kind, i uint32) string {
	if i == 0 || int(i) > len(t.entries[k]) {
		return ""
	}
	return t.entries[k][i-1]
}

// interned is a dictionary that finds its entries.
type interned struct {
	tables
	known [kinds]map[string]uint32
	nodes map[uint64]uint32
	bytes int64 // of memory, about
}

func newInterned() *interned {
	t := &interned{nodes: map[uint64]uint32{}}
	for k := range t.known {
		t.known[k] = map[string]uint32{}
	}
	return t
}

// Overhead of an entry and a node, in addition to their bytes.
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

// translator maps entries of one dictionary to another, and adds the used ones.
type translator struct {
	from  *tables
	to    *interned
	memo  [kinds][]uint32
	nodes []uint32
}

// grow follows a dictionary that has grown.
func (t *translator) grow() {
	for k := range t.memo {
		t.memo[k] = append(t.memo[k], make([]uint32, len(t.from.entries[k])+1-len(t.memo[k]))...)
	}
	t.nodes = append(t.nodes, make([]uint32, len(t.from.parents)+1-len(t.nodes))...)
}

// of returns the entry i of a table. A value out of range is 0.
func (t *translator) of(k kind, i uint32) uint32 {
	if i == 0 || int(i) >= len(t.memo[k]) {
		return 0
	}
	if known := t.memo[k][i]; known != 0 {
		return known
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
	if k == set { // in any order it is the same set
		var list []uint64
		for c := (cursor{in: string(out)}); len(c.in) > 0; {
			list = append(list, c.uint())
		}
		slices.Sort(list)
		out = appendUints(out[:0], list...)
	}
	t.memo[k][i] = t.to.add(k, out)
	return t.memo[k][i]
}

// node returns a node. A parent comes before its children, so that damage makes no circle.
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

// number64 takes a varint from the start of a text; 0 and nothing is left if there is none.
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
