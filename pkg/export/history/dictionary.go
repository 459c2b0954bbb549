package history

import (
	"hash/maphash"
	"slices"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// kind identifies a table of entries.
type kind uint8

const (
	text kind = iota
	attribute
	function
	mapping
	location
	link
	stack
	// OTLP has no tables for the following kinds.
	set      // attributes of a sample
	resource // a ResourceProfiles without its profiles
	scope    // a ScopeProfiles without its profiles
	measure  // type, unit, period and attributes of a profile
	kinds
)

// interned is a dictionary that contains each entry once. Entry 0 of each table of OTLP is the zero value, and set 0 is empty.
type interned struct {
	dict      *profilespb.ProfilesDictionary // a writer takes entries away
	sets      [][]int32
	resources []*profilespb.ResourceProfiles
	scopes    []*profilespb.ScopeProfiles
	measures  []*profilespb.Profile
	known     [kinds]map[[2]uint64]int32
	key       []byte // a buffer
	bytes     int64  // estimated memory
}

func newInterned() *interned {
	t := &interned{dict: &profilespb.ProfilesDictionary{}}
	for k := range t.known {
		t.known[k] = map[[2]uint64]int32{}
	}
	c := newCopier(nil, t)
	for k := text; k <= stack; k++ {
		c.copy(k, 0)
	}
	c.set(nil)
	return t
}

// Two hashes with random seeds identify an entry, because maps of strings take more time and memory. Equal hashes of different
// entries are practically impossible, also for hostile entries.
var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// add returns the index of an entry in its table, and appends the entry if it is new. The buffer contains the entry's key.
func add[T any](t *interned, k kind, table *[]T, entry T) int32 {
	key := [2]uint64{maphash.Bytes(seeds[0], t.key), maphash.Bytes(seeds[1], t.key)}
	i, ok := t.known[k][key]
	if !ok {
		i = int32(len(t.known[k]))
		t.known[k][key] = i
		*table = append(*table, entry)
		t.bytes += int64(len(t.key)) + 64 // for the maps and tables, approximately
	}
	return i
}

func addMessage[M proto.Message](t *interned, k kind, table *[]M, m M) int32 {
	t.key, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend(t.key[:0], m) // the message was just decoded
	return add(t, k, table, m)
}

func (t *interned) text(s string) int32 {
	t.key = append(t.key[:0], s...)
	return add(t, text, &t.dict.StringTable, s)
}

func (t *interned) stack(locations []int32) int32 {
	t.key = dictionary.AppendKey(t.key[:0], locations)
	return add(t, stack, &t.dict.StackTable, &profilespb.Stack{LocationIndices: locations})
}

// copier copies entries from another dictionary as they are used.
type copier struct {
	from dictionary.Dictionary
	to   *interned
	memo [stack + 1][]int32
	sets map[string]int32 // of the target, by the source's attributes
}

func newCopier(from *profilespb.ProfilesDictionary, to *interned) *copier {
	c := &copier{from: dictionary.Dictionary{ProfilesDictionary: &profilespb.ProfilesDictionary{}}, to: to}
	c.extend(from)
	return c
}

// extend appends entries to the source.
func (c *copier) extend(d *profilespb.ProfilesDictionary) {
	c.sets = map[string]int32{} // an index that was out of range can become valid
	extend(c, text, &c.from.StringTable, d.GetStringTable())
	extend(c, attribute, &c.from.AttributeTable, d.GetAttributeTable())
	extend(c, function, &c.from.FunctionTable, d.GetFunctionTable())
	extend(c, mapping, &c.from.MappingTable, d.GetMappingTable())
	extend(c, location, &c.from.LocationTable, d.GetLocationTable())
	extend(c, link, &c.from.LinkTable, d.GetLinkTable())
	extend(c, stack, &c.from.StackTable, d.GetStackTable())
}

func extend[T any](c *copier, k kind, table *[]T, more []T) {
	*table = append(*table, more...)
	c.memo[k] = append(c.memo[k], make([]int32, len(more))...)
}

// of returns the target's index of entry i, and copies the entry on first use. It returns 0 if i is out of range.
func (c *copier) of(k kind, i int32) int32 {
	if i <= 0 || int(i) >= len(c.memo[k]) {
		return 0
	}
	if c.memo[k][i] == 0 {
		c.memo[k][i] = c.copy(k, i)
	}
	return c.memo[k][i]
}

func (c *copier) copy(k kind, i int32) int32 {
	t, d := c.to, c.to.dict
	switch k {
	case text:
		return t.text(c.from.Str(i))
	case attribute:
		a := dictionary.At(c.from.GetAttributeTable(), i)
		return addMessage(t, k, &d.AttributeTable, &profilespb.KeyValueAndUnit{
			KeyStrindex: c.of(text, a.GetKeyStrindex()), Value: a.GetValue(), UnitStrindex: c.of(text, a.GetUnitStrindex()),
		})
	case function:
		f := dictionary.At(c.from.GetFunctionTable(), i)
		return addMessage(t, k, &d.FunctionTable, &profilespb.Function{
			NameStrindex: c.of(text, f.GetNameStrindex()), SystemNameStrindex: c.of(text, f.GetSystemNameStrindex()),
			FilenameStrindex: c.of(text, f.GetFilenameStrindex()), StartLine: f.GetStartLine(),
		})
	case mapping:
		m := dictionary.At(c.from.GetMappingTable(), i)
		return addMessage(t, k, &d.MappingTable, &profilespb.Mapping{
			MemoryStart: m.GetMemoryStart(), MemoryLimit: m.GetMemoryLimit(), FileOffset: m.GetFileOffset(),
			FilenameStrindex: c.of(text, m.GetFilenameStrindex()), AttributeIndices: c.attributes(m.GetAttributeIndices()),
		})
	case location:
		l := dictionary.At(c.from.GetLocationTable(), i)
		to := &profilespb.Location{MappingIndex: c.of(mapping, l.GetMappingIndex()), Address: l.GetAddress(), AttributeIndices: c.attributes(l.GetAttributeIndices())}
		for _, line := range l.GetLines() {
			to.Lines = append(to.Lines, &profilespb.Line{FunctionIndex: c.of(function, line.GetFunctionIndex()), Line: line.GetLine(), Column: line.GetColumn()})
		}
		return addMessage(t, k, &d.LocationTable, to)
	case link:
		l := dictionary.At(c.from.GetLinkTable(), i)
		return addMessage(t, k, &d.LinkTable, &profilespb.Link{TraceId: l.GetTraceId(), SpanId: l.GetSpanId()})
	}
	return t.stack(c.list(location, dictionary.At(c.from.GetStackTable(), i).GetLocationIndices()))
}

func (c *copier) list(k kind, list []int32) []int32 {
	out := make([]int32, len(list))
	for i, v := range list {
		out[i] = c.of(k, v)
	}
	return out
}

// attributes returns the target's indices in ascending order, because the order of attributes does not matter.
func (c *copier) attributes(list []int32) []int32 {
	out := c.list(attribute, list)
	slices.Sort(out)
	return out
}

// set returns the target's set with the source's attributes.
func (c *copier) set(list []int32) int32 {
	c.to.key = dictionary.AppendKey(c.to.key[:0], list)
	i, known := c.sets[string(c.to.key)]
	if !known {
		from, out := string(c.to.key), c.attributes(list)
		c.to.key = dictionary.AppendKey(c.to.key[:0], out)
		i = add(c.to, set, &c.to.sets, out)
		c.sets[from] = i
	}
	return i
}

// head returns a profile with the target's indices, without samples, times and ID.
func (c *copier) head(p *profilespb.Profile) *profilespb.Profile {
	valueType := func(v *profilespb.ValueType) *profilespb.ValueType {
		return &profilespb.ValueType{TypeStrindex: c.of(text, v.GetTypeStrindex()), UnitStrindex: c.of(text, v.GetUnitStrindex())}
	}
	return &profilespb.Profile{
		SampleType: valueType(p.GetSampleType()), PeriodType: valueType(p.GetPeriodType()), Period: p.GetPeriod(), AttributeIndices: c.attributes(p.GetAttributeIndices()),
	}
}

// group returns the target's group of a profile.
func (c *copier) group(rp *profilespb.ResourceProfiles, sp *profilespb.ScopeProfiles, p *profilespb.Profile, step int64) group {
	t := c.to
	return group{
		addMessage(t, resource, &t.resources, &profilespb.ResourceProfiles{Resource: rp.GetResource(), SchemaUrl: rp.GetSchemaUrl()}),
		addMessage(t, scope, &t.scopes, &profilespb.ScopeProfiles{Scope: sp.GetScope(), SchemaUrl: sp.GetSchemaUrl()}),
		addMessage(t, measure, &t.measures, c.head(p)), step,
	}
}
