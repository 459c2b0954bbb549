package receiver

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
)

// Frame is one resolved entry of a stack. An inlined function is a Frame of its own.
type Frame struct {
	// Name is the function's name, or its system name where it has no other; empty without symbol.
	Name, SystemName string
	// Type is the profile.frame.type attribute.
	Type string
	// File and Line are the source position.
	File string
	Line int64
	// Mapping is the name of the file that the code was loaded from, BuildID its first build ID.
	Mapping, BuildID string
	Address          uint64
}

// Label returns the name, or what else there is to tell the frame by.
func (f Frame) Label() string {
	switch {
	case f.Name != "":
		return f.Name
	case f.Address == 0 && f.File == "":
		return "[empty frame]"
	case f.Address == 0:
		return f.File
	}
	where := f.Mapping
	if where == "" {
		where = f.BuildID
	}
	address := "0x" + strconv.FormatUint(f.Address, 16)
	if where == "" {
		return address
	}
	if i := strings.LastIndexByte(where, '/'); i >= 0 {
		where = where[i+1:]
	}
	return where + "+" + address
}

// Sample is a sample with everything that it refers to.
type Sample struct {
	// Service is the resource's service.name.
	Service string
	// Resource and Attributes are those of the resource and of the sample, as text.
	Resource, Attributes map[string]string
	// Stack is leaf first.
	Stack []Frame
	// Type and Unit tell what Values measure; PeriodType, PeriodUnit and Period what was sampled.
	Type, Unit, PeriodType, PeriodUnit string
	Period                             int64
	Values                             []int64
	// Timestamps are in nanoseconds since 1970.
	Timestamps []uint64
	// Start and End are the profile's time range.
	Start, End time.Time
	// Scope is the name of the instrumentation scope.
	Scope string
	// TraceID and SpanID are in hexadecimal, empty without link.
	TraceID, SpanID string
}

// Total returns the sum of the values. A sample of timestamps alone counts one for each.
func (s Sample) Total() int64 {
	if len(s.Values) == 0 {
		return int64(len(s.Timestamps))
	}
	sum := int64(0)
	for _, v := range s.Values {
		sum += v
	}
	return sum
}

// Seconds returns the time that the sample stands for, and false where it measures something
// else than time.
func (s Sample) Seconds() (float64, bool) {
	switch {
	case s.Unit == "nanoseconds":
		return float64(s.Total()) / 1e9, true
	case s.Unit == "count" && s.PeriodUnit == "nanoseconds":
		return float64(s.Total()) * float64(s.Period) / 1e9, true
	}
	return 0, false
}

// Resolve returns the samples of a request. It takes any request: what an index out of range
// refers to is empty. Resource and scope attributes may refer to the string table, as they do in
// what the Collector's file exporter writes.
func Resolve(req *collectorpb.ExportProfilesServiceRequest) []Sample {
	d := dictionary{req.GetDictionary()}
	var samples []Sample
	for _, rp := range req.GetResourceProfiles() {
		resource := map[string]string{}
		for _, kv := range rp.GetResource().GetAttributes() {
			resource[d.key(kv)] = d.text(kv.GetValue())
		}
		for _, sp := range rp.GetScopeProfiles() {
			for _, p := range sp.GetProfiles() {
				for _, s := range p.GetSamples() {
					samples = append(samples, d.sample(resource, sp.GetScope().GetName(), p, s))
				}
			}
		}
	}
	return samples
}

type dictionary struct{ *profilespb.ProfilesDictionary }

// element returns table[i] and the zero value where there is none.
func element[T any](table []T, i int32) T {
	var zero T
	if i < 0 || int(i) >= len(table) {
		return zero
	}
	return table[i]
}

func (d dictionary) str(i int32) string { return element(d.GetStringTable(), i) }

func (d dictionary) key(kv *commonpb.KeyValue) string {
	if kv.GetKeyStrindex() != 0 {
		return d.str(kv.GetKeyStrindex())
	}
	return kv.GetKey()
}

