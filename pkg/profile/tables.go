package profile

import (
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Attribute keys that the encoder itself writes.
const (
	keyFrameType    = "profile.frame.type"
	keyGNUBuildID   = "process.executable.build_id.gnu"
	keyGoBuildID    = "process.executable.build_id.go"
	keyHTLHash      = "process.executable.build_id.htlhash"
	keyHasFunctions = "pprof.mapping.has_functions"
)

// What an entry costs in memory, with its share of the map that finds it: an estimate that is on
// the high side, so that the bound on a generation's memory holds.
const (
	costString    = 2*16 + 4*40 // an encoder keeps a second map
	costMapping   = 200 + 2*140
	costFunction  = 12 + 2*24
	costLocation  = 40 + 2*56
	costAttribute = 48 + 2*64
	costStack     = 8 + 2*20
	costSample    = 24 + 2*32 + 2*16
	costKey       = 2 * 20
	costResource  = 300
	costEvent     = 24
)

type function struct {
	name, file uint32 // indices of strings; a function without a name does not exist
}

type mapping struct {
	m     Mapping
	file  uint32
	attrs []uint32
}

// location 0 stands for no location; function 0 for none.
type location struct {
	mapping   uint32
	function  uint32
	frameType uint32 // index of an attribute, 0: none
	address   uint64
	line      int64
}

type locationKey struct {
	mapping, name, file uint32
	frameType           uint32
	address             uint64
	line                int64
}

type attribute struct {
	key   uint32
	value Value
}

type sample struct {
	resource, stack, attrs, link uint32
}

type resource struct {
	key   uint64
	attrs []Attribute // replaced as a whole, never changed in place: snapshots hold it
	epoch uint64      // the window in which attrs were last set
	bytes int64       // what samples of this resource have added to the generation
}

// generation is a dictionary that lives for many windows. Entries are only ever appended and
// never changed, except for resources, so that an encoder can read what was there at a snapshot
// while rows are added.
type generation struct {
	defaultType FrameType
	hashedOnly  bool

	seed maphash.Seed

	strings   []string
	stringIDs map[string]uint32

	functions   []function
	functionIDs map[function]uint32

	mappings   []mapping
	mappingIDs map[Mapping]uint32

	locations   []location
	locationIDs map[locationKey]uint32

	attributes   []attribute
	attributeIDs map[attribute]uint32

	links   []Link
	linkIDs map[Link]uint32

	stacks   lists
	attrSets lists

	samples   []sample
	sampleIDs map[sample]uint32

	resources   []resource
	resourceIDs map[uint64]uint32

	keys        map[uint64]uint32 // row key to sample
	provisional []uint64          // keys to forget when the window ends

	bytes   int64
	windows int
}

func newGeneration(cfg *Config) *generation {
	g := &generation{
		defaultType:  cfg.DefaultFrameType,
		hashedOnly:   cfg.HashedMappings,
		seed:         maphash.MakeSeed(),
		strings:      []string{""},
		stringIDs:    map[string]uint32{"": 0},
		functions:    []function{{}},
		functionIDs:  map[function]uint32{},
		mappings:     []mapping{{}},
		mappingIDs:   map[Mapping]uint32{{}: 0},
		locations:    []location{{}},
		locationIDs:  map[locationKey]uint32{},
		attributes:   []attribute{{}},
		attributeIDs: map[attribute]uint32{},
		links:        []Link{{}},
		linkIDs:      map[Link]uint32{{}: 0},
		sampleIDs:    map[sample]uint32{},
		resourceIDs:  map[uint64]uint32{},
		keys:         map[uint64]uint32{},
	}
	g.stacks.init()
	g.attrSets.init()
	return g
}

// string interns s. The entry is valid UTF-8: proto3 strings must be, and receivers refuse a whole
// request for one that is not. s itself is not kept.
func (g *generation) string(s string) uint32 {
	if s == "" {
		return 0
	}
	if id, ok := g.stringIDs[s]; ok {
		return id
	}
	key := strings.Clone(s)
	valid := key
	if !utf8.ValidString(valid) {
		valid = strings.ToValidUTF8(valid, "\uFFFD")
		if id, ok := g.stringIDs[valid]; ok {
			g.stringIDs[key] = id
			g.bytes += int64(len(key)) + costString
			return id
		}
	}
	id := uint32(len(g.strings))
	g.strings = append(g.strings, valid)
	g.stringIDs[valid] = id
	g.bytes += int64(len(valid)) + costString
	if key != valid {
		g.stringIDs[key] = id
		g.bytes += int64(len(key)) + costString
	}
	return id
}

func (g *generation) attribute(key string, v Value) uint32 {
	if v.kind == KindString && !utf8.ValidString(v.str) {
		v.str = strings.ToValidUTF8(v.str, "\uFFFD")
	}
	a := attribute{g.string(key), v}
	if id, ok := g.attributeIDs[a]; ok {
		return id
	}
	a.value.str = strings.Clone(v.str)
	id := uint32(len(g.attributes))
	g.attributes = append(g.attributes, a)
	g.attributeIDs[a] = id
	g.bytes += int64(len(v.str)) + costAttribute
	return id
}

func (g *generation) mapping(m Mapping) uint32 {
	if id, ok := g.mappingIDs[m]; ok {
		return id
	}
	if g.hashedOnly && m.HTLHash == "" {
		return 0
	}
	m.File = strings.Clone(m.File)
	m.GNUBuildID = strings.Clone(m.GNUBuildID)
	m.GoBuildID = strings.Clone(m.GoBuildID)
	m.HTLHash = strings.Clone(m.HTLHash)
	e := mapping{m: m, file: g.string(m.File)}
	for _, a := range []Attribute{
		{keyGNUBuildID, String(m.GNUBuildID)}, {keyGoBuildID, String(m.GoBuildID)}, {keyHTLHash, String(m.HTLHash)},
	} {
		if a.Value.str != "" {
			e.attrs = append(e.attrs, g.attribute(a.Key, a.Value))
		}
	}
	if m.Symbolized {
		e.attrs = append(e.attrs, g.attribute(keyHasFunctions, Bool(true)))
	}
	id := uint32(len(g.mappings))
	g.mappings = append(g.mappings, e)
	g.mappingIDs[m] = id
	g.bytes += costMapping
	return id
}

// frameType interns a frame type as an attribute of locations; none is 0.
func (g *generation) frameType(t FrameType) uint32 {
	if t == "" {
		t = g.defaultType
	}
	if t == "" {
		return 0
	}
	return g.attribute(keyFrameType, Value{kind: KindString, str: string(t)})
}

func (g *generation) function(name, file uint32) uint32 {
	f := function{name, file}
	if id, ok := g.functionIDs[f]; ok {
		return id
	}
	id := uint32(len(g.functions))
	g.functions = append(g.functions, f)
	g.functionIDs[f] = id
	g.bytes += costFunction
	return id
}

// location interns a frame; frames that say nothing (no name, no address) become 0.
func (g *generation) location(f *Frame, mapping, frameType uint32) uint32 {
	if f.Name == "" && f.Address == 0 {
		return 0
	}
	k := locationKey{mapping: mapping, name: g.string(f.Name), file: g.string(f.File), frameType: frameType, address: f.Address, line: f.Line}
	if id, ok := g.locationIDs[k]; ok {
		return id
	}
	l := location{mapping: mapping, frameType: k.frameType, address: f.Address, line: f.Line}
	if k.name != 0 {
		l.function = g.function(k.name, k.file)
	}
	id := uint32(len(g.locations))
	g.locations = append(g.locations, l)
	g.locationIDs[k] = id
	g.bytes += costLocation
	return id
}

func (g *generation) link(l Link) uint32 {
	if id, ok := g.linkIDs[l]; ok {
		return id
	}
	id := uint32(len(g.links))
	g.links = append(g.links, l)
	g.linkIDs[l] = id
	g.bytes += 100
	return id
}

func (g *generation) sample(s sample) uint32 {
	if id, ok := g.sampleIDs[s]; ok {
		return id
	}
	id := uint32(len(g.samples))
	g.samples = append(g.samples, s)
	g.sampleIDs[s] = id
	g.bytes += costSample
	return id
}

// lists interns lists of indices; list 0 is empty.
type lists struct {
	ends  []uint32 // list i is items[ends[i-1]:ends[i]]
	items []uint32
	ids   map[uint64][]uint32 // by hash
}

func (l *lists) init() {
	l.ends = []uint32{0}
	l.ids = map[uint64][]uint32{}
}

func (l *lists) at(i uint32) []uint32 {
	if i == 0 {
		return nil
	}
	return l.items[l.ends[i-1]:l.ends[i]]
}

// id interns list and returns the bytes that it added.
func (l *lists) id(seed maphash.Seed, list []uint32) (uint32, int64) {
	if len(list) == 0 {
		return 0, 0
	}
	h := hashList(seed, list)
	for _, id := range l.ids[h] {
		if slices.Equal(l.at(id), list) {
			return id, 0
		}
	}
	id := uint32(len(l.ends))
	l.items = append(l.items, list...)
	l.ends = append(l.ends, uint32(len(l.items)))
	l.ids[h] = append(l.ids[h], id)
	return id, int64(4*len(list)) + costStack + 32
}

func hashList(seed maphash.Seed, list []uint32) uint64 {
	h := maphash.Comparable(seed, uint64(len(list)))
	for _, v := range list {
		h = (h ^ uint64(v)) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return h
}

// text renders a value as text, for receivers that take only text.
func (v Value) text() string {
	switch v.kind {
	case KindBool:
		return strconv.FormatBool(v.num != 0)
	case KindInt:
		return strconv.FormatInt(int64(v.num), 10)
	case KindDouble:
		return strconv.FormatFloat(math.Float64frombits(v.num), 'g', -1, 64)
	case KindBytes:
		const hex = "0123456789abcdef"
		b := make([]byte, 0, 2*len(v.str))
		for i := range len(v.str) {
			b = append(b, hex[v.str[i]>>4], hex[v.str[i]&15])
		}
		return string(b)
	case KindStrings:
		return strings.Join(v.AsStrings(), ",")
	case KindString:
	}
	return v.str
}
