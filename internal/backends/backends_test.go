package backends

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

const testTime = uint64(1_700_000_000_000_000_000)

func text(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
}

func number(i int64) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: i}}
}

func keyValue(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: text(value)}
}

// valid returns a request that every receiver accepts and shows. Its samples have only timestamps, as Elastic and devfiler
// require.
func valid() *collectorpb.ExportProfilesServiceRequest {
	return &collectorpb.ExportProfilesServiceRequest{
		Dictionary: &profilespb.ProfilesDictionary{
			StringTable: []string{
				"", "samples", "count", "cpu", "nanoseconds", "main.work", "/usr/bin/app", // 0 to 6
				otlpcheck.KeyHTLHash, otlpcheck.KeyFrameType, "thread.name", "service.name", "vfs_read", // 7 to 11
			},
			AttributeTable: []*profilespb.KeyValueAndUnit{
				{},
				{KeyStrindex: 7, Value: text("0123456789abcdef0123456789abcdef")},
				{KeyStrindex: 8, Value: text("native")},
				{KeyStrindex: 8, Value: text("kernel")},
				{KeyStrindex: 9, Value: text("worker")},
				{KeyStrindex: 10, Value: text("shop")},
			},
			FunctionTable: []*profilespb.Function{{}, {NameStrindex: 5}, {NameStrindex: 11}},
			MappingTable:  []*profilespb.Mapping{{}, {FilenameStrindex: 6, AttributeIndices: []int32{1}}},
			LocationTable: []*profilespb.Location{
				{},
				{MappingIndex: 1, Address: 0x1234, AttributeIndices: []int32{2}, Lines: []*profilespb.Line{{FunctionIndex: 1}}},
				{AttributeIndices: []int32{3}, Lines: []*profilespb.Line{{FunctionIndex: 2}}},
			},
			StackTable: []*profilespb.Stack{{}, {LocationIndices: []int32{2, 1}}, {LocationIndices: []int32{1}}},
			LinkTable:  []*profilespb.Link{{}, {TraceId: []byte("0123456789abcdef"), SpanId: []byte("01234567")}},
		},
		ResourceProfiles: []*profilespb.ResourceProfiles{{
			Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{keyValue("host.id", "h1"), keyValue("k8s.pod.name", "p")}},
			ScopeProfiles: []*profilespb.ScopeProfiles{{
				Scope: &commonpb.InstrumentationScope{Name: "profile_cpu"},
				Profiles: []*profilespb.Profile{{
					SampleType:   &profilespb.ValueType{TypeStrindex: 1, UnitStrindex: 2},
					PeriodType:   &profilespb.ValueType{TypeStrindex: 3, UnitStrindex: 4},
					Period:       10_000_000,
					TimeUnixNano: testTime, DurationNano: 10_000_000_000,
					ProfileId: []byte("0123456789abcdef"),
					Samples: []*profilespb.Sample{
						{StackIndex: 1, AttributeIndices: []int32{4, 5}, TimestampsUnixNano: []uint64{testTime, testTime + 1}},
						{StackIndex: 2, AttributeIndices: []int32{4, 5}, LinkIndex: 1, TimestampsUnixNano: []uint64{testTime + 2}},
					},
				}},
			}},
		}},
	}
}

// validFor returns valid's request in the form that one receiver requires.
func validFor(name string) *collectorpb.ExportProfilesServiceRequest {
	r := valid()
	switch name {
	case Parca:
		table := r.Dictionary.FunctionTable
		r.Dictionary.FunctionTable = []*profilespb.Function{{}, table[1], table[1], table[2], table[2]}
		for _, l := range r.Dictionary.LocationTable {
			for _, line := range l.Lines {
				line.FunctionIndex *= 2
			}
		}
	case Pyroscope:
		for i, s := range r.Dictionary.StringTable {
			if s == "thread.name" {
				r.Dictionary.StringTable[i] = "thread_name"
			}
		}
		for _, kv := range resource(r).Attributes {
			if kv.Key != "service.name" {
				kv.Key = strings.ReplaceAll(kv.Key, ".", "_")
			}
		}
	}
	return r
}

