package history

import (
	"fmt"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

// cursor reads the fields of a record. If a value is missing, it returns 0 and sets bad.
type cursor struct {
	in  string
	bad bool
}

func (c *cursor) uint() uint64 {
	if len(c.in) > 0 && c.in[0] < 0x80 {
		v := uint64(c.in[0])
		c.in = c.in[1:]
		return v
	}
	v, rest := number64(c.in)
	c.bad = c.bad || v == 0 // a valid 0 takes one byte, handled above
	c.in = rest
	return v
}

func (c *cursor) int() int64 {
	v := c.uint()
	return int64(v>>1) ^ -int64(v&1)
}

// count reads the number of the following fields. Each field takes at least one byte.
func (c *cursor) count() int {
	n := c.uint()
	if n > uint64(len(c.in)) {
		c.bad = true
		return 0
	}
	return int(n)
}

func (c *cursor) bytes(n int) string {
	s := c.in[:n]
	c.in = c.in[n:]
	return s
}

// readEntries adds a record's entries to the segment's dictionary, and returns the rest of the record.
func (t *tables) readEntries(payload string) (cursor, error) {
	c := cursor{in: payload[1:]}
	for k := range t.entries {
		for range c.count() {
			t.entries[k] = append(t.entries[k], c.bytes(c.count()))
		}
	}
	first, n := len(t.parents), c.count()
	for i := range n {
		back := c.uint()
		if back > uint64(first+i) {
			c.bad = true
			back = 0
		}
		t.parents = append(t.parents, uint32(uint64(first+i)-back))
	}
	for range n {
		t.places = append(t.places, uint32(c.uint()))
	}
	if c.bad {
		return c, fmt.Errorf("a record's dictionary is %w", errFormat)
	}
	return c, nil
}

// block is a profile as a record stores it.
type block struct {
	resource, scope, measure uint32
	time, duration, dropped  uint64
	stacks, sets, links      []uint32
	values                   []int64
}

// read reads the next profile of a record. It reuses the slices.
func (b *block) read(c *cursor) error {
	b.resource, b.scope, b.measure = uint32(c.uint()), uint32(c.uint()), uint32(c.uint())
	b.time, b.duration, b.dropped = c.uint(), c.uint(), c.uint()
	n := c.count()
	b.stacks, b.sets, b.links, b.values = b.stacks[:0], b.sets[:0], b.links[:0], b.values[:0]
	last := uint32(0)
	for range n {
		last += uint32(c.uint())
		b.stacks = append(b.stacks, last)
	}
	for range n {
		b.sets = append(b.sets, uint32(c.uint()))
	}
	for range n {
		b.links = append(b.links, uint32(c.uint()))
	}
	for range n {
		b.values = append(b.values, c.int())
	}
	if c.bad {
		return fmt.Errorf("a record's samples are %w", errFormat)
	}
	return nil
}

// dictionary returns the dictionary in OTLP form, without stacks. The indices stay the same.
func (t *tables) dictionary() *profilespb.ProfilesDictionary {
	d := &profilespb.ProfilesDictionary{
		StringTable: append([]string{""}, t.entries[text]...), AttributeTable: []*profilespb.KeyValueAndUnit{{}}, FunctionTable: []*profilespb.Function{{}},
		MappingTable: []*profilespb.Mapping{{}}, LocationTable: []*profilespb.Location{{}}, LinkTable: []*profilespb.Link{{}}, StackTable: []*profilespb.Stack{{}},
	}
	for _, entry := range t.entries[attribute] {
		c := cursor{in: entry}
		a := &profilespb.KeyValueAndUnit{KeyStrindex: int32(c.uint()), UnitStrindex: int32(c.uint()), Value: &commonpb.AnyValue{}}
		_ = proto.Unmarshal([]byte(c.in), a.Value) // damaged values are empty
		d.AttributeTable = append(d.AttributeTable, a)
	}
	for _, entry := range t.entries[function] {
		c := cursor{in: entry}
		d.FunctionTable = append(d.FunctionTable, &profilespb.Function{
			NameStrindex: int32(c.uint()), SystemNameStrindex: int32(c.uint()), FilenameStrindex: int32(c.uint()), StartLine: int64(c.uint()),
		})
	}
	for _, entry := range t.entries[mapping] {
		c := cursor{in: entry}
		m := &profilespb.Mapping{MemoryStart: c.uint(), MemoryLimit: c.uint(), FileOffset: c.uint(), FilenameStrindex: int32(c.uint())}
		m.AttributeIndices = t.setOf(uint32(c.uint()))
		d.MappingTable = append(d.MappingTable, m)
	}
	for _, entry := range t.entries[location] {
		c := cursor{in: entry}
		l := &profilespb.Location{MappingIndex: int32(c.uint()), Address: c.uint(), AttributeIndices: t.setOf(uint32(c.uint()))}
		for len(c.in) > 0 {
			l.Lines = append(l.Lines, &profilespb.Line{FunctionIndex: int32(c.uint()), Line: int64(c.uint()), Column: int64(c.uint())})
		}
		d.LocationTable = append(d.LocationTable, l)
	}
	for _, entry := range t.entries[link] {
		n := min(len(entry), traceIDSize)
		d.LinkTable = append(d.LinkTable, &profilespb.Link{TraceId: []byte(entry[:n]), SpanId: []byte(entry[n:])})
	}
	return d
}

const traceIDSize = 16

// setOf returns the attributes of a set.
func (t *tables) setOf(i uint32) []int32 {
	var list []int32
	for c := (cursor{in: t.entry(set, i)}); len(c.in) > 0; {
		list = append(list, int32(c.uint()))
	}
	return list
}

// stackOf returns the locations of a node's stack, innermost first.
func (t *tables) stackOf(node uint32) []int32 {
	var list []int32
	for node > 0 && int(node) <= len(t.parents) {
		list = append(list, int32(t.places[node-1]))
		node = t.parents[node-1]
	}
	return list
}

// rareLocation returns the location that replaces the callers of rare stacks.
func rareLocation(t *interned) uint32 {
	name := uint64(t.add(text, []byte(RareStacks)))
	f := uint64(t.add(function, appendUints(nil, name, 0, 0, 0)))
	return t.add(location, appendUints(nil, 0, 0, 0, f, 0, 0))
}