// text returns a value as text: lists in brackets, bytes in hexadecimal.
func (d dictionary) text(v *commonpb.AnyValue) string {
	switch x := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return x.StringValue
	case *commonpb.AnyValue_StringValueStrindex:
		return d.str(x.StringValueStrindex)
	case *commonpb.AnyValue_BoolValue:
		return strconv.FormatBool(x.BoolValue)
	case *commonpb.AnyValue_IntValue:
		return strconv.FormatInt(x.IntValue, 10)
	case *commonpb.AnyValue_DoubleValue:
		return strconv.FormatFloat(x.DoubleValue, 'g', -1, 64)
	case *commonpb.AnyValue_BytesValue:
		return hex.EncodeToString(x.BytesValue)
	case *commonpb.AnyValue_ArrayValue:
		list := []string{}
		for _, e := range x.ArrayValue.GetValues() {
			list = append(list, d.text(e))
		}
		return "[" + strings.Join(list, ",") + "]"
	case *commonpb.AnyValue_KvlistValue:
		list := []string{}
		for _, kv := range x.KvlistValue.GetValues() {
			list = append(list, d.key(kv)+"="+d.text(kv.GetValue()))
		}
		return "{" + strings.Join(list, ",") + "}"
	}
	return ""
}

func (d dictionary) attributes(indices []int32) map[string]string {
	attrs := make(map[string]string, len(indices))
	for _, i := range indices {
		a := element(d.GetAttributeTable(), i)
		if key := d.str(a.GetKeyStrindex()); key != "" {
			attrs[key] = d.text(a.GetValue())
		}
	}
	return attrs
}

func (d dictionary) sample(resource map[string]string, scope string, p *profilespb.Profile, s *profilespb.Sample) Sample {
	start := time.Unix(0, int64(p.GetTimeUnixNano())).UTC()
	out := Sample{
		Service:    resource["service.name"],
		Resource:   resource,
		Attributes: d.attributes(s.GetAttributeIndices()),
		Type:       d.str(p.GetSampleType().GetTypeStrindex()),
		Unit:       d.str(p.GetSampleType().GetUnitStrindex()),
		PeriodType: d.str(p.GetPeriodType().GetTypeStrindex()),
		PeriodUnit: d.str(p.GetPeriodType().GetUnitStrindex()),
		Period:     p.GetPeriod(),
		Values:     s.GetValues(),
		Timestamps: s.GetTimestampsUnixNano(),
		Start:      start,
		End:        start.Add(time.Duration(p.GetDurationNano())),
		Scope:      scope,
	}
	for _, l := range element(d.GetStackTable(), s.GetStackIndex()).GetLocationIndices() {
		out.Stack = append(out.Stack, d.frames(element(d.GetLocationTable(), l))...)
	}
	if s.GetLinkIndex() != 0 {
		link := element(d.GetLinkTable(), s.GetLinkIndex())
		out.TraceID, out.SpanID = hex.EncodeToString(link.GetTraceId()), hex.EncodeToString(link.GetSpanId())
	}
	return out
}

// buildIDPrefix begins the attributes that identify a file; gnu comes before go and htlhash.
const buildIDPrefix = "process.executable.build_id."

func (d dictionary) frames(l *profilespb.Location) []Frame {
	m := element(d.GetMappingTable(), l.GetMappingIndex())
	base := Frame{
		Type:    d.attributes(l.GetAttributeIndices())["profile.frame.type"],
		Mapping: d.str(m.GetFilenameStrindex()),
		Address: l.GetAddress(),
	}
	attrs := d.attributes(m.GetAttributeIndices())
	for _, kind := range []string{"gnu", "go", "htlhash"} {
		if id := attrs[buildIDPrefix+kind]; id != "" {
			base.BuildID = id
			break
		}
	}
	if len(l.GetLines()) == 0 {
		return []Frame{base}
	}
	frames := make([]Frame, 0, len(l.GetLines()))
	for _, line := range l.GetLines() {
		f := element(d.GetFunctionTable(), line.GetFunctionIndex())
		frame := base
		frame.Name, frame.SystemName = d.str(f.GetNameStrindex()), d.str(f.GetSystemNameStrindex())
		if frame.Name == "" {
			frame.Name = frame.SystemName
		}
		frame.File, frame.Line = d.str(f.GetFilenameStrindex()), line.GetLine()
		frames = append(frames, frame)
	}
	return frames
}

// Type identifies what a sample measures.
type Type struct {
	Type, Unit, PeriodType, PeriodUnit string
	Period                             int64
}

// TypeOf returns the type of a sample.
func TypeOf(s Sample) Type {
	return Type{s.Type, s.Unit, s.PeriodType, s.PeriodUnit, s.Period}
}

// ByType sorts samples by their type; types are in the order of their first sample.
func ByType(samples []Sample) ([]Type, map[Type][]Sample) {
	byType := map[Type][]Sample{}
	types := []Type{}
	for _, s := range samples {
		t := TypeOf(s)
		if !slices.Contains(types, t) {
			types = append(types, t)
		}
		byType[t] = append(byType[t], s)
	}
	return types, byType
}
