// Package pprof converts OTLP profiles into one pprof profile, for `go tool pprof` and other readers of its format
// (https://github.com/google/pprof/blob/main/proto/profile.proto).
package pprof

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
	"github.com/klauspost/compress/gzip"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	otlpprofiles "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// Profile returns all profiles of the requests as one pprof profile. It has each stack once, with a value for each type
// of profile. Samples of a CPU profiler (samples/count with a period in cpu/nanoseconds) also get their CPU time as a value,
// shown by default. Attributes of samples become labels, and so do the resource attributes in resourceKeys. Profile accepts
// damaged requests: an index out of range counts as empty.
func Profile[R dictionary.Request](requests ...R) (*profile.Profile, error) {
	b := newBuilder()
	for _, r := range requests {
		b.dict = dictionary.Of(r)
		for p := range dictionary.Profiles(r) {
			b.header(p.Profile)
		}
	}
	b.layOut()
	for _, r := range requests {
		b.begin(dictionary.Of(r))
		for p := range dictionary.Profiles(r) {
			b.samples(p.Resource, p.Profile)
		}
		b.programs()
	}
	p := b.out
	if len(requests) > 1 {
		p = p.Compact() // merges stacks, locations and functions that several requests have
	}
	b.programFirst(p)
	if err := p.CheckValid(); err != nil {
		return nil, fmt.Errorf("the pprof profile is not valid: %w", err)
	}
	return p, nil
}