type request = collectorpb.ExportProfilesServiceRequest

func prof(r *request) *profilespb.Profile { return r.ResourceProfiles[0].ScopeProfiles[0].Profiles[0] }

func resource(r *request) *resourcepb.Resource { return r.ResourceProfiles[0].Resource }

func scope(r *request) *commonpb.InstrumentationScope {
	return r.ResourceProfiles[0].ScopeProfiles[0].Scope
}

// addString adds a string to the table and returns its index.
func addString(r *request, s string) int32 {
	r.Dictionary.StringTable = append(r.Dictionary.StringTable, s)
	return int32(len(r.Dictionary.StringTable) - 1)
}

// addAttribute adds an attribute to the table and to all samples.
func addAttribute(r *request, key string, value *commonpb.AnyValue) {
	r.Dictionary.AttributeTable = append(r.Dictionary.AttributeTable, &profilespb.KeyValueAndUnit{KeyStrindex: addString(r, key), Value: value})
	for _, s := range prof(r).Samples {
		s.AttributeIndices = append(s.AttributeIndices, int32(len(r.Dictionary.AttributeTable)-1))
	}
}

func ruleIDs(t *testing.T, errs []error) []string {
	t.Helper()
	ids := make([]string, 0, len(errs))
	for _, err := range errs {
		var v *otlpcheck.Violation
		require.ErrorAs(t, err, &v)
		require.NotEmpty(t, v.Rule.Source)
		require.NotEmpty(t, v.Path)
		require.NotEmpty(t, v.Detail)
		ids = append(ids, v.Rule.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func TestValid(t *testing.T) {
	require.Equal(t, []string{Collector, Devfiler, Elastic, Parca, Pyroscope}, Backends())
	for _, name := range Backends() {
		require.Empty(t, Check(name, validFor(name)), name)
	}
}

func TestEachRule(t *testing.T) {
	tests := []struct {
		backend string
		rule    otlpcheck.Rule
		name    string
		mutate  func(r *request)
	}{
		{Pyroscope, pyroscopeName, "no period type", func(r *request) { prof(r).PeriodType = nil }},
		{Pyroscope, pyroscopeName, "period 0", func(r *request) { prof(r).Period = 0 }},
		{Pyroscope, pyroscopeName, "period type that is no metric name", func(r *request) { prof(r).PeriodType.TypeStrindex = addString(r, "cpu time") }},
		{Pyroscope, pyroscopeValues, "two values", func(r *request) { prof(r).Samples[0].Values = []int64{1, 2} }},
		{Pyroscope, pyroscopeValues, "neither", func(r *request) { prof(r).Samples[0].TimestampsUnixNano = nil }},
		{Pyroscope, pyroscopeService, "none", func(r *request) { r.Dictionary.AttributeTable[5].KeyStrindex = addString(r, "app") }},
		{Pyroscope, pyroscopeLabels, "27 attributes", func(r *request) {
			for i := range 24 { // 31 with the attributes of valid and Pyroscope's own
				resource(r).Attributes = append(resource(r).Attributes, keyValue(fmt.Sprint("a", i), "x"))
			}
		}},
		{Pyroscope, pyroscopeLabels, "numbers count", func(r *request) {
			for i := range 24 {
				addAttribute(r, fmt.Sprint("a", i), number(int64(i)))
			}
		}},
		{Pyroscope, pyroscopeLabelName, "slash", func(r *request) {
			resource(r).Attributes = append(resource(r).Attributes, keyValue("k8s_pod_label_app/name", "x"))
		}},
		{Pyroscope, pyroscopeLabelName, "dash in a sample attribute", func(r *request) { addAttribute(r, "a-b", text("x")) }},
		{Pyroscope, pyroscopeLabelName, "too long", func(r *request) {
			resource(r).Attributes = append(resource(r).Attributes, keyValue(strings.Repeat("a", 1025), "x"))
		}},
		{Pyroscope, pyroscopeLabelValue, "too long", func(r *request) {
			resource(r).Attributes = append(resource(r).Attributes, keyValue("a", strings.Repeat("a", 2049)))
		}},
		{Pyroscope, pyroscopeLabelValue, "invalid UTF-8", func(r *request) { addAttribute(r, "a", text("\xff")) }},
		{Pyroscope, pyroscopeDuplicate, "after the dots", func(r *request) { addAttribute(r, "thread_name", text("x")) }},
		{Pyroscope, pyroscopeDuplicate, "two services", func(r *request) {
			resource(r).Attributes = append(resource(r).Attributes, keyValue("service.name", "other"))
		}},
		{Pyroscope, pyroscopeSampleLabels, "101", func(r *request) {
			for i := range 99 {
				addAttribute(r, fmt.Sprint("a", i), &commonpb.AnyValue{})
			}
		}},
		{Pyroscope, pyroscopeSamples, "16001", func(r *request) {
			for range 16_000 {
				prof(r).Samples = append(prof(r).Samples, prof(r).Samples[0])
			}
		}},
		{Pyroscope, pyroscopeSize, "too large", func(r *request) {
			for range 70 {
				addString(r, strings.Repeat("x", 65_000))
			}
		}},
		{Pyroscope, pyroscopeDepth, "1001", func(r *request) { r.Dictionary.StackTable[1].LocationIndices = slices.Repeat([]int32{1}, 1001) }},
		{Pyroscope, pyroscopeSymbol, "too long", func(r *request) { r.Dictionary.StringTable[5] = strings.Repeat("x", 65_536) }},
		{Pyroscope, pyroscopeMapping, "mixed", func(r *request) {
			r.Dictionary.LocationTable = append(r.Dictionary.LocationTable, &profilespb.Location{MappingIndex: 1, Address: 1})
		}},

		{Parca, parcaFunction, "the first of two", func(r *request) { r.Dictionary.LocationTable[1].Lines[0].FunctionIndex = 1 }},
		{Pyroscope, pyroscopeDots, "a resource's", func(r *request) { resource(r).Attributes[1].Key = "k8s.pod.name" }},
		{Pyroscope, pyroscopeDots, "a sample's", func(r *request) { addAttribute(r, "thread.id", text("1")) }},
		{Parca, parcaString, "number in a resource", func(r *request) { resource(r).Attributes[0].Value = number(1) }},
		{Parca, parcaString, "number in a sample", func(r *request) { r.Dictionary.AttributeTable[4].Value = number(1) }},
		{Parca, parcaString, "blank", func(r *request) { r.Dictionary.AttributeTable[4].Value = text(" ") }},
		{Parca, parcaCollision, "after sanitizing", func(r *request) { addAttribute(r, "thread-name", text("x")) }},
		{Parca, parcaCollision, "of sample and resource", func(r *request) {
			resource(r).Attributes = append(resource(r).Attributes, keyValue("service.name", "x"))
		}},
		{Parca, parcaScope, "no name", func(r *request) { scope(r).Name = "" }},

		{Elastic, elasticType, "sample type", func(r *request) { prof(r).SampleType.TypeStrindex = 3 }},
		{Elastic, elasticType, "period type", func(r *request) { prof(r).PeriodType.UnitStrindex = 2 }},
		{Elastic, elasticFrameType, "none", func(r *request) { r.Dictionary.LocationTable[2].AttributeIndices = nil }},
		{Elastic, elasticTimestamps, "value only", func(r *request) {
			prof(r).Samples[1].TimestampsUnixNano, prof(r).Samples[1].Values = nil, []int64{3}
		}},
		{Elastic, otlpcheck.RuleBuildIDForm, "GNU build ID in its place", func(r *request) {
			r.Dictionary.AttributeTable[1].Value = text("0123456789abcdef0123456789abcdef01234567")
		}},
		{Elastic, elasticService, "only in the resource", func(r *request) { prof(r).Samples[0].AttributeIndices = []int32{4} }},
		{Elastic, elasticHost, "none", func(r *request) { resource(r).Attributes = resource(r).Attributes[1:] }},

		{Devfiler, devfilerFrameType, "none", func(r *request) { r.Dictionary.LocationTable[2].AttributeIndices = nil }},
		{Devfiler, devfilerFrameType, "unknown", func(r *request) { r.Dictionary.AttributeTable[2].Value = text("rust") }},
		{Devfiler, devfilerHTLHash, "GNU build ID only", func(r *request) {
			r.Dictionary.AttributeTable[1].KeyStrindex = addString(r, "process.executable.build_id.gnu")
		}},
		{Devfiler, devfilerHTLHash, "not readable", func(r *request) { r.Dictionary.AttributeTable[1].Value = text("xyz") }},
		{Devfiler, otlpcheck.RuleTablePresent, "no links", func(r *request) { r.Dictionary.LinkTable, prof(r).Samples[1].LinkIndex = nil, 0 }},
		{Devfiler, otlpcheck.RuleIndex, "stack", func(r *request) { prof(r).Samples[0].StackIndex = 99 }},
		{Devfiler, otlpcheck.RuleSampleType, "no unit", func(r *request) { prof(r).SampleType.UnitStrindex = 0 }},
		{Devfiler, devfilerTimestamps, "value only", func(r *request) {
			prof(r).Samples[1].TimestampsUnixNano, prof(r).Samples[1].Values = nil, []int64{3}
		}},
		{Devfiler, devfilerValues, "a value other than 1", func(r *request) { prof(r).Samples[0].Values = []int64{1, 2} }},

		{Collector, otlpcheck.RuleShape, "two shapes", func(r *request) { prof(r).Samples[0].Values = []int64{1, 1} }},
		{Collector, otlpcheck.RuleTimestamps, "at the end", func(r *request) { prof(r).Samples[0].TimestampsUnixNano[0] = testTime + 10_000_000_000 }},
		{Collector, otlpcheck.RuleOrphan, "string", func(r *request) { addString(r, "x") }},
	}
	tested := map[string]bool{pyroscopeWindow.ID: true} // TestCheckPyroscopeWindow
	for _, tt := range tests {
		tested[tt.rule.ID] = true
		t.Run(tt.backend+" "+tt.rule.ID+" "+tt.name, func(t *testing.T) {
			req := validFor(tt.backend)
			tt.mutate(req)
			errs := Check(tt.backend, req)
			require.Equal(t, []string{tt.rule.ID}, ruleIDs(t, errs), "%v", errors.Join(errs...))
		})
	}
	for _, r := range rules {
		require.True(t, tested[r.ID], "no test breaks rule %s", r.ID)
		name, _, _ := strings.Cut(r.ID, "-")
		require.Contains(t, Backends(), name)
	}
}

func TestCheckPyroscopeWindow(t *testing.T) {
	start := time.Unix(0, int64(testTime))
	for _, now := range []time.Duration{0, time.Hour, -10 * time.Minute} {
		require.Empty(t, CheckPyroscopeWindow(valid(), start.Add(now)), now)
	}
	for _, now := range []time.Duration{time.Hour + time.Second, -10*time.Minute - time.Second} {
		require.Equal(t, []string{pyroscopeWindow.ID}, ruleIDs(t, CheckPyroscopeWindow(valid(), start.Add(now))), now)
	}
	req := valid()
	prof(req).TimeUnixNano = 0
	require.Empty(t, CheckPyroscopeWindow(req, start))
}

func TestCheckBytes(t *testing.T) {
	for _, name := range Backends() {
		body, err := proto.Marshal(validFor(name))
		require.NoError(t, err)
		require.Empty(t, CheckBytes(name, body), name)
		require.Equal(t, []string{otlpcheck.RuleDecodable.ID}, ruleIDs(t, CheckBytes(name, []byte{0xff})), name)
	}
}

func TestUnknownBackend(t *testing.T) {
	require.ErrorContains(t, errors.Join(Check("parka", valid())...), "unknown backend")
	require.ErrorContains(t, errors.Join(CheckBytes("parka", nil)...), "unknown backend")
}

func TestNothingPanics(t *testing.T) {
	for _, name := range Backends() {
		require.NotEmpty(t, Check(name, &request{ResourceProfiles: []*profilespb.ResourceProfiles{nil, {ScopeProfiles: []*profilespb.ScopeProfiles{nil, {Profiles: []*profilespb.Profile{nil, {Samples: []*profilespb.Sample{nil}}}}}}}}), name)
		req := valid()
		req.Dictionary = &profilespb.ProfilesDictionary{}
		found := Check(name, req)
		require.Equal(t, name == Parca, len(found) == 0, "%s: %v", name, found) // Parca itself rejects it, so it has no rule for it
	}
	require.NotEmpty(t, Check(Collector, nil))
}

func TestPyroscopeSeries(t *testing.T) {
	base := map[string]string{
		"__delta__": "false", "__otel__": "true", "__name__": "process_cpu", "service_name": "shop",
		"host_id": "h1", "k8s_pod_name": "p", "thread_name": "worker",
	}
	with := func(more ...string) map[string]string {
		labels := map[string]string{}
		for k, v := range base {
			labels[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			labels[more[i]] = more[i+1]
		}
		return labels
	}
	const cpu = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
	tests := []struct {
		name   string
		mutate func(r *request)
		want   []Series
	}{
		{"cpu", func(*request) {}, []Series{{with(), cpu}}},
		{"an attribute makes a series", func(r *request) {
			addAttribute(r, "process.pid", number(7))
			prof(r).Samples[1].AttributeIndices = []int32{4, 5}
		}, []Series{{with("process_pid", "7"), cpu}, {with(), cpu}}},
		{"resource's service", func(r *request) {
			resource(r).Attributes = append(resource(r).Attributes, keyValue("service.name", "host"))
			prof(r).Samples = prof(r).Samples[:1]
			prof(r).Samples[0].AttributeIndices = []int32{4}
		}, []Series{{with("service_name", "host"), cpu}}},
		{"another type", func(r *request) {
			prof(r).SampleType = &profilespb.ValueType{TypeStrindex: addString(r, "off_cpu"), UnitStrindex: 4}
			prof(r).PeriodType = &profilespb.ValueType{TypeStrindex: addString(r, "context_switch"), UnitStrindex: 2}
		}, []Series{{with("__name__", "context_switch"), "context_switch:off_cpu:nanoseconds:context_switch:count"}}},
		{"off-CPU without a period", func(r *request) {
			prof(r).SampleType = &profilespb.ValueType{TypeStrindex: addString(r, "off_cpu"), UnitStrindex: 4}
			prof(r).Period = 0
		}, []Series{{with("__name__", "off_cpu"), "off_cpu:off_cpu:nanoseconds:cpu:nanoseconds"}}},
		{"a name as an attribute, without a period", func(r *request) {
			prof(r).SampleType = &profilespb.ValueType{TypeStrindex: addString(r, "alloc_space"), UnitStrindex: addString(r, "bytes")}
			prof(r).PeriodType = &profilespb.ValueType{TypeStrindex: addString(r, "space"), UnitStrindex: addString(r, "bytes")}
			prof(r).Period = 0
			addAttribute(r, "__name__", text("memory"))
		}, []Series{{with("__name__", "memory"), "memory:alloc_space:bytes:space:bytes"}}},
		{"a name as an attribute, with a period", func(r *request) { addAttribute(r, "__name__", text("memory")) }, []Series{{with(), cpu}}},
		{"no samples", func(r *request) { prof(r).Samples = nil }, nil},
		{"a list of one text", func(r *request) {
			addAttribute(r, "tags", &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{Values: []*commonpb.AnyValue{text("a")}}}})
		}, []Series{{with("tags", "a"), cpu}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := valid()
			tt.mutate(req)
			require.Equal(t, tt.want, PyroscopeSeries(req))
		})
	}
	require.NotEqual(t, Series{Type: "a", Labels: map[string]string{"x": "y z"}}.Key(), Series{Type: "a", Labels: map[string]string{"x": "y", "z": ""}}.Key())
}
