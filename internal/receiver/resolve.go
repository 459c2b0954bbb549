package receiver

import (
	"cmp"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// Frame is one resolved entry of a stack. An inlined function is a Frame of its own.
type Frame struct {
	// Name is the function's name, or else its system name. It is empty without a symbol.
	Name, SystemName string
	// Type is the profile.frame.type attribute.
	Type string
	// File and Line are the source position.
	File string
	Line int64
	// Mapping is the name of the file that the code was loaded from. BuildID is the file's first build ID.
	Mapping, BuildID string
	Address          uint64
}

// Label returns the name, or else another description of the frame.
func (f Frame) Label() string {
	switch {
	case f.Name != "":
		return f.Name
	case f.Address == 0 && f.File == "":
		return "[empty frame]"
	case f.Address == 0:
		return f.File
	}
	where := cmp.Or(f.Mapping, f.BuildID)
	address := "0x" + strconv.FormatUint(f.Address, 16)
	if where == "" {
		return address
	}
	return where[strings.LastIndexByte(where, '/')+1:] + "+" + address
}

// Sample is a sample with all data that it refers to.
type Sample struct {
	// Service is the resource's service.name.
	Service string
	// Resource and Attributes are the attributes of the resource and of the sample, as text.
	Resource, Attributes map[string]string
	// Stack is leaf first.
	Stack []Frame
	// Type and Unit describe Values. PeriodType, PeriodUnit and Period describe the sampling.
	Type, Unit, PeriodType, PeriodUnit string
	Period                             int64
	Values                             []int64
	// Timestamps are in nanoseconds since 1970.
	Timestamps []uint64
	// Start and End are the profile's time range.
	Start, End time.Time
	// Scope is the name of the instrumentation scope.
	Scope string
	// TraceID and SpanID are in hexadecimal. They are empty without a link.
	TraceID, SpanID string
}

// Stack identifies a stack by its memory address. Samples of one request share the memory of equal stacks. Stack can be a map key.
type Stack struct {
	leaf  *Frame
	depth int
}

// StackOf returns a stack's identity.
func StackOf(frames []Frame) Stack {
	if len(frames) == 0 {
		return Stack{}
	}
	return Stack{&frames[0], len(frames)}
}

// Total returns the sum of the values. In a sample without values, each timestamp counts as one.
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

// Seconds returns the time that the sample represents. It returns false if the sample does not measure time.
func (s Sample) Seconds() (float64, bool) {
	switch {
	case s.Unit == "nanoseconds":
		return float64(s.Total()) / 1e9, true
	case s.Unit == "count" && s.PeriodUnit == "nanoseconds":
		return float64(s.Total()) * float64(s.Period) / 1e9, true
	}
	return 0, false
}

// Amount returns the time in seconds, or else the total.
func (s Sample) Amount() float64 {
	if seconds, ok := s.Seconds(); ok {
		return seconds
	}
	return float64(s.Total())
}

// ResolveAll returns the samples of several requests: see Resolve.
func ResolveAll(requests []*collectorpb.ExportProfilesServiceRequest) (samples []Sample) {
	for _, req := range requests {
		samples = append(samples, Resolve(req)...)
	}
	return samples
}

// Resolve returns the samples of a request. It accepts any request. An index out of range counts as empty. Resource and scope
// attributes can refer to the string table, as in the output of the Collector's file exporter. Samples share parts, so callers
// must not change them.
func Resolve(req *collectorpb.ExportProfilesServiceRequest) []Sample {
	d := newResolver(dictionary.Of(req))
	n := 0
	for p := range dictionary.Profiles(req) {
		n += len(p.GetSamples())
	}
	samples := make([]Sample, 0, n) // growing would take twice the memory
	var of *profilespb.ResourceProfiles
	var resource map[string]string
	for p := range dictionary.Profiles(req) {
		if p.Resource != of {
			of, resource = p.Resource, map[string]string{}
			for _, kv := range of.GetResource().GetAttributes() {
				resource[d.Key(kv)] = d.Text(kv.GetValue())
			}
		}
		common := d.common(resource, p)
		for _, s := range p.GetSamples() {
			samples = append(samples, d.sample(common, s))
		}
	}
	return samples
}

// resolver caches the locations, stacks and attribute sets that it has resolved.
type resolver struct {
	dictionary.Dictionary
	locations, stacks [][]Frame // by index; nil if not yet resolved
	sets              map[string]map[string]string
}

func newResolver(d dictionary.Dictionary) resolver {
	return resolver{d, make([][]Frame, len(d.GetLocationTable())), make([][]Frame, len(d.GetStackTable())), map[string]map[string]string{}}
}

func (d resolver) stack(i int32) []Frame {
	if i < 0 || int(i) >= len(d.stacks) {
		return nil
	}
	if d.stacks[i] == nil {
		locations := d.GetStackTable()[i].GetLocationIndices()
		d.stacks[i] = make([]Frame, 0, len(locations))
		for _, l := range locations {
			d.stacks[i] = append(d.stacks[i], d.frames(l)...)
		}
	}
	return d.stacks[i]
}

func (d resolver) set(indices []int32) map[string]string {
	key := dictionary.AppendKey(make([]byte, 0, 64), indices)
	attrs, known := d.sets[string(key)]
	if !known {
		attrs = d.Attributes(indices)
		d.sets[string(key)] = attrs
	}
	return attrs
}

// common returns the parts that a profile's samples share.
func (d resolver) common(resource map[string]string, p dictionary.Profile) Sample {
	start := time.Unix(0, int64(p.GetTimeUnixNano())).UTC()
	return Sample{
		Service:    resource["service.name"],
		Resource:   resource,
		Type:       d.Str(p.GetSampleType().GetTypeStrindex()),
		Unit:       d.Str(p.GetSampleType().GetUnitStrindex()),
		PeriodType: d.Str(p.GetPeriodType().GetTypeStrindex()),
		PeriodUnit: d.Str(p.GetPeriodType().GetUnitStrindex()),
		Period:     p.GetPeriod(),
		Start:      start,
		End:        start.Add(time.Duration(p.GetDurationNano())),
		Scope:      p.Scope.GetScope().GetName(),
	}
}

// sample returns common with the sample's own parts.
func (d resolver) sample(common Sample, s *profilespb.Sample) Sample {
	common.Attributes, common.Stack = d.set(s.GetAttributeIndices()), d.stack(s.GetStackIndex())
	common.Values, common.Timestamps = s.GetValues(), s.GetTimestampsUnixNano()
	if s.GetLinkIndex() != 0 {
		link := dictionary.At(d.GetLinkTable(), s.GetLinkIndex())
		common.TraceID, common.SpanID = hex.EncodeToString(link.GetTraceId()), hex.EncodeToString(link.GetSpanId())
	}
	return common
}

// buildIDPrefix is the prefix of the attributes that identify a file. gnu comes before go and htlhash.
const buildIDPrefix = "process.executable.build_id."

// frames returns the frames of a location, the innermost first.
func (d resolver) frames(location int32) []Frame {
	if location < 0 || int(location) >= len(d.locations) {
		return frames(d.Dictionary, nil)
	}
	if d.locations[location] == nil {
		d.locations[location] = frames(d.Dictionary, d.GetLocationTable()[location])
	}
	return d.locations[location]
}

func frames(d dictionary.Dictionary, l *profilespb.Location) []Frame {
	m := dictionary.At(d.GetMappingTable(), l.GetMappingIndex())
	base := Frame{
		Type:    d.Attribute(l.GetAttributeIndices(), "profile.frame.type"),
		Mapping: d.Str(m.GetFilenameStrindex()),
		Address: l.GetAddress(),
	}
	for _, kind := range []string{"gnu", "go", "htlhash"} {
		if id := d.Attribute(m.GetAttributeIndices(), buildIDPrefix+kind); id != "" {
			base.BuildID = id
			break
		}
	}
	if len(l.GetLines()) == 0 {
		return []Frame{base}
	}
	list := make([]Frame, 0, len(l.GetLines()))
	for _, line := range l.GetLines() {
		f := dictionary.At(d.GetFunctionTable(), line.GetFunctionIndex())
		frame := base
		frame.SystemName = d.Str(f.GetSystemNameStrindex())
		frame.Name = cmp.Or(d.Str(f.GetNameStrindex()), frame.SystemName)
		frame.File, frame.Line = d.Str(f.GetFilenameStrindex()), line.GetLine()
		list = append(list, frame)
	}
	return list
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

// ByType groups samples by their type. The types are in the order of their first samples.
func ByType(samples []Sample) ([]Type, map[Type][]Sample) {
	types, byType := []Type{}, map[Type][]Sample{}
	for len(samples) > 0 {
		t, n := TypeOf(samples[0]), 1
		for n < len(samples) && TypeOf(samples[n]) == t {
			n++
		}
		if of, known := byType[t]; known {
			byType[t] = append(of, samples[:n]...)
		} else { // usually all of them, so they are not copied
			types, byType[t] = append(types, t), samples[:n:n]
		}
		samples = samples[n:]
	}
	return types, byType
}
