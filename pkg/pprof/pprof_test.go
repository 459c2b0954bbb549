package pprof

import (
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	colprofiles "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	otlpprofiles "go.opentelemetry.io/proto/otlp/profiles/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

const start = 1_700_000_000_000_000_000

// request returns two stacks of a CPU profiler in a process with the given PID. The order of the dictionary depends on second,
// because the dictionaries of two intervals differ.
func request(pid int64, second int) *colprofiles.ExportProfilesServiceRequest {
	names := []string{"main", "leaf"}
	if second > 0 {
		names = []string{"leaf", "main"}
	}
	main, leaf := int32(1+second), int32(2-second)
	return &colprofiles.ExportProfilesServiceRequest{
		ResourceProfiles: []*otlpprofiles.ResourceProfiles{{
			// A Collector puts the key and the value into the string table.
			Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{{
				KeyStrindex: 7, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValueStrindex{StringValueStrindex: 8}},
			}}},
			ScopeProfiles: []*otlpprofiles.ScopeProfiles{{Profiles: []*otlpprofiles.Profile{{
				SampleType: &otlpprofiles.ValueType{TypeStrindex: 3, UnitStrindex: 4},
				PeriodType: &otlpprofiles.ValueType{TypeStrindex: 5, UnitStrindex: 6}, Period: 1000,
				TimeUnixNano: uint64(start + second*10e9), DurationNano: 10e9,
				Samples: []*otlpprofiles.Sample{
					{StackIndex: 1, Values: []int64{3}, AttributeIndices: []int32{1}},
					{StackIndex: 2, Values: []int64{2}, AttributeIndices: []int32{1}},
				},
			}}}},
		}},
		Dictionary: &otlpprofiles.ProfilesDictionary{
			StringTable:    []string{"", names[0], names[1], "samples", "count", "cpu", "nanoseconds", "service.name", "shop", "process.pid", "/app"},
			MappingTable:   []*otlpprofiles.Mapping{{}, {FilenameStrindex: 10}},
			FunctionTable:  []*otlpprofiles.Function{{}, {NameStrindex: 1}, {NameStrindex: 2}},
			LocationTable:  []*otlpprofiles.Location{{}, {MappingIndex: 1, Lines: []*otlpprofiles.Line{{FunctionIndex: main}}}, {MappingIndex: 1, Lines: []*otlpprofiles.Line{{FunctionIndex: leaf}}}},
			StackTable:     []*otlpprofiles.Stack{{}, {LocationIndices: []int32{2, 1}}, {LocationIndices: []int32{1}}},
			AttributeTable: []*otlpprofiles.KeyValueAndUnit{{}, {KeyStrindex: 9, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: pid}}}},
			LinkTable:      []*otlpprofiles.Link{{}},
		},
	}
}

// parsed returns the file of these requests, as pprof reads it.
func parsed(t *testing.T, requests ...*colprofiles.ExportProfilesServiceRequest) *profile.Profile {
	t.Helper()
	file, err := File(requests...)
	require.NoError(t, err)
	p, err := profile.ParseData(file)
	require.NoError(t, err)
	return p
}

// A stack in several requests is written once, with the sum of its values.
func TestSeveralRequests(t *testing.T) {
	p := parsed(t, request(7, 1), request(8, 1), request(7, 0))
	require.Equal(t, []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}, p.SampleType)
	require.Equal(t, "cpu", p.DefaultSampleType)
	require.EqualValues(t, start, p.TimeNanos)
	require.EqualValues(t, 20e9, p.DurationNanos)
	require.Len(t, p.Function, 2)
	require.Len(t, p.Location, 2)
	require.Len(t, p.Mapping, 1)
	require.Len(t, p.Sample, 4)
	sums := map[string]map[int64][]int64{}
	for _, s := range p.Sample {
		leaf := s.Location[0].Line[0].Function.Name
		if sums[leaf] == nil {
			sums[leaf] = map[int64][]int64{}
		}
		sums[leaf][s.NumLabel["process.pid"][0]] = s.Value
		require.Equal(t, []string{"shop"}, s.Label["service.name"])
	}
	require.Equal(t, map[string]map[int64][]int64{
		"leaf": {7: {6, 6000}, 8: {3, 3000}},
		"main": {7: {4, 4000}, 8: {2, 2000}},
	}, sums)
}

