package history

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

// format is the first byte of a record.
const format = 2

// encoder writes the records of one segment. A record contains the entries that its request adds to the dictionary, and the
// samples, one column per field. Each value then takes only a byte or two before compression.
type encoder struct {
	to      *interned
	written [kinds]int // number of entries in earlier records
	nodes   int

	dict *profilespb.ProfilesDictionary // the dictionary of the request that is being written
	memo [kinds][]uint32
	stks []uint32
}

// row is a sample with the segment's indices.
type row struct {
	stack, set, link uint32
	sample           *profilespb.Sample
}

// record encodes a request and adds it to a summary. After an error, the encoder is unusable.
func (e *encoder) record(data *profilespb.ProfilesData, sum *Summary) ([]byte, error) {
	e.begin(data.GetDictionary())
	var out []byte
	profiles := 0
	for _, rp := range data.GetResourceProfiles() {
		res, err := e.message(resource, &profilespb.ResourceProfiles{Resource: rp.GetResource(), SchemaUrl: rp.GetSchemaUrl()})
		if err != nil {
			return nil, err
		}
		service := serviceOf(rp.GetResource().GetAttributes())
		for _, sp := range rp.GetScopeProfiles() {
			sc, err := e.message(scope, &profilespb.ScopeProfiles{Scope: sp.GetScope(), SchemaUrl: sp.GetSchemaUrl()})
			if err != nil {
				return nil, err
			}
			for _, p := range sp.GetProfiles() {
				profiles++
				one := Sum{sumKey: sumKey{Service: service, Gadget: sp.GetScope().GetName()}}
				out = e.profile(appendUints(out, uint64(res), uint64(sc)), p, &one)
				sum.add(one)
			}
		}
	}
	head := []byte{format}
	for k := range e.to.entries {
		entries := e.to.entries[k][e.written[k]:]
		head = binary.AppendUvarint(head, uint64(len(entries)))
		for _, entry := range entries {
			head = binary.AppendUvarint(head, uint64(len(entry)))
			head = append(head, entry...)
		}
		e.written[k] = len(e.to.entries[k])
	}
	head = binary.AppendUvarint(head, uint64(len(e.to.parents)-e.nodes))
	for i := e.nodes; i < len(e.to.parents); i++ { // usually, a node is the caller of the next node
		head = binary.AppendUvarint(head, uint64(i)-uint64(e.to.parents[i]))
	}
	for _, place := range e.to.places[e.nodes:] {
		head = binary.AppendUvarint(head, uint64(place))
	}
	e.nodes = len(e.to.parents)
	head = binary.AppendUvarint(head, uint64(profiles))
	return append(head, out...), nil
}

func appendUints(b []byte, list ...uint64) []byte {
	for _, v := range list {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

// profile appends a profile and its samples, and sums them up.
func (e *encoder) profile(out []byte, p *profilespb.Profile, sum *Sum) []byte {
	rows := make([]row, len(p.GetSamples()))
	for i, s := range p.GetSamples() {
		rows[i] = row{e.stack(s.GetStackIndex()), e.set(s.GetAttributeIndices()), e.link(s.GetLinkIndex()), s}
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.stack, b.stack), cmp.Compare(a.set, b.set)) })
	st, pt := p.GetSampleType(), p.GetPeriodType()
	m := appendUints(nil, uint64(e.text(st.GetTypeStrindex())), uint64(e.text(st.GetUnitStrindex())), uint64(e.text(pt.GetTypeStrindex())),
		uint64(e.text(pt.GetUnitStrindex())), uint64(p.GetPeriod()), uint64(e.set(p.GetAttributeIndices())))
	out = appendUints(out, uint64(e.to.add(measure, m)), p.GetTimeUnixNano(), p.GetDurationNano(), uint64(p.GetDroppedAttributesCount()), uint64(len(rows)))
	last := uint32(0)
	for _, r := range rows {
		out = binary.AppendUvarint(out, uint64(r.stack-last))
		last = r.stack
	}
	for _, r := range rows {
		out = binary.AppendUvarint(out, uint64(r.set))
	}
	for _, r := range rows {
		out = binary.AppendUvarint(out, uint64(r.link))
	}
	for _, r := range rows {
		v := total(r.sample)
		sum.Value += v
		out = binary.AppendVarint(out, v)
	}
	sum.Type, sum.Unit, sum.Samples = e.str(st.GetTypeStrindex()), e.str(st.GetUnitStrindex()), int64(len(rows))
	if p.GetDurationNano() == 0 {
		sum.State = p.GetTimeUnixNano()
	}
	return out
}