// File returns the result of Profile as a gzipped file.
func File[R dictionary.Request](requests ...R) ([]byte, error) {
	p, err := Profile(requests...)
	if err != nil {
		return nil, err
	}
	// This package's compressor needs half the time of the standard library's, which Write would use.
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	if err := p.WriteUncompressed(zip); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// resourceKeys are the resource attributes that become labels of each sample. More would make the files large.
var resourceKeys = map[string]bool{
	"service.name": true, "service.namespace": true, "host.name": true, "container.name": true,
	"k8s.namespace.name": true, "k8s.pod.name": true, "k8s.container.name": true, "process.executable.name": true,
}

const buildIDKey = "process.executable.build_id.gnu"

// builder makes one pprof profile of several requests. It first reads their headers, which give the number of values per sample,
// and then their samples.
type builder struct {
	out     *profile.Profile
	types   map[profile.ValueType]int // index of the type's value in a sample
	timed   bool                      // samples have a CPU time, which is their value at the index cpuTime
	cpuTime int
	end     int64 // end of the last profile, in nanoseconds since 1970

	// uses counts the samples of each program's file. A file that only a dictionary names counts 0, because its frames were left
	// out.
	uses map[string]int

	// The following fields belong to the current request.
	dict      dictionary.Dictionary
	merged    map[sampleKey]*profile.Sample
	labeled   map[sampleKey]*profile.Sample // samples with labels, but without stacks and values
	mappings  map[int32]*profile.Mapping
	stacks    map[int32][]*profile.Location
	locations map[string]*profile.Location // by the OTLP locations that make one pprof location
	functions map[int32]*profile.Function
}

func newBuilder() *builder {
	return &builder{out: &profile.Profile{}, types: map[profile.ValueType]int{}, uses: map[string]int{}}
}

func (b *builder) begin(dict dictionary.Dictionary) {
	b.dict = dict
	b.merged, b.labeled = map[sampleKey]*profile.Sample{}, map[sampleKey]*profile.Sample{}
	b.mappings = map[int32]*profile.Mapping{}
	b.stacks = map[int32][]*profile.Location{}
	b.locations = make(map[string]*profile.Location, len(dict.GetLocationTable()))
	b.functions = make(map[int32]*profile.Function, len(dict.GetFunctionTable()))
}

// sampleKey identifies a sample. Profiles of different types share a sample if their keys are equal.
type sampleKey struct {
	resource    *otlpprofiles.ResourceProfiles
	stack, link int32
	attributes  string
}

// sampleCount is the type of a CPU profiler's samples, and cpuTime is the time that `go tool pprof` shows for them.
var (
	sampleCount = profile.ValueType{Type: "samples", Unit: "count"}
	cpuTime     = profile.ValueType{Type: "cpu", Unit: "nanoseconds"}
)

// shownFirst are the default types of Go's own memory and lock profiles.
var shownFirst = []profile.ValueType{{Type: "inuse_space", Unit: "bytes"}, {Type: "alloc_space", Unit: "bytes"}, {Type: "delay", Unit: "nanoseconds"}}

// layOut chooses the values of a sample after all headers were read.
func (b *builder) layOut() {
	if _, own := b.types[cpuTime]; own { // the requests have CPU time themselves
		b.timed = false
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
	if b.timed {
		b.cpuTime = b.column(cpuTime)
		b.out.DefaultSampleType = cpuTime.Type
	}
	b.out.DurationNanos = max(b.end-b.out.TimeNanos, 0)
}

func (b *builder) valueType(v *otlpprofiles.ValueType) profile.ValueType {
	return profile.ValueType{Type: b.dict.Str(v.GetTypeStrindex()), Unit: b.dict.Str(v.GetUnitStrindex())}
}

func (b *builder) header(p *otlpprofiles.Profile) {
	vt := b.valueType(p.GetSampleType())
	b.column(vt)
	b.timed = b.timed || vt == sampleCount && b.valueType(p.GetPeriodType()) == cpuTime && p.GetPeriod() > 0
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

// column returns the column of a type's values in a sample, and adds it if it is missing.
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
	labels := map[string][]string{}
	for _, kv := range rp.GetResource().GetAttributes() {
		if key := b.dict.Key(kv); resourceKeys[key] {
			labels[key] = []string{b.dict.Text(kv.GetValue())}
		}
	}
	for _, s := range p.GetSamples() {
		out := b.sample(rp, s, labels)
		value := dictionary.Total(s)
		out.Value[column] += value
		if b.timed && vt == sampleCount && b.valueType(p.GetPeriodType()) == cpuTime {
			out.Value[b.cpuTime] += times(value, p.GetPeriod())
		}
	}
}

// isProgram reports whether a mapping's name belongs to a program, not to a library.
func isProgram(file string) bool {
	base := path.Base(file)
	return file != "" && !strings.HasPrefix(file, "[") && !strings.HasSuffix(base, ".so") && !strings.Contains(base, ".so.")
}

// programs counts the request's samples by program in uses.
func (b *builder) programs() {
	for i := range b.dict.GetMappingTable() {
		if file := b.dict.Str(dictionary.At(b.dict.GetMappingTable(), int32(i)).GetFilenameStrindex()); isProgram(file) {
			b.uses[file] += 0
		}
	}
	for key, s := range b.merged {
		// If the program is an interpreter or a JVM, or has its code in libraries, its file is possibly in no frame.
		if path := b.dict.OfResource(key.resource, "process.executable.path"); path != "" {
			b.uses[path]++
			continue
		}
		seen := ""
		for _, l := range s.Location {
			if m := l.Mapping; m != nil && m.File != seen && isProgram(m.File) {
				seen = m.File
				b.uses[seen]++
			}
		}
	}
}

// programFirst puts the mapping of the program with the most samples first, because pprof shows that as the profile's file.
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

// sample returns the pprof sample for s, and makes it if there is none with its key.
func (b *builder) sample(rp *otlpprofiles.ResourceProfiles, s *otlpprofiles.Sample, labels map[string][]string) *profile.Sample {
	key := sampleKey{resource: rp, stack: s.GetStackIndex(), link: s.GetLinkIndex(), attributes: string(dictionary.AppendKey(make([]byte, 0, 64), s.GetAttributeIndices()))}
	if out := b.merged[key]; out != nil {
		return out
	}
	like := b.labels(key, s, labels)
	out := &profile.Sample{Location: b.stack(key.stack), Value: make([]int64, len(b.out.SampleType)), Label: like.Label, NumLabel: like.NumLabel, NumUnit: like.NumUnit}
	b.merged[key] = out
	b.out.Sample = append(b.out.Sample, out)
	return out
}

// stack returns the locations of a stack. Samples with the same stack share them.
func (b *builder) stack(i int32) []*profile.Location {
	list, known := b.stacks[i]
	if known {
		return list
	}
	rest := dictionary.At(b.dict.GetStackTable(), i).GetLocationIndices()
	list = make([]*profile.Location, 0, len(rest))
	for len(rest) > 0 {
		n := b.sameCode(rest)
		list = append(list, b.location(rest[:n]))
		rest = rest[n:]
	}
	b.stacks[i] = list
	return list
}

// labels returns a sample with the labels of s. Samples that differ only in their stacks share the labels.
func (b *builder) labels(key sampleKey, s *otlpprofiles.Sample, ofResource map[string][]string) *profile.Sample {
	key.stack = 0
	if like := b.labeled[key]; like != nil {
		return like
	}
	like := &profile.Sample{Label: maps.Clone(ofResource)}
	b.attributes(like, s.GetAttributeIndices())
	if link := dictionary.At(b.dict.GetLinkTable(), s.GetLinkIndex()); len(link.GetTraceId()) > 0 {
		like.Label["trace_id"] = []string{hex.EncodeToString(link.GetTraceId())}
		like.Label["span_id"] = []string{hex.EncodeToString(link.GetSpanId())}
	}
	b.labeled[key] = like
	return like
}

// times returns v * n, or the largest number on overflow. It returns 0 if v or n is not positive.
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
		kv := dictionary.At(b.dict.GetAttributeTable(), i)
		key := b.dict.Str(kv.GetKeyStrindex())
		if key == "" {
			continue
		}
		if n, ok := kv.GetValue().GetValue().(*commonpb.AnyValue_IntValue); ok {
			if out.NumLabel == nil {
				out.NumLabel, out.NumUnit = map[string][]int64{}, map[string][]string{}
			}
			out.NumLabel[key] = []int64{n.IntValue}
			out.NumUnit[key] = []string{b.dict.Str(kv.GetUnitStrindex())}
			continue
		}
		out.Label[key] = []string{b.dict.Text(kv.GetValue())}
	}
}