// Inlined functions become lines of one location, because Go's compiler reads the two innermost locations. Recursion is not
// inlined.
func TestInlined(t *testing.T) {
	r := request(7, 0)
	d := r.Dictionary
	d.FunctionTable[1].StartLine, d.FunctionTable[2].StartLine = 3, 30
	d.LocationTable = []*otlpprofiles.Location{
		{},
		{MappingIndex: 1, Address: 16, Lines: []*otlpprofiles.Line{{FunctionIndex: 2, Line: 31}}},
		{MappingIndex: 1, Address: 16, Lines: []*otlpprofiles.Line{{FunctionIndex: 1, Line: 5}}},
		{MappingIndex: 1, Address: 32, Lines: []*otlpprofiles.Line{{FunctionIndex: 1, Line: 7}}},
		{MappingIndex: 1, Lines: []*otlpprofiles.Line{{FunctionIndex: 1, Line: 8}}},
		{MappingIndex: 1, Lines: []*otlpprofiles.Line{{FunctionIndex: 2, Line: 9}}},
		{MappingIndex: 2, Address: 16, Lines: []*otlpprofiles.Line{{FunctionIndex: 2, Line: 36}}}, // in another file
	}
	d.MappingTable = append(d.MappingTable, &otlpprofiles.Mapping{FilenameStrindex: 10})
	d.StackTable[1].LocationIndices = []int32{1, 2, 1, 2, 3, 3}
	d.StackTable[2].LocationIndices = []int32{1, 2, 6, 4, 5}
	p := parsed(t, r)
	lines := func(s *profile.Sample) (lines [][]int64) {
		for _, l := range s.Location {
			var of []int64
			for _, line := range l.Line {
				of = append(of, line.Line-line.Function.StartLine)
			}
			lines = append(lines, of)
		}
		return lines
	}
	require.Equal(t, [][]int64{{1, 2}, {1, 2}, {4}, {4}}, lines(p.Sample[0]))
	require.Equal(t, [][]int64{{1, 2}, {6}, {5}, {-21}}, lines(p.Sample[1]), "without an address it is not known")
	require.Equal(t, p.Sample[0].Location[0], p.Sample[1].Location[0])
	require.Len(t, p.Location, 5)
	require.Len(t, p.Function, 2)
}

// The default type of memory and lock profiles must be the same as in Go's own profiles.
func TestDefaultSampleType(t *testing.T) {
	for want, types := range map[string][][2]string{
		"inuse_space": {{"inuse_objects", "count"}, {"inuse_space", "bytes"}},
		"alloc_space": {{"alloc_objects", "count"}, {"alloc_space", "bytes"}},
		"delay":       {{"contentions", "count"}, {"delay", "nanoseconds"}},
		"page_faults": {{"page_faults", "count"}},
	} {
		var requests []*colprofiles.ExportProfilesServiceRequest
		for _, vt := range types {
			r := request(7, 0)
			r.Dictionary.StringTable = append(r.Dictionary.StringTable, vt[0], vt[1])
			r.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].SampleType = &otlpprofiles.ValueType{TypeStrindex: 11, UnitStrindex: 12}
			requests = append(requests, r)
		}
		if want != "page_faults" { // removes the CPU time, which would be the default
			for _, r := range requests {
				r.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].PeriodType = nil
			}
		}
		p := parsed(t, requests...)
		require.Equal(t, want, p.DefaultSampleType)
	}
}

