package profile

import (
	"cmp"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

// The encoder itself writes these attribute keys.
const (
	keyFrameType    = "profile.frame.type"
	keyGNUBuildID   = "process.executable.build_id.gnu"
	keyGoBuildID    = "process.executable.build_id.go"
	keyHTLHash      = "process.executable.build_id.htlhash"
	keyHasFunctions = "pprof.mapping.has_functions"
)

// These are the sizes of entries in memory, including their share of the index. The estimate is high, so a generation never
// exceeds its memory limit. A growing slice has up to a quarter more capacity than it uses. After a map has grown, seven
// sixteenths of its slots are used, and each slot has one more byte.
const (
	costSlot      = (1+8)*16/7 + 1
	costString    = 5*16/4 + costSlot + 16 + 60 // the encoder holds each string twice, in a list and a map
	costMapping   = 200 + 2*140
	costFunction  = 5*12/4 + costSlot + 2*4     // includes an encoder's numbers
	costLocation  = 5*(32+4)/4 + costSlot + 2*4 // includes an encoder's numbers
	costAttribute = 5*48/4 + costSlot + 2*4     // includes an encoder's numbers
	costStack     = 5*8/4 + costSlot + 2*4      // place, length, and an encoder's numbers
	costSample    = 5*(16+2+2*8)/4 + costSlot   // with its entries in both windows, but without values
	costValue     = 5 * 2 * 8 / 4               // of a sample, in two windows
	costKey       = (1+16)*16/7 + 1
	costResource  = 300
	costEvent     = 24
)

type function struct {
	name, file uint32 // indices of strings; a function always has a name
	start      uint32 // its first line
}

type mapping struct {
	m     Mapping
	file  uint32
	attrs []uint32
}

// Location 0 means no location. Function 0 means no function.
type location struct {
	mapping   uint32
	function  uint32
	name      uint32 // a copy of the function's name, because names are often compared
	frameType uint32 // index of an attribute, or 0
	address   uint64
	line      int64
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
	attrs []Attribute // replaced as a whole and never modified, because snapshots refer to them
	// dropped counts attributes that were dropped
	dropped int
	host    bool
	group   uint64
	rest    []Attribute // replaced in the same way
	epoch   uint64      // the last window in which attrs were set
	bytes   int64       // memory that samples of this resource take in the generation
}

// generation is a dictionary that lives for many windows. Entries are only appended and never modified, except for resources.
// So an encoder can read a snapshot while rows are added.
type generation struct {
	defaultType FrameType
	hashedOnly  bool

	hash hasher

	strings     []string
	stringIndex index

	functions     []function
	functionIndex index

	mappings   []mapping
	mappingIDs map[Mapping]uint32

	locations     []location
	locationIndex index    // by frame, mapping and type
	callers       []uint32 // by location: the one that followed it in the last new stack

	attributes     []attribute
	attributeIndex index

	links   []Link
	linkIDs map[Link]uint32

	stacks   lists
	attrSets lists

	samples     []sample
	dropped     []uint16 // by sample: the number of dropped attributes
	sampleIndex index

	resources   []resource
	resourceIDs map[uint64]uint32

	keys map[uint64]uint32 // from row keys to samples

	pending      []pendingSample // samples whose stacks are resolved when the window ends
	pendingBytes int64
	free         []uint32 // former pending samples for reuse

	hostBytes  int64 // memory that all resources outside containers take
	sampleCost int64

	bytes int64
	// replaced counts the texts that clean has changed in this window.
	replaced int64
	windows  int
}

// taken returns the memory that a resource takes in the generation. For a resource outside containers, it returns the total of
// all such resources, because many of them must not displace containers.
func (g *generation) taken(r uint32) int64 {
	if g.resources[r].host {
		return g.hostBytes
	}
	return g.resources[r].bytes
}

func (g *generation) take(r uint32, n int64) {
	g.resources[r].bytes += n
	if g.resources[r].host {
		g.hostBytes += n
	}
}

func newGeneration(cfg *Config) *generation {
	return &generation{
		defaultType: cfg.DefaultFrameType,
		hashedOnly:  cfg.HashedMappings,
		hash:        newHasher(),
		strings:     []string{""},
		functions:   []function{{}},
		mappings:    []mapping{{}},
		mappingIDs:  map[Mapping]uint32{{}: 0},
		locations:   []location{{}},
		callers:     []uint32{0},
		attributes:  []attribute{{}},
		links:       []Link{{}},
		linkIDs:     map[Link]uint32{{}: 0},
		stringIndex: index{}, functionIndex: index{}, locationIndex: index{}, attributeIndex: index{}, sampleIndex: index{},
		keys:        map[uint64]uint32{},
		stacks:      newLists(),
		attrSets:    newLists(),
		resourceIDs: map[uint64]uint32{},
		sampleCost:  costSample + int64(1+len(cfg.Types))*costValue,
	}
}

// string interns s, which it does not retain. The entry is printable, valid UTF-8. proto3 requires valid UTF-8, and receivers
// refuse a whole request because of one invalid string.
func (g *generation) string(s string) uint32 {
	if s == "" {
		return 0
	}
	h := g.hash.text(s)
	if id, ok := g.stringIndex.find(h, func(id uint32) bool { return g.strings[id] == s }); ok {
		return id
	}
	if clean := g.clean(s); clean != s {
		return g.string(clean)
	}
	id := uint32(len(g.strings))
	g.strings = append(g.strings, strings.Clone(s))
	g.stringIndex.add(h, id)
	g.bytes += int64(len(s)) + costString
	return id
}

// clean returns a text that is safe to send. All output passes through clean, as new table entries or resources.
func (g *generation) clean(s string) string {
	clean := printable.Clean(s)
	if clean != s {
		g.replaced++
	}
	return clean
}

// cleanValue cleans the text of a value.
func (g *generation) cleanValue(v Value) Value {
	if v.kind == KindString || v.kind == KindTexts {
		v.str = g.clean(v.str)
	}
	return v
}

// attribute interns an attribute. The table only contains clean text. A text that is not found is cleaned and looked up again.
func (g *generation) attribute(key string, v Value) uint32 {
	h := g.hash.attribute(key, &v)
	if id, ok := g.attributeIndex.find(h, func(id uint32) bool {
		a := &g.attributes[id]
		return a.value == v && g.strings[a.key] == key
	}); ok {
		return id
	}
	clean := g.cleanValue(v)
	if k := g.clean(key); k != key || clean != v {
		return g.attribute(k, clean)
	}
	v.str = strings.Clone(v.str)
	id := uint32(len(g.attributes))
	g.attributes = append(g.attributes, attribute{g.string(key), v})
	g.attributeIndex.add(h, id)
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
	var e mapping
	e.file = g.string(m.File)
	m.File = g.kept(m.File, g.strings[e.file])
	for _, a := range []struct {
		key string
		id  *string
	}{{keyGNUBuildID, &m.GNUBuildID}, {keyGoBuildID, &m.GoBuildID}, {keyHTLHash, &m.HTLHash}} {
		if *a.id != "" {
			id := g.attribute(a.key, String(*a.id))
			*a.id = g.kept(*a.id, g.attributes[id].value.str)
			e.attrs = append(e.attrs, id)
		}
	}
	e.m = m
	if m.Symbolized {
		e.attrs = append(e.attrs, g.attribute(keyHasFunctions, Bool(true)))
	}
	id := uint32(len(g.mappings))
	g.mappings = append(g.mappings, e)
	g.mappingIDs[m] = id
	g.bytes += costMapping
	return id
}

// kept returns s in memory that the tables own. It returns interned, one of the tables' texts, if that equals s, and otherwise
// a copy.
func (g *generation) kept(s, interned string) string {
	if s == interned {
		return interned
	}
	g.bytes += int64(len(s)) // clean has changed s, so the tables do not contain it
	return strings.Clone(s)
}

// frameType interns a frame type as an attribute of locations. It returns 0 for no type.
func (g *generation) frameType(t FrameType) uint32 {
	if t = cmp.Or(t, g.defaultType); t == "" {
		return 0
	}
	return g.attribute(keyFrameType, Value{kind: KindString, str: string(t)})
}

func (g *generation) function(name, file, start uint32) uint32 {
	f := function{name, file, start}
	h := g.hash.pair(name, file)
	if id, ok := g.functionIndex.find(h, func(id uint32) bool { return g.functions[id] == f }); ok {
		return id
	}
	id := uint32(len(g.functions))
	g.functions = append(g.functions, f)
	g.functionIndex.add(h, id)
	g.bytes += costFunction
	return id
}

// isLocation reports whether a location belongs to this frame.
func (g *generation) isLocation(id uint32, f *Frame, mapping, frameType uint32) bool {
	l := &g.locations[id]
	fn := &g.functions[l.function]
	return l.address == f.Address && l.mapping == mapping && l.frameType == frameType && l.line == f.Line &&
		fn.start == f.start() && g.strings[l.name] == f.Name && g.strings[fn.file] == f.File
}

// caller interns f, which follows the location of in a stack. Usually, f is the frame that followed it the
// last time. In that case, a comparison is enough.
func (g *generation) caller(of uint32, f *Frame, mapping, frameType uint32) uint32 {
	if id := g.callers[of]; id != 0 && g.isLocation(id, f, mapping, frameType) {
		return id
	}
	id := g.location(f, mapping, frameType)
	g.callers[of] = id
	return id
}

// location interns a frame. A frame without name and address becomes 0. A known frame takes one lookup by its text. The table
// only contains clean text. A text that is not found is cleaned and looked up again.
func (g *generation) location(f *Frame, mapping, frameType uint32) uint32 {
	if f.Name == "" {
		if f.Address == 0 {
			return 0
		}
		if f.File != "" || f.Line != 0 || f.StartLine != 0 { // a file and a line belong to a function, which needs a name
			return g.location(&Frame{Address: f.Address}, mapping, frameType)
		}
	}
	h := g.hash.frame(f, mapping, frameType)
	if id, ok := g.locationIndex.find(h, func(id uint32) bool { return g.isLocation(id, f, mapping, frameType) }); ok {
		return id
	}
	if name, file := g.clean(f.Name), g.clean(f.File); name != f.Name || file != f.File {
		return g.location(&Frame{Name: name, File: file, Line: f.Line, StartLine: f.StartLine, Address: f.Address}, mapping, frameType)
	}
	l := location{mapping: mapping, frameType: frameType, address: f.Address, line: f.Line}
	if f.Name != "" {
		l.name = g.string(f.Name)
		l.function = g.function(l.name, g.string(f.File), f.start())
	}
	id := uint32(len(g.locations))
	g.locations = append(g.locations, l)
	g.callers = append(g.callers, 0)
	g.locationIndex.add(h, id)
	g.bytes += costLocation
	return id
}

func (g *generation) link(l Link) uint32 {
	if l == (Link{}) {
		return 0
	}
	if id, ok := g.linkIDs[l]; ok {
		return id
	}
	id := uint32(len(g.links))
	g.links = append(g.links, l)
	g.linkIDs[l] = id
	g.bytes += 100
	return id
}

func (g *generation) sample(s sample, dropped int) uint32 {
	h := g.hash.sample(&s)
	if id, ok := g.sampleIndex.find(h, func(id uint32) bool { return g.samples[id] == s }); ok {
		return id
	}
	id := uint32(len(g.samples))
	g.samples = append(g.samples, s)
	g.dropped = append(g.dropped, uint16(min(dropped, math.MaxUint16)))
	g.sampleIndex.add(h, id)
	g.bytes += g.sampleCost
	return id
}

// lists interns lists of indices. List 0 is empty. Lists are in chunks that never move, because a table of stacks is large.
type lists struct {
	places []uint32   // by list: its chunk, and the offset of its length there, which precedes its items
	chunks [][]uint32 // allocated with full length, because encoders refer to them
	end    uint32     // the used length of the last chunk
	index  index
}

const (
	chunkBits = 16
	minChunk  = 1 << 8
	maxChunk  = 1 << chunkBits
)

func newLists() lists { return lists{places: []uint32{0}, index: index{}} }

func (l *lists) len() int { return len(l.places) }

func (l *lists) at(i uint32) []uint32 {
	if i == 0 {
		return nil
	}
	p := l.places[i]
	c := l.chunks[p>>chunkBits][p%maxChunk:]
	return c[1 : 1+c[0]]
}

// id interns list. It returns the list's number, and the number of added bytes.
func (l *lists) id(hash *hasher, list []uint32) (uint32, int64) {
	if len(list) == 0 {
		return 0, 0
	}
	h := hash.list(list)
	if id, ok := l.index.find(h, func(id uint32) bool { return slices.Equal(l.at(id), list) }); ok {
		return id, 0
	}
	need := 1 + len(list)
	n := len(l.chunks)
	if n == 0 || int(l.end)+need > len(l.chunks[n-1]) {
		size := minChunk
		if n > 0 {
			size = min(2*len(l.chunks[n-1]), maxChunk)
		}
		l.chunks = append(l.chunks, make([]uint32, max(size, need)))
		l.end = 0
		n++
	}
	c := l.chunks[n-1][l.end:]
	c[0] = uint32(len(list))
	copy(c[1:], list)
	id := uint32(len(l.places))
	l.places = append(l.places, uint32(n-1)<<chunkBits|l.end)
	l.end += uint32(need)
	l.index.add(h, id)
	return id, int64(5*len(list)) + costStack
}

// text returns a value as text, for receivers that only accept text.
func (v Value) text() string {
	switch v.kind {
	case KindBool:
		return strconv.FormatBool(v.num != 0)
	case KindInt:
		return strconv.FormatInt(int64(v.num), 10)
	case KindDouble:
		return strconv.FormatFloat(math.Float64frombits(v.num), 'g', -1, 64)
	case KindBytes:
		return hex.EncodeToString([]byte(v.str))
	case KindString, KindTexts:
	}
	return v.str
}