// total returns the sum of a sample's values. A sample without values counts one for each timestamp.
func total(s *profilespb.Sample) (sum int64) {
	if len(s.GetValues()) == 0 {
		return int64(len(s.GetTimestampsUnixNano()))
	}
	for _, v := range s.GetValues() {
		sum += v
	}
	return sum
}

func (e *encoder) begin(d *profilespb.ProfilesDictionary) {
	e.dict = d
	for k, n := range map[kind]int{
		text: len(d.GetStringTable()), attribute: len(d.GetAttributeTable()), function: len(d.GetFunctionTable()), mapping: len(d.GetMappingTable()),
		location: len(d.GetLocationTable()), link: len(d.GetLinkTable()),
	} {
		e.memo[k] = zeros(e.memo[k], n)
	}
	e.stks = zeros(e.stks, len(d.GetStackTable()))
}

// zeros returns a slice of n zeros. It reuses s if s is large enough.
func zeros(s []uint32, n int) []uint32 {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

func (e *encoder) message(k kind, m proto.Message) (uint32, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return 0, fmt.Errorf("writing a resource: %w", err)
	}
	return e.to.add(k, b), nil
}

// once returns the segment's index for a request's entry. encode appends the entry in the segment's form.
func (e *encoder) once(k kind, i int32, encode func(b []byte) []byte) uint32 {
	if i <= 0 || int(i) >= len(e.memo[k]) {
		return 0
	}
	if e.memo[k][i] == 0 {
		e.memo[k][i] = e.to.add(k, encode(make([]byte, 0, 64)))
	}
	return e.memo[k][i]
}

func (e *encoder) str(i int32) string {
	if i < 0 || int(i) >= len(e.dict.GetStringTable()) {
		return ""
	}
	return e.dict.StringTable[i]
}

func (e *encoder) text(i int32) uint32 {
	return e.once(text, i, func(b []byte) []byte { return append(b, e.dict.StringTable[i]...) })
}

func (e *encoder) attribute(i int32) uint32 {
	return e.once(attribute, i, func(b []byte) []byte {
		a := e.dict.AttributeTable[i]
		b = appendUints(b, uint64(e.text(a.GetKeyStrindex())), uint64(e.text(a.GetUnitStrindex())))
		value := a.GetValue()
		if s, ok := value.GetValue().(*commonpb.AnyValue_StringValueStrindex); ok {
			value = &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: e.str(s.StringValueStrindex)}}
		}
		b, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, value) // the value was just decoded
		return b
	})
}

func (e *encoder) set(list []int32) uint32 {
	var buf [64]byte
	b := buf[:0]
	for _, i := range list {
		b = binary.AppendUvarint(b, uint64(e.attribute(i)))
	}
	return e.to.add(set, b)
}

func (e *encoder) function(i int32) uint32 {
	return e.once(function, i, func(b []byte) []byte {
		f := e.dict.FunctionTable[i]
		return appendUints(b, uint64(e.text(f.GetNameStrindex())), uint64(e.text(f.GetSystemNameStrindex())), uint64(e.text(f.GetFilenameStrindex())), uint64(f.GetStartLine()))
	})
}

func (e *encoder) mapping(i int32) uint32 {
	return e.once(mapping, i, func(b []byte) []byte {
		m := e.dict.MappingTable[i]
		return appendUints(b, m.GetMemoryStart(), m.GetMemoryLimit(), m.GetFileOffset(), uint64(e.text(m.GetFilenameStrindex())), uint64(e.set(m.GetAttributeIndices())))
	})
}

func (e *encoder) location(i int32) uint32 {
	return e.once(location, i, func(b []byte) []byte {
		l := e.dict.LocationTable[i]
		b = appendUints(b, uint64(e.mapping(l.GetMappingIndex())), l.GetAddress(), uint64(e.set(l.GetAttributeIndices())))
		for _, line := range l.GetLines() {
			b = appendUints(b, uint64(e.function(line.GetFunctionIndex())), uint64(line.GetLine()), uint64(line.GetColumn()))
		}
		return b
	})
}

func (e *encoder) link(i int32) uint32 {
	return e.once(link, i, func(b []byte) []byte {
		l := e.dict.LinkTable[i]
		return append(append(b, l.GetTraceId()...), l.GetSpanId()...)
	})
}

// stack returns the node of a stack's innermost frame.
func (e *encoder) stack(i int32) uint32 {
	if i <= 0 || int(i) >= len(e.stks) {
		return 0
	}
	if e.stks[i] == 0 {
		at := uint32(0)
		for _, l := range slices.Backward(e.dict.StackTable[i].GetLocationIndices()) {
			at = e.to.node(at, e.location(l))
		}
		e.stks[i] = at
	}
	return e.stks[i]
}

func serviceOf(attrs []*commonpb.KeyValue) string {
	for _, kv := range attrs {
		if kv.GetKey() == "service.name" {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}