// The first mapping must belong to the program, not to the leaf's library, because pprof shows it as the profile's file.
func TestProgramIsTheFirstMapping(t *testing.T) {
	shop := func() *colprofiles.ExportProfilesServiceRequest {
		r := request(7, 0)
		d := r.Dictionary
		d.StringTable = append(d.StringTable, "/usr/lib/libc.so.6", "[kernel.kallsyms]", "/usr/lib/libjvm.so", "/job")
		d.MappingTable = append(d.MappingTable, &otlpprofiles.Mapping{FilenameStrindex: 11}, &otlpprofiles.Mapping{FilenameStrindex: 12})
		d.LocationTable = append(d.LocationTable, &otlpprofiles.Location{MappingIndex: 2, Address: 5}, &otlpprofiles.Location{MappingIndex: 3, Address: 6})
		return r
	}
	files := func(requests ...*colprofiles.ExportProfilesServiceRequest) (names []string) {
		p := parsed(t, requests...)
		require.NoError(t, p.CheckValid())
		for _, m := range p.Mapping {
			names = append(names, m.File)
		}
		return names
	}
	r := shop()
	r.Dictionary.StackTable[1].LocationIndices = []int32{4, 3, 2, 1}
	require.Equal(t, []string{"/app", "[kernel.kallsyms]", "/usr/lib/libc.so.6"}, files(r))
	require.Equal(t, []string{"/app", "[kernel.kallsyms]", "/usr/lib/libc.so.6"}, files(r, request(8, 1)))

	r = shop()
	for _, s := range r.Dictionary.StackTable[1:] {
		s.LocationIndices = []int32{3}
	}
	require.Equal(t, []string{"/app", "/usr/lib/libc.so.6"}, files(r), "its own frames were left out")

	r = shop()
	r.Dictionary.MappingTable[1] = &otlpprofiles.Mapping{}
	r.Dictionary.MappingTable = append(r.Dictionary.MappingTable, &otlpprofiles.Mapping{FilenameStrindex: 13})
	r.Dictionary.LocationTable = append(r.Dictionary.LocationTable, &otlpprofiles.Location{MappingIndex: 4, Address: 7}, &otlpprofiles.Location{Address: 8})
	r.Dictionary.StackTable[1].LocationIndices = []int32{3, 4, 6}
	r.Dictionary.StackTable[2].LocationIndices = []int32{3, 5}
	require.Equal(t, []string{"/usr/lib/libc.so.6", "[kernel.kallsyms]", "/usr/lib/libjvm.so"}, files(r), "no program is known")

	path := &commonpb.KeyValue{Key: "process.executable.path", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: "/usr/bin/java"}}}
	r.ResourceProfiles[0].Resource = &resourcepb.Resource{Attributes: []*commonpb.KeyValue{path}}
	require.Equal(t, []string{"/usr/bin/java", "/usr/lib/libc.so.6", "[kernel.kallsyms]", "/usr/lib/libjvm.so"}, files(r), "its code is in libraries alone")

	r = shop()
	r.Dictionary.MappingTable[2].FilenameStrindex = 14
	r.Dictionary.StackTable[1].LocationIndices = []int32{3, 3, 1}
	require.Equal(t, []string{"/app", "/job"}, files(r), "both have samples: /app has more")
	r.Dictionary.StackTable[2].LocationIndices = []int32{3}
	require.Equal(t, []string{"/job", "/app"}, files(r), "/job has more, and recursion does not count")
	r.Dictionary.StackTable[2].LocationIndices = nil
	require.Equal(t, []string{"/app", "/job"}, files(r), "the first by name")
}

