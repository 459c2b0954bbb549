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
}

// request is a request that is being written.
type request struct {
	*encoder
	dict   *profilespb.ProfilesDictionary
	tr     translator // from the request's dictionary to the segment's
	stacks []uint32   // the segment's nodes of the stacks
}

// row is a sample with the segment's indices.
type row struct {
	stack, set, link uint32
	sample           *profilespb.Sample
}

// record encodes a request and adds it to a summary. After an error, the encoder is unusable.
func (e *encoder) record(data *profilespb.ProfilesData, sum *Summary) ([]byte, error) {
	r := request{encoder: e, dict: data.GetDictionary(), tr: translator{from: tablesOf(data.GetDictionary()), to: e.to}}
	r.tr.grow()
	r.stacks = make([]uint32, len(r.dict.GetStackTable()))
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
				out = r.profile(appendUints(out, uint64(res), uint64(sc)), p, &one)
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
func (r *request) profile(out []byte, p *profilespb.Profile, sum *Sum) []byte {
	text := func(i int32) uint64 { return uint64(r.tr.of(text, uint32(i))) }
	rows := make([]row, len(p.GetSamples()))
	for i, s := range p.GetSamples() {
		rows[i] = row{r.stack(s.GetStackIndex()), r.tr.set(s.GetAttributeIndices()), r.tr.of(link, uint32(s.GetLinkIndex())), s}
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.stack, b.stack), cmp.Compare(a.set, b.set)) })
	st, pt := p.GetSampleType(), p.GetPeriodType()
	m := appendUints(nil, text(st.GetTypeStrindex()), text(st.GetUnitStrindex()), text(pt.GetTypeStrindex()), text(pt.GetUnitStrindex()),
		uint64(p.GetPeriod()), uint64(r.tr.set(p.GetAttributeIndices())))
	out = appendUints(out, uint64(r.to.add(measure, m)), p.GetTimeUnixNano(), p.GetDurationNano(), uint64(p.GetDroppedAttributesCount()), uint64(len(rows)))
	last := uint32(0)
	for _, row := range rows {
		out = binary.AppendUvarint(out, uint64(row.stack-last))
		last = row.stack
	}
	for _, row := range rows {
		out = binary.AppendUvarint(out, uint64(row.set))
	}
	for _, row := range rows {
		out = binary.AppendUvarint(out, uint64(row.link))
	}
	for _, row := range rows {
		v := total(row.sample)
		sum.Value += v
		out = binary.AppendVarint(out, v)
	}
	sum.Type, sum.Unit, sum.Samples = str(r.dict, st.GetTypeStrindex()), str(r.dict, st.GetUnitStrindex()), int64(len(rows))
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

func (e *encoder) message(k kind, m proto.Message) (uint32, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return 0, fmt.Errorf("writing a resource: %w", err)
	}
	return e.to.add(k, b), nil
}

// stack returns the node of a stack's innermost frame.
func (r *request) stack(i int32) uint32 {
	if i <= 0 || int(i) >= len(r.stacks) {
		return 0
	}
	if r.stacks[i] == 0 {
		for _, l := range slices.Backward(r.dict.StackTable[i].GetLocationIndices()) {
			r.stacks[i] = r.to.node(r.stacks[i], r.tr.of(location, uint32(l)))
		}
	}
	return r.stacks[i]
}

// tablesOf returns a dictionary without its stacks. The indices stay the same.
func tablesOf(d *profilespb.ProfilesDictionary) *tables {
	t := newInterned() // for the sets, which OTLP has as lists
	put := func(k kind, entry []byte) { t.entries[k] = append(t.entries[k], string(entry)) }
	for _, s := range stored(d.GetStringTable()) {
		put(text, []byte(s))
	}
	for _, a := range stored(d.GetAttributeTable()) {
		value := a.GetValue()
		if s, ok := value.GetValue().(*commonpb.AnyValue_StringValueStrindex); ok {
			value = &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: str(d, s.StringValueStrindex)}}
		}
		b := appendUints(nil, uint64(a.GetKeyStrindex()), uint64(a.GetUnitStrindex()))
		b, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, value) // the value was just decoded
		put(attribute, b)
	}
	for _, f := range stored(d.GetFunctionTable()) {
		put(function, appendUints(nil, uint64(f.GetNameStrindex()), uint64(f.GetSystemNameStrindex()), uint64(f.GetFilenameStrindex()), uint64(f.GetStartLine())))
	}
	for _, m := range stored(d.GetMappingTable()) {
		put(mapping, appendUints(nil, m.GetMemoryStart(), m.GetMemoryLimit(), m.GetFileOffset(), uint64(m.GetFilenameStrindex()), uint64(t.set(m.GetAttributeIndices()))))
	}
	for _, l := range stored(d.GetLocationTable()) {
		b := appendUints(nil, uint64(l.GetMappingIndex()), l.GetAddress(), uint64(t.set(l.GetAttributeIndices())))
		for _, line := range l.GetLines() {
			b = appendUints(b, uint64(line.GetFunctionIndex()), uint64(line.GetLine()), uint64(line.GetColumn()))
		}
		put(location, b)
	}
	for _, l := range stored(d.GetLinkTable()) {
		put(link, slices.Concat(l.GetTraceId(), l.GetSpanId()))
	}
	return &t.tables
}

// stored returns a table without its first entry, which is the zero value.
func stored[T any](table []T) []T { return table[min(1, len(table)):] }

func str(d *profilespb.ProfilesDictionary, i int32) string {
	if i < 0 || int(i) >= len(d.GetStringTable()) {
		return ""
	}
	return d.StringTable[i]
}

func serviceOf(attrs []*commonpb.KeyValue) string {
	for _, kv := range attrs {
		if kv.GetKey() == "service.name" {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}