// sameCode counts the locations at the start of a stack that share one address: an inlined function and its callers. They become
// one pprof location, because Go's compiler reads the two innermost locations of a stack, with all their lines. A location that
// occurs again is a recursive call, not an inlined one.
func (b *builder) sameCode(stack []int32) int {
	first := dictionary.At(b.dict.GetLocationTable(), stack[0])
	most := min(len(stack), maxInlined)
	for n := 1; n < most; n++ {
		l := dictionary.At(b.dict.GetLocationTable(), stack[n])
		if l.GetAddress() == 0 || l.GetAddress() != first.GetAddress() || l.GetMappingIndex() != first.GetMappingIndex() ||
			len(l.GetLines()) == 0 || len(first.GetLines()) == 0 || slices.Contains(stack[:n], stack[n]) {
			return n
		}
	}
	return most
}

// maxInlined limits the depth of inlining.
const maxInlined = 64

// location returns the pprof location for OTLP locations that share one address.
func (b *builder) location(indices []int32) *profile.Location {
	key := dictionary.AppendKey(make([]byte, 0, 32), indices)
	if l := b.locations[string(key)]; l != nil {
		return l
	}
	first := dictionary.At(b.dict.GetLocationTable(), indices[0])
	l := &profile.Location{ID: uint64(len(b.out.Location) + 1), Address: first.GetAddress(), Mapping: b.mapping(first.GetMappingIndex())}
	for _, i := range indices {
		for _, line := range dictionary.At(b.dict.GetLocationTable(), i).GetLines() {
			l.Line = append(l.Line, profile.Line{Function: b.function(line.GetFunctionIndex()), Line: line.GetLine(), Column: line.GetColumn()})
		}
	}
	if m := l.Mapping; m != nil && len(l.Line) > 0 {
		m.HasFunctions = true
	}
	b.locations[string(key)] = l
	b.out.Location = append(b.out.Location, l)
	return l
}

func (b *builder) function(i int32) *profile.Function {
	if f := b.functions[i]; f != nil {
		return f
	}
	in := dictionary.At(b.dict.GetFunctionTable(), i)
	f := &profile.Function{
		ID: uint64(len(b.out.Function) + 1), Name: b.dict.Str(in.GetNameStrindex()), SystemName: b.dict.Str(in.GetSystemNameStrindex()),
		Filename: b.dict.Str(in.GetFilenameStrindex()), StartLine: in.GetStartLine(),
	}
	if f.Name == "" {
		f.Name = f.SystemName
	}
	b.functions[i] = f
	b.out.Function = append(b.out.Function, f)
	return f
}

// mapping returns nil if the index is out of range or 0, which means unknown in OTLP.
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
		File: b.dict.Str(in.GetFilenameStrindex()), BuildID: b.dict.Attribute(in.GetAttributeIndices(), buildIDKey),
	}
	b.mappings[i] = m
	b.out.Mapping = append(b.out.Mapping, m)
	return m
}