// Everything that a message can say must be in the file.
func TestEveryField(t *testing.T) {
	r := request(7, 0)
	d := r.Dictionary
	d.StringTable = append(d.StringTable, "_main", "main.c", "milliseconds", "wait", "state", buildIDKey, "abc") // 11 to 17
	d.FunctionTable = append(d.FunctionTable, &otlpprofiles.Function{SystemNameStrindex: 11, FilenameStrindex: 12, StartLine: 4})
	d.MappingTable[1] = &otlpprofiles.Mapping{MemoryStart: 0x1000, MemoryLimit: 0x3000, FileOffset: 0x200, FilenameStrindex: 10, AttributeIndices: []int32{4}}
	d.LocationTable = []*otlpprofiles.Location{{}, {MappingIndex: 1, Address: 0x1010, Lines: []*otlpprofiles.Line{{FunctionIndex: 3, Line: 5, Column: 9}}}, {MappingIndex: 2, Address: 0x20}}
	d.AttributeTable = append(d.AttributeTable, &otlpprofiles.KeyValueAndUnit{KeyStrindex: 14, UnitStrindex: 13, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: 4}}},
		&otlpprofiles.KeyValueAndUnit{KeyStrindex: 15, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: "idle"}}},
		&otlpprofiles.KeyValueAndUnit{KeyStrindex: 16, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValueStrindex{StringValueStrindex: 17}}},
		&otlpprofiles.KeyValueAndUnit{Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: "without a key"}}})
	d.LinkTable = append(d.LinkTable, &otlpprofiles.Link{TraceId: []byte{1}, SpanId: []byte{2}})
	rp := r.ResourceProfiles[0]
	for _, key := range []string{"host.id", "service.namespace", "host.name", "container.name", "k8s.namespace.name", "k8s.pod.name", "k8s.container.name", "process.executable.name"} {
		rp.Resource.Attributes = append(rp.Resource.Attributes, &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: key}}})
	}
	cpu := rp.ScopeProfiles[0].Profiles[0]
	cpu.Samples = []*otlpprofiles.Sample{
		{StackIndex: 1, LinkIndex: 1, AttributeIndices: []int32{2, 3, 5}, TimestampsUnixNano: []uint64{start, start + 1}},
		{StackIndex: 1, LinkIndex: 1, AttributeIndices: []int32{2, 3, 5}, Values: []int64{3, 4}},
		{StackIndex: 2, LinkIndex: 1, AttributeIndices: []int32{2, 3, 5}, Values: []int64{1 << 60}},
		{StackIndex: 1, Values: []int64{-5}},
		{StackIndex: 1, LinkIndex: 1, Values: []int64{1}},
		{StackIndex: 1, AttributeIndices: []int32{3}, Values: []int64{1}},
	}
	rp.ScopeProfiles[0].Profiles = append(rp.ScopeProfiles[0].Profiles, &otlpprofiles.Profile{
		SampleType: &otlpprofiles.ValueType{TypeStrindex: 14, UnitStrindex: 13}, TimeUnixNano: start - 1e9, DurationNano: 2e9,
		Samples: []*otlpprofiles.Sample{{StackIndex: 1, Values: []int64{8}}},
	}, &otlpprofiles.Profile{SampleType: cpu.SampleType, PeriodType: cpu.SampleType, Period: 5, TimeUnixNano: start, DurationNano: 1e9, Samples: []*otlpprofiles.Sample{{StackIndex: 1, Values: []int64{100}}}})
	p := parsed(t, r)
	var lines []string
	for line := range strings.Lines(p.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	const labels = "container.name:[container.name] host.name:[host.name] k8s.container.name:[k8s.container.name] k8s.namespace.name:[k8s.namespace.name] " +
		"k8s.pod.name:[k8s.pod.name] process.executable.name:[process.executable.name] service.name:[shop] service.namespace:[service.namespace]"
	require.Equal(t, []string{
		"PeriodType: cpu nanoseconds", "Period: 1000", "Time: 2023-11-14 22:13:19 +0000 UTC", "Duration: 11s", "Samples:",
		"samples/count wait/milliseconds cpu/nanoseconds[dflt]",
		"9 0 9000: 1 2", labels + " span_id:[02] state:[idle] trace_id:[01]", "wait:[4 milliseconds]",
		"1152921504606846976 0 9223372036854775807: 2", labels + " span_id:[02] state:[idle] trace_id:[01]", "wait:[4 milliseconds]",
		"95 8 0: 1 2", labels, "1 0 1000: 1 2", labels + " span_id:[02] trace_id:[01]", "1 0 1000: 1 2", labels + " state:[idle]",
		"Locations", "1: 0x20", "2: 0x1010 M=1 _main main.c:5:9 s=4", "Mappings", "1: 0x1000/0x3000/0x200 /app abc [FN]",
	}, lines)
}

// If the requests have CPU time themselves, it is not also computed from the number of samples.
func TestOwnCPUTime(t *testing.T) {
	own := request(7, 0)
	p := own.ResourceProfiles[0].ScopeProfiles[0].Profiles[0]
	p.SampleType = &otlpprofiles.ValueType{TypeStrindex: 5, UnitStrindex: 6}
	p.Samples[0].Values, p.Samples[1].Values = []int64{3100}, []int64{1900}
	got := parsed(t, request(7, 0), own)
	require.Len(t, got.SampleType, 2)
	require.Equal(t, []int64{3, 3100}, got.Sample[0].Value)
	require.Equal(t, []int64{2, 1900}, got.Sample[1].Value)
}

// FuzzFile expects an error or a valid profile for any two messages.
func FuzzFile(f *testing.F) {
	a, err := proto.Marshal(request(7, 0))
	require.NoError(f, err)
	b, err := proto.Marshal(request(8, 1))
	require.NoError(f, err)
	f.Add(a, b)
	f.Add([]byte{}, a)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		one, two := &otlpprofiles.ProfilesData{}, &otlpprofiles.ProfilesData{}
		if proto.Unmarshal(a, one) != nil || proto.Unmarshal(b, two) != nil {
			return
		}
		for _, requests := range [][]*otlpprofiles.ProfilesData{{one}, {one, two}} {
			if file, err := File(requests...); err == nil {
				_, err := profile.ParseData(file)
				require.NoError(t, err)
			}
		}
	})
}
