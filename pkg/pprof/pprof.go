// Package pprof turns OTLP profiles into one pprof profile, for `go tool pprof` and everything else that reads its format
// (https://github.com/google/pprof/blob/main/proto/profile.proto).
package pprof

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	otlpprofiles "go.opentelemetry.io/proto/otlp/profiles/v1development"
)

// Request is what holds profiles: a request to a receiver, or ProfilesData of a file. They have the same fields.
type Request interface {
	GetResourceProfiles() []*otlpprofiles.ResourceProfiles
	GetDictionary() *otlpprofiles.ProfilesDictionary
}

// File returns the gzip'd pprof profile of all profiles of the requests. A stack is written once, with a value of each
// type of profile; samples of a CPU profiler (samples/count with a period in cpu/nanoseconds) have their time as a value of
// its own, which is the one that is shown. Attributes of samples become labels, and those of resources that tell services
// and containers apart. It takes any requests, also damaged ones: what an index out of range refers to is empty.
func File[R Request](requests ...R) ([]byte, error) {
	b := newBuilder()
	for _, r := range requests {
		b.dict = r.GetDictionary()
		each(r, func(_ *otlpprofiles.ResourceProfiles, p *otlpprofiles.Profile) { b.header(p) })
	}
	b.layOut()
	for _, r := range requests {
		b.begin(r.GetDictionary())
		each(r, b.samples)
		b.programs()
	}
	p := b.out
	if len(requests) > 1 {
		p = p.Compact() // stacks, locations and functions that several of them have
	}
	b.programFirst(p)
	if err := p.CheckValid(); err != nil {
		return nil, fmt.Errorf("the pprof profile is not valid: %w", err)
	}
	var out bytes.Buffer
	if err := p.Write(&out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// resourceKeys are the resource attributes that become labels of each sample. All attributes would make
// the files large.
var resourceKeys = map[string]bool{
	"service.name": true, "service.namespace": true, "host.name": true, "container.name": true,
	"k8s.namespace.name": true, "k8s.pod.name": true, "k8s.container.name": true,
}

const buildIDKey = "process.executable.build_id.gnu"

// builder makes one pprof profile of several requests: first their headers are read, which say how many values a sample
// has, then their samples.
type builder struct {
	out     *profile.Profile
	types   map[profile.ValueType]int // where in a sample the values of a type are
	cpuTime map[profile.ValueType]int // of a type that counts samples: where in a sample their CPU time is
	end     int64                     // of the last profile, in nanoseconds since 1970

	// uses counts the samples of each program's file. A file that is only in a dictionary counts 0: all its frames were left out.
	uses map[string]int

	// What follows is of the request that is being read.
	dict      *otlpprofiles.ProfilesDictionary
	merged    map[sampleKey]*profile.Sample
	mappings  map[int32]*profile.Mapping
	locations map[string]*profile.Location // by the locations of OTLP that are one of pprof
	functions map[int32]*profile.Function
}

func newBuilder() *builder {
	return &builder{out: &profile.Profile{}, types: map[profile.ValueType]int{}, cpuTime: map[profile.ValueType]int{}, uses: map[string]int{}}
}

// begin starts the samples of a request.
func (b *builder) begin(dict *otlpprofiles.ProfilesDictionary) {
	b.dict = dict
	b.merged = map[sampleKey]*profile.Sample{}
	b.mappings = map[int32]*profile.Mapping{}
	b.locations = map[string]*profile.Location{}
	b.functions = map[int32]*profile.Function{}
}

// sampleKey is what makes a sample distinct. Profiles of different types that have the same key share one sample.
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

// shownFirst are the types that Go's own profiles of memory and of locks show first, where there are several.
var shownFirst = []profile.ValueType{{Type: "inuse_space", Unit: "bytes"}, {Type: "alloc_space", Unit: "bytes"}, {Type: "delay", Unit: "nanoseconds"}}

// at returns the zero value for an index that is out of range.
func at[T any](table []T, i int32) (v T) {
	if i >= 0 && int(i) < len(table) {
		v = table[i]
	}
	return v
}

func (b *builder) str(i int32) string { return at(b.dict.GetStringTable(), i) }

// layOut decides on the values of a sample, once all headers are read.
func (b *builder) layOut() {
	if _, own := b.types[cpuTime]; own { // the requests bring CPU time themselves
		clear(b.cpuTime)
	}
	for vt := range b.cpuTime {
		b.cpuTime[vt] = b.column(cpuTime)
	}
	if len(b.out.SampleType) > 0 {
		b.out.DefaultSampleType = b.out.SampleType[0].Type
	}
	for _, vt := range shownFirst {
		if _, there := b.types[vt]; there {
			b.out.DefaultSampleType = vt.Type
			break
		}
	}
	if len(b.cpuTime) > 0 {
		b.out.DefaultSampleType = cpuTime.Type
	}
	b.out.DurationNanos = max(b.end-b.out.TimeNanos, 0)
}

func each(r Request, visit func(*otlpprofiles.ResourceProfiles, *otlpprofiles.Profile)) {
	for _, rp := range r.GetResourceProfiles() {
		for _, sp := range rp.GetScopeProfiles() {
			for _, p := range sp.GetProfiles() {
				visit(rp, p)
			}
		}
	}
}

func (b *builder) valueType(v *otlpprofiles.ValueType) profile.ValueType {
	return profile.ValueType{Type: b.str(v.GetTypeStrindex()), Unit: b.str(v.GetUnitStrindex())}
}

func (b *builder) header(p *otlpprofiles.Profile) {
	vt := b.valueType(p.GetSampleType())
	b.column(vt)
	if vt == sampleCount && b.valueType(p.GetPeriodType()) == cpuTime && p.GetPeriod() > 0 {
		b.cpuTime[vt] = -1 // layOut puts the column here, once all types are known
	}
	start := int64(p.GetTimeUnixNano())
	if b.out.TimeNanos == 0 || start < b.out.TimeNanos {
		b.out.TimeNanos = start
	}
	b.end = max(b.end, start+int64(p.GetDurationNano()))
	if b.out.PeriodType == nil && p.GetPeriodType() != nil {
		pt := b.valueType(p.GetPeriodType())
		b.out.PeriodType = &pt
		b.out.Period = p.GetPeriod()
	}
}

// column returns where in a sample the values of a type are, and makes room for them if there is none yet.
func (b *builder) column(vt profile.ValueType) int {
	i, ok := b.types[vt]
	if !ok {
		i = len(b.out.SampleType)
		b.types[vt] = i
		b.out.SampleType = append(b.out.SampleType, &profile.ValueType{Type: vt.Type, Unit: vt.Unit})
	}
	return i
}

func (b *builder) samples(rp *otlpprofiles.ResourceProfiles, p *otlpprofiles.Profile) {
	vt := b.valueType(p.GetSampleType())
	column := b.types[vt]
	time, timed := b.cpuTime[vt]
	labels := map[string][]string{}
	for _, kv := range rp.GetResource().GetAttributes() {
		key := kv.GetKey()
		if kv.GetKeyStrindex() != 0 {
			key = b.str(kv.GetKeyStrindex())
		}
		if resourceKeys[key] {
			labels[key] = []string{b.text(kv.GetValue())}
		}
	}
	for _, s := range p.GetSamples() {
		out := b.sample(rp, s, labels)
		var value int64
		for _, v := range s.GetValues() {
			value += v
		}
		if len(s.GetValues()) == 0 {
			value = int64(len(s.GetTimestampsUnixNano()))
		}
		out.Value[column] += value
		if timed && b.valueType(p.GetPeriodType()) == cpuTime {
			out.Value[time] += times(value, p.GetPeriod())
		}
	}
}

// isProgram reports whether a mapping is a program's and no library's, by its name.
func isProgram(file string) bool {
	base := path.Base(file)
	return file != "" && !strings.HasPrefix(file, "[") && !strings.HasSuffix(base, ".so") && !strings.Contains(base, ".so.")
}

// programs counts in uses which programs the request is of.
func (b *builder) programs() {
	for i := range b.dict.GetMappingTable() {
		if file := b.str(at(b.dict.GetMappingTable(), int32(i)).GetFilenameStrindex()); isProgram(file) {
			b.uses[file] += 0
		}
	}
	for _, s := range b.merged {
		seen := ""
		for _, l := range s.Location {
			if m := l.Mapping; m != nil && m.File != seen && isProgram(m.File) {
				seen = m.File
				b.uses[seen]++
			}
		}
	}
}

// programFirst puts the mapping of the program that most samples are of first: it is the one that pprof calls the profile's file.
func (b *builder) programFirst(p *profile.Profile) {
	program := ""
	for file, n := range b.uses {
		if program == "" || n > b.uses[program] || n == b.uses[program] && file < program {
			program = file
		}
	}
	if program == "" {
		return
	}
	i := slices.IndexFunc(p.Mapping, func(m *profile.Mapping) bool { return m.File == program })
	if i < 0 {
		i = len(p.Mapping)
		p.Mapping = append(p.Mapping, &profile.Mapping{File: program})
	}
	p.Mapping = slices.Concat(p.Mapping[i:i+1], p.Mapping[:i], p.Mapping[i+1:])
	for i, m := range p.Mapping {
		m.ID = uint64(i + 1)
	}
}

// sample returns the sample of the pprof profile that s belongs to. It is made if there is none with its key yet.
func (b *builder) sample(rp *otlpprofiles.ResourceProfiles, s *otlpprofiles.Sample, labels map[string][]string) *profile.Sample {
	key := sampleKey{resource: rp, stack: s.GetStackIndex(), link: s.GetLinkIndex(), attributes: fmt.Sprint(s.GetAttributeIndices())}
	if out := b.merged[key]; out != nil {
		return out
	}
	out := &profile.Sample{Value: make([]int64, len(b.out.SampleType)), Label: map[string][]string{}}
	for k, v := range labels {
		out.Label[k] = v
	}
	for rest := at(b.dict.GetStackTable(), s.GetStackIndex()).GetLocationIndices(); len(rest) > 0; {
		n := b.sameCode(rest)
		out.Location = append(out.Location, b.location(rest[:n]))
		rest = rest[n:]
	}
	b.attributes(out, s.GetAttributeIndices())
	if link := at(b.dict.GetLinkTable(), s.GetLinkIndex()); len(link.GetTraceId()) > 0 {
		out.Label["trace_id"] = []string{hex.EncodeToString(link.GetTraceId())}
		out.Label["span_id"] = []string{hex.EncodeToString(link.GetSpanId())}
	}
	b.merged[key] = out
	b.out.Sample = append(b.out.Sample, out)
	return out
}

// times returns v * n, or the largest number where that does not fit; 0 if v or n is not positive.
func times(v, n int64) int64 {
	switch {
	case v <= 0 || n <= 0:
		return 0
	case v > math.MaxInt64/n:
		return math.MaxInt64
	}
	return v * n
}

func (b *builder) attributes(out *profile.Sample, indices []int32) {
	for _, i := range indices {
		kv := at(b.dict.GetAttributeTable(), i)
		key := b.str(kv.GetKeyStrindex())
		if key == "" {
			continue
		}
		if n, ok := kv.GetValue().GetValue().(*commonpb.AnyValue_IntValue); ok {
			if out.NumLabel == nil {
				out.NumLabel, out.NumUnit = map[string][]int64{}, map[string][]string{}
			}
			out.NumLabel[key] = []int64{n.IntValue}
			out.NumUnit[key] = []string{b.str(kv.GetUnitStrindex())}
			continue
		}
		out.Label[key] = []string{b.text(kv.GetValue())}
	}
}

// sameCode counts the locations at the begin of a stack that are of one place in the code: a function that was inlined, and those that it
// was inlined into. Go's compiler takes the two innermost locations of a stack, with all their lines. A location that comes again is a call.
func (b *builder) sameCode(stack []int32) int {
	first := at(b.dict.GetLocationTable(), stack[0])
	most := min(len(stack), maxInlined)
	for n := 1; n < most; n++ {
		l := at(b.dict.GetLocationTable(), stack[n])
		if l.GetAddress() == 0 || l.GetAddress() != first.GetAddress() || l.GetMappingIndex() != first.GetMappingIndex() ||
			len(l.GetLines()) == 0 || len(first.GetLines()) == 0 || slices.Contains(stack[:n], stack[n]) {
			return n
		}
	}
	return most
}

// maxInlined is how many functions may be inlined into one another.
const maxInlined = 64

// location returns the location of pprof for locations of one place in the code.
func (b *builder) location(indices []int32) *profile.Location {
	key := fmt.Sprint(indices)
	if l := b.locations[key]; l != nil {
		return l
	}
	first := at(b.dict.GetLocationTable(), indices[0])
	l := &profile.Location{ID: uint64(len(b.out.Location) + 1), Address: first.GetAddress(), Mapping: b.mapping(first.GetMappingIndex())}
	for _, i := range indices {
		for _, line := range at(b.dict.GetLocationTable(), i).GetLines() {
			l.Line = append(l.Line, profile.Line{Function: b.function(line.GetFunctionIndex()), Line: line.GetLine(), Column: line.GetColumn()})
		}
	}
	if m := l.Mapping; m != nil && len(l.Line) > 0 {
		m.HasFunctions = true
	}
	b.locations[key] = l
	b.out.Location = append(b.out.Location, l)
	return l
}

func (b *builder) function(i int32) *profile.Function {
	if f := b.functions[i]; f != nil {
		return f
	}
	in := at(b.dict.GetFunctionTable(), i)
	f := &profile.Function{
		ID: uint64(len(b.out.Function) + 1), Name: b.str(in.GetNameStrindex()), SystemName: b.str(in.GetSystemNameStrindex()),
		Filename: b.str(in.GetFilenameStrindex()), StartLine: in.GetStartLine(),
	}
	if f.Name == "" {
		f.Name = f.SystemName
	}
	b.functions[i] = f
	b.out.Function = append(b.out.Function, f)
	return f
}

// mapping returns nil for index 0, by which OTLP says that the mapping is not known, and for one out of range.
func (b *builder) mapping(i int32) *profile.Mapping {
	if i <= 0 || int(i) >= len(b.dict.GetMappingTable()) {
		return nil
	}
	if m := b.mappings[i]; m != nil {
		return m
	}
	in := b.dict.GetMappingTable()[i]
	m := &profile.Mapping{
		ID: uint64(len(b.out.Mapping) + 1), Start: in.GetMemoryStart(), Limit: in.GetMemoryLimit(), Offset: in.GetFileOffset(),
		File: b.str(in.GetFilenameStrindex()),
	}
	for _, ai := range in.GetAttributeIndices() {
		if kv := at(b.dict.GetAttributeTable(), ai); b.str(kv.GetKeyStrindex()) == buildIDKey {
			m.BuildID = kv.GetValue().GetStringValue()
		}
	}
	b.mappings[i] = m
	b.out.Mapping = append(b.out.Mapping, m)
	return m
}

// text returns an attribute's value as text for a label. It may be an index of the string table, as a Collector writes
// it.
func (b *builder) text(v *commonpb.AnyValue) string {
	switch v := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_StringValueStrindex:
		return b.str(v.StringValueStrindex)
	case *commonpb.AnyValue_IntValue:
		return strconv.FormatInt(v.IntValue, 10)
	case *commonpb.AnyValue_BoolValue:
		return strconv.FormatBool(v.BoolValue)
	case *commonpb.AnyValue_DoubleValue:
		return strconv.FormatFloat(v.DoubleValue, 'g', -1, 64)
	case *commonpb.AnyValue_BytesValue:
		return hex.EncodeToString(v.BytesValue)
	case *commonpb.AnyValue_ArrayValue:
		var texts []string
		for _, e := range v.ArrayValue.GetValues() {
			texts = append(texts, b.text(e))
		}
		return strings.Join(texts, ",")
	}
	return ""
}
