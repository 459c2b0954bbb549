package export

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"

	"github.com/google/pprof/profile"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	otlpprofiles "go.opentelemetry.io/proto/otlp/profiles/v1development"
)

// pprofFile turns a request into one gzip'd pprof profile of all its resources, for
// `go tool pprof`.
func pprofFile(body []byte, layout string) ([]byte, error) {
	data, err := decodeRequest(body, layout)
	if err != nil {
		return nil, err
	}
	p := newPprof(data).convert()
	if err := p.CheckValid(); err != nil {
		return nil, fmt.Errorf("the pprof profile is not valid: %w", err)
	}
	var out bytes.Buffer
	if err := p.Write(&out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// pprofResourceKeys are the resource attributes that become labels of each sample, where they are
// there. All of them would make the files large.
var pprofResourceKeys = map[string]bool{
	"service.name": true, "service.namespace": true, "host.name": true, "container.name": true,
	"k8s.namespace.name": true, "k8s.pod.name": true, "k8s.container.name": true,
}

const buildIDKey = "process.executable.build_id.gnu"

// pprofBuilder converts one request. An index that leads nowhere gives the table's zero value:
// bytes can come from a file.
type pprofBuilder struct {
	data *otlpprofiles.ProfilesData
	dict *otlpprofiles.ProfilesDictionary
	out  *profile.Profile

	types     map[profile.ValueType]int
	cpuTime   map[profile.ValueType]int // by a type that counts samples: where their CPU time goes
	merged    map[sampleKey]*profile.Sample
	mappings  map[int32]*profile.Mapping
	locations map[int32]*profile.Location
	functions map[int32]*profile.Function
}

func newPprof(data *otlpprofiles.ProfilesData) *pprofBuilder {
	return &pprofBuilder{
		data: data, dict: data.GetDictionary(), out: &profile.Profile{},
		types:     map[profile.ValueType]int{},
		cpuTime:   map[profile.ValueType]int{},
		merged:    map[sampleKey]*profile.Sample{},
		mappings:  map[int32]*profile.Mapping{},
		locations: map[int32]*profile.Location{},
		functions: map[int32]*profile.Function{},
	}
}

// sampleKey is what makes a sample distinct. Profiles of several types share their samples: a stack is written
// once, with a value of each type.
type sampleKey struct {
	resource    *otlpprofiles.ResourceProfiles
	stack, link int32
	attributes  string
}

// What the samples of a CPU profiler are counted in, and the time that `go tool pprof` shows for them.
var (
	sampleCount = profile.ValueType{Type: "samples", Unit: "count"}
	cpuTime     = profile.ValueType{Type: "cpu", Unit: "nanoseconds"}
)

func at[T any](table []T, i int32) (v T) {
	if i >= 0 && int(i) < len(table) {
		v = table[i]
	}
	return v
}

func (c *pprofBuilder) str(i int32) string { return at(c.dict.GetStringTable(), i) }

// convert walks the profiles twice: every sample of a pprof profile has a value of each type.
func (c *pprofBuilder) convert() *profile.Profile {
	c.each(func(_ *otlpprofiles.ResourceProfiles, p *otlpprofiles.Profile) { c.header(p) })
	if _, own := c.types[cpuTime]; own { // nothing needs to be computed
		clear(c.cpuTime)
	}
	for vt := range c.cpuTime {
		c.cpuTime[vt] = c.column(cpuTime)
	}
	c.each(func(rp *otlpprofiles.ResourceProfiles, p *otlpprofiles.Profile) { c.samples(rp, p) })
	if len(c.out.SampleType) > 0 {
		c.out.DefaultSampleType = c.out.SampleType[0].Type
	}
	if len(c.cpuTime) > 0 {
		c.out.DefaultSampleType = cpuTime.Type
	}
	return c.out
}

func (c *pprofBuilder) each(visit func(*otlpprofiles.ResourceProfiles, *otlpprofiles.Profile)) {
	for _, rp := range c.data.GetResourceProfiles() {
		for _, sp := range rp.GetScopeProfiles() {
			for _, p := range sp.GetProfiles() {
				visit(rp, p)
			}
		}
	}
}

func (c *pprofBuilder) valueType(v *otlpprofiles.ValueType) profile.ValueType {
	return profile.ValueType{Type: c.str(v.GetTypeStrindex()), Unit: c.str(v.GetUnitStrindex())}
}

func (c *pprofBuilder) header(p *otlpprofiles.Profile) {
	vt := c.valueType(p.GetSampleType())
	c.column(vt)
	if vt == sampleCount && c.valueType(p.GetPeriodType()) == cpuTime && p.GetPeriod() > 0 {
		c.cpuTime[vt] = -1 // see convert
	}
	start := int64(p.GetTimeUnixNano())
	if c.out.TimeNanos == 0 || start < c.out.TimeNanos {
		c.out.TimeNanos = start
	}
	c.out.DurationNanos = max(c.out.DurationNanos, int64(p.GetDurationNano()))
	if c.out.PeriodType == nil && p.GetPeriodType() != nil {
		pt := c.valueType(p.GetPeriodType())
		c.out.PeriodType = &pt
		c.out.Period = p.GetPeriod()
	}
}

// column returns where the values of a type are in a sample.
func (c *pprofBuilder) column(vt profile.ValueType) int {
	i, ok := c.types[vt]
	if !ok {
		i = len(c.out.SampleType)
		c.types[vt] = i
		c.out.SampleType = append(c.out.SampleType, &profile.ValueType{Type: vt.Type, Unit: vt.Unit})
	}
	return i
}

func (c *pprofBuilder) samples(rp *otlpprofiles.ResourceProfiles, p *otlpprofiles.Profile) {
	vt := c.valueType(p.GetSampleType())
	column := c.types[vt]
	time, timed := c.cpuTime[vt]
	labels := map[string][]string{}
	for _, kv := range rp.GetResource().GetAttributes() {
		if pprofResourceKeys[kv.GetKey()] {
			labels[kv.GetKey()] = []string{text(kv.GetValue())}
		}
	}
	for _, s := range p.GetSamples() {
		out := c.sample(rp, s, labels)
		var value int64
		for _, v := range s.GetValues() {
			value += v
		}
		if len(s.GetValues()) == 0 {
			value = int64(len(s.GetTimestampsUnixNano()))
		}
		out.Value[column] += value
		if timed && c.valueType(p.GetPeriodType()) == cpuTime {
			out.Value[time] += times(value, p.GetPeriod())
		}
	}
}

// sample returns the sample that is written for one of a profile, whichever type that has.
func (c *pprofBuilder) sample(rp *otlpprofiles.ResourceProfiles, s *otlpprofiles.Sample, labels map[string][]string) *profile.Sample {
	key := sampleKey{resource: rp, stack: s.GetStackIndex(), link: s.GetLinkIndex(), attributes: fmt.Sprint(s.GetAttributeIndices())}
	if out := c.merged[key]; out != nil {
		return out
	}
	out := &profile.Sample{Value: make([]int64, len(c.out.SampleType)), Label: map[string][]string{}}
	for k, v := range labels {
		out.Label[k] = v
	}
	for _, li := range at(c.dict.GetStackTable(), s.GetStackIndex()).GetLocationIndices() {
		out.Location = append(out.Location, c.location(li))
	}
	c.attributes(out, s.GetAttributeIndices())
	if link := at(c.dict.GetLinkTable(), s.GetLinkIndex()); len(link.GetTraceId()) > 0 {
		out.Label["trace_id"] = []string{hex.EncodeToString(link.GetTraceId())}
		out.Label["span_id"] = []string{hex.EncodeToString(link.GetSpanId())}
	}
	c.merged[key] = out
	c.out.Sample = append(c.out.Sample, out)
	return out
}

// times is v n times, the largest number where that does not fit. What is not positive counts nothing.
func times(v, n int64) int64 {
	switch {
	case v <= 0 || n <= 0:
		return 0
	case v > math.MaxInt64/n:
		return math.MaxInt64
	}
	return v * n
}

func (c *pprofBuilder) attributes(out *profile.Sample, indices []int32) {
	for _, i := range indices {
		kv := at(c.dict.GetAttributeTable(), i)
		key := c.str(kv.GetKeyStrindex())
		if key == "" {
			continue
		}
		if n, ok := kv.GetValue().GetValue().(*commonpb.AnyValue_IntValue); ok {
			if out.NumLabel == nil {
				out.NumLabel, out.NumUnit = map[string][]int64{}, map[string][]string{}
			}
			out.NumLabel[key] = []int64{n.IntValue}
			out.NumUnit[key] = []string{c.str(kv.GetUnitStrindex())}
			continue
		}
		out.Label[key] = []string{text(kv.GetValue())}
	}
}

func (c *pprofBuilder) location(i int32) *profile.Location {
	if l := c.locations[i]; l != nil {
		return l
	}
	in := at(c.dict.GetLocationTable(), i)
	l := &profile.Location{ID: uint64(len(c.out.Location) + 1), Address: in.GetAddress(), Mapping: c.mapping(in.GetMappingIndex())}
	for _, line := range in.GetLines() {
		l.Line = append(l.Line, profile.Line{
			Function: c.function(line.GetFunctionIndex()), Line: line.GetLine(), Column: line.GetColumn(),
		})
	}
	if m := l.Mapping; m != nil && len(l.Line) > 0 {
		m.HasFunctions = true
	}
	c.locations[i] = l
	c.out.Location = append(c.out.Location, l)
	return l
}

func (c *pprofBuilder) function(i int32) *profile.Function {
	if f := c.functions[i]; f != nil {
		return f
	}
	in := at(c.dict.GetFunctionTable(), i)
	f := &profile.Function{
		ID: uint64(len(c.out.Function) + 1), Name: c.str(in.GetNameStrindex()), SystemName: c.str(in.GetSystemNameStrindex()),
		Filename: c.str(in.GetFilenameStrindex()), StartLine: in.GetStartLine(),
	}
	if f.Name == "" {
		f.Name = f.SystemName
	}
	c.functions[i] = f
	c.out.Function = append(c.out.Function, f)
	return f
}

// mapping gives nil for the zero value: nothing is known.
func (c *pprofBuilder) mapping(i int32) *profile.Mapping {
	if i <= 0 || int(i) >= len(c.dict.GetMappingTable()) {
		return nil
	}
	if m := c.mappings[i]; m != nil {
		return m
	}
	in := c.dict.GetMappingTable()[i]
	m := &profile.Mapping{
		ID: uint64(len(c.out.Mapping) + 1), Start: in.GetMemoryStart(), Limit: in.GetMemoryLimit(), Offset: in.GetFileOffset(),
		File: c.str(in.GetFilenameStrindex()),
	}
	for _, ai := range in.GetAttributeIndices() {
		if kv := at(c.dict.GetAttributeTable(), ai); c.str(kv.GetKeyStrindex()) == buildIDKey {
			m.BuildID = kv.GetValue().GetStringValue()
		}
	}
	c.mappings[i] = m
	c.out.Mapping = append(c.out.Mapping, m)
	return m
}

// text is an attribute's value for a label.
func text(v *commonpb.AnyValue) string {
	switch v := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_IntValue:
		return strconv.FormatInt(v.IntValue, 10)
	case *commonpb.AnyValue_BoolValue:
		return strconv.FormatBool(v.BoolValue)
	case *commonpb.AnyValue_DoubleValue:
		return strconv.FormatFloat(v.DoubleValue, 'g', -1, 64)
	case *commonpb.AnyValue_BytesValue:
		return hex.EncodeToString(v.BytesValue)
	case *commonpb.AnyValue_ArrayValue:
		var b []byte
		for i, e := range v.ArrayValue.GetValues() {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, text(e)...)
		}
		return string(b)
	}
	return ""
}
