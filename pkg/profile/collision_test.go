package profile

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestCollisions forges hash collisions. Each entry is also indexed under another entry's hash.
func TestCollisions(t *testing.T) {
	g := newGeneration(&Config{Types: []ValueType{{"a", "b"}}})

	text := g.string("alpha")
	g.stringIndex.add(g.hash.text("beta"), text)
	require.NotEqual(t, text, g.string("beta"))

	frame := Frame{Name: "n", File: "f", Line: 1, Address: 2}
	location := g.location(&frame, 1, 1)
	for _, f := range []Frame{
		{Name: "m", File: "f", Line: 1, Address: 2},
		{Name: "n", File: "g", Line: 1, Address: 2},
		{Name: "n", File: "f", Line: 2, Address: 2},
		{Name: "n", File: "f", Line: 1, Address: 3},
	} {
		g.locationIndex.add(g.hash.frame(&f, 1, 1), location)
		require.NotEqual(t, location, g.location(&f, 1, 1), "%+v", f)
	}
	for _, of := range []struct{ mapping, frameType uint32 }{{1, 2}, {2, 1}} {
		g.locationIndex.add(g.hash.frame(&frame, of.mapping, of.frameType), location)
		require.NotEqual(t, location, g.location(&frame, of.mapping, of.frameType), "%+v", of)
	}

	attribute := g.attribute("k", Int(1))
	for _, a := range []Attribute{{"l", Int(1)}, {"k", Int(2)}, {"k", Bool(true)}, {"k", String("x")}} {
		g.attributeIndex.add(g.hash.attribute(a.Key, &a.Value), attribute)
		require.NotEqual(t, attribute, g.attribute(a.Key, a.Value), "%+v", a)
	}

	fn := g.function(1, 2, 3)
	for _, f := range []function{{1, 3, 3}, {2, 2, 3}, {2, 1, 3}, {1, 2, 4}} {
		g.functionIndex.add(g.hash.pair(f.name, f.file), fn)
		require.NotEqual(t, fn, g.function(f.name, f.file, f.start), "%+v", f)
	}

	first := g.sample(sample{1, 2, 3, 4}, 0)
	for _, s := range []sample{{2, 2, 3, 4}, {1, 3, 3, 4}, {1, 2, 4, 4}, {1, 2, 3, 5}} {
		g.sampleIndex.add(g.hash.sample(&s), first)
		require.NotEqual(t, first, g.sample(s, 0), "%+v", s)
	}

	list, _ := g.stacks.id(&g.hash, []uint32{1, 2, 3})
	for _, l := range [][]uint32{{1, 2}, {1, 2, 3, 0}, {3, 2, 1}, {1, 2, 4}} {
		g.stacks.index.add(g.hash.list(l), list)
		id, _ := g.stacks.id(&g.hash, l)
		require.NotEqual(t, list, id, "%v", l)
	}
}

// TestTablesOwnTheirText checks that a caller can overwrite the memory that it has inserted.
func TestTablesOwnTheirText(t *testing.T) {
	buf := []byte("function file.c attribute /usr/bin/x 0123abcd gobuildid htlhash")
	part := func(from, to int) string { return aliased(buf[from:to]) }
	g := newGeneration(&Config{Types: []ValueType{{"a", "b"}}})
	f := Frame{
		Name: part(0, 8), File: part(9, 15), Address: 1,
		Mapping: Mapping{File: part(26, 36), GNUBuildID: part(37, 45), GoBuildID: part(46, 55), HTLHash: part(56, 63)},
	}
	m := g.mapping(f.Mapping)
	l := g.location(&f, m, 0)
	a := g.attribute("key", Value{kind: KindString, str: part(16, 25)})
	for i := range buf {
		buf[i] = '#'
	}
	require.Equal(t, "function", g.strings[g.locations[l].name])
	require.Equal(t, "file.c", g.strings[g.functions[g.locations[l].function].file])
	require.Equal(t, "attribute", g.attributes[a].value.str)
	require.Equal(t, Mapping{File: "/usr/bin/x", GNUBuildID: "0123abcd", GoBuildID: "gobuildid", HTLHash: "htlhash"}, g.mappings[m].m)
	require.Equal(t, "/usr/bin/x", g.strings[g.mappings[m].file])
	require.Equal(t, m, g.mapping(Mapping{File: "/usr/bin/x", GNUBuildID: "0123abcd", GoBuildID: "gobuildid", HTLHash: "htlhash"}))
	for _, id := range g.mappings[m].attrs {
		require.NotContains(t, g.attributes[id].value.str, "#")
	}
	// The tables also copy invalid text.
	bad := []byte("/\xff")
	g.mapping(Mapping{File: aliased(bad)})
	bad[0] = '#'
	require.Contains(t, g.mappingIDs, Mapping{File: "/\xff"})
}

// TestNamelessFrameHasNoLine checks that a frame without a function has no line.
func TestNamelessFrameHasNoLine(t *testing.T) {
	g := newGeneration(&Config{Types: []ValueType{{"a", "b"}}})
	require.Equal(t, g.location(&Frame{Address: 1}, 0, 0), g.location(&Frame{Address: 1, Line: 5, File: "f"}, 0, 0))
}

// aliased returns a string that shares its memory with b.
func aliased(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
