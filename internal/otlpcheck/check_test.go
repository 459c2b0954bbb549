package otlpcheck

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	testTime     = uint64(1_700_000_000_000_000_000)
	testDuration = uint64(10_000_000_000)
)

func text(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
}

func reference(i int32) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValueStrindex{StringValueStrindex: i}}
}

func keyValue(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: text(value)}
}

// valid returns a request with two resources and three profiles that uses every table.
func valid() *collectorpb.ExportProfilesServiceRequest {
	d := &profilespb.ProfilesDictionary{
		StringTable: []string{
			"", "cpu", "nanoseconds", "main.work", "main.go", "app", // 0 to 5
			"process.executable.build_id.gnu", "profile.frame.type", "thread.name", // 6 to 8
			"vfs_read", "[kernel.kallsyms]", "samples", "count", // 9 to 12
		},
		AttributeTable: []*profilespb.KeyValueAndUnit{
			{},
			{KeyStrindex: 6, Value: text("0123456789abcdef0123456789abcdef01234567")},
			{KeyStrindex: 7, Value: text("native")},
			{KeyStrindex: 7, Value: text("kernel")},
			{KeyStrindex: 8, Value: text("worker")},
			{KeyStrindex: 6, Value: text("89abcdef")},
			{KeyStrindex: 8, Value: text("other")},
		},
		FunctionTable: []*profilespb.Function{
			{},
			{NameStrindex: 3, FilenameStrindex: 4, StartLine: 3},
			{NameStrindex: 9},
		},
		MappingTable: []*profilespb.Mapping{
			{},
			{FilenameStrindex: 5, AttributeIndices: []int32{1}, MemoryStart: 0x1000, MemoryLimit: 0x9000},
			{FilenameStrindex: 10, AttributeIndices: []int32{5}},
		},
		LocationTable: []*profilespb.Location{
			{},
			{MappingIndex: 1, Address: 0x1234, AttributeIndices: []int32{2}, Lines: []*profilespb.Line{{FunctionIndex: 1, Line: 7}}},
			{MappingIndex: 2, AttributeIndices: []int32{3}, Lines: []*profilespb.Line{{FunctionIndex: 2}}},
			{MappingIndex: 1, Address: 0x2345, AttributeIndices: []int32{2}},
		},
		StackTable: []*profilespb.Stack{
			{}, {LocationIndices: []int32{2, 1, 3}}, {LocationIndices: []int32{1}},
		},
		LinkTable: []*profilespb.Link{
			{}, {TraceId: []byte("0123456789abcdef"), SpanId: []byte("01234567")},
		},
	}
	prof := func(id byte, samples ...*profilespb.Sample) *profilespb.Profile {
		return &profilespb.Profile{
			SampleType:   &profilespb.ValueType{TypeStrindex: 11, UnitStrindex: 12},
			PeriodType:   &profilespb.ValueType{TypeStrindex: 1, UnitStrindex: 2},
			Period:       10_000_000,
			TimeUnixNano: testTime,
			DurationNano: testDuration,
			ProfileId:    append([]byte("0123456789abcde"), id),
			Samples:      samples,
		}
	}
	resource := func(name string, profiles ...*profilespb.Profile) *profilespb.ResourceProfiles {
		return &profilespb.ResourceProfiles{
			Resource:  &resourcepb.Resource{Attributes: []*commonpb.KeyValue{keyValue("service.name", name), keyValue("host.name", "n1")}},
			SchemaUrl: "https://opentelemetry.io/schemas/1.37.0",
			ScopeProfiles: []*profilespb.ScopeProfiles{{
				Scope:     &commonpb.InstrumentationScope{Name: "profile_cpu", Version: "v1", Attributes: []*commonpb.KeyValue{keyValue("a", "b")}},
				SchemaUrl: "https://opentelemetry.io/schemas/1.37.0",
				Profiles:  profiles,
			}},
		}
	}
	return &collectorpb.ExportProfilesServiceRequest{
		Dictionary: d,
		ResourceProfiles: []*profilespb.ResourceProfiles{
			resource("shop",
				prof('1',
					&profilespb.Sample{StackIndex: 1, AttributeIndices: []int32{4}, Values: []int64{3}},
					&profilespb.Sample{StackIndex: 2, AttributeIndices: []int32{4}, Values: []int64{1}},
					&profilespb.Sample{StackIndex: 2, AttributeIndices: []int32{4}, LinkIndex: 1, Values: []int64{1}},
				),
				prof('2',
					&profilespb.Sample{StackIndex: 1, AttributeIndices: []int32{6}, TimestampsUnixNano: []uint64{testTime, testTime + 5}},
				),
			),
			resource("host",
				prof('3',
					&profilespb.Sample{StackIndex: 1, Values: []int64{3, 4}, TimestampsUnixNano: []uint64{testTime + 1, testTime + testDuration - 1}},
				),
			),
		},
	}
}

func profileOf(r *collectorpb.ExportProfilesServiceRequest, i int) *profilespb.Profile {
	return r.ResourceProfiles[0].ScopeProfiles[0].Profiles[i]
}

func ruleIDs(t *testing.T, errs []error) []string {
	t.Helper()
	ids := make([]string, 0, len(errs))
	for _, err := range errs {
		var v *Violation
		require.ErrorAs(t, err, &v)
		ids = append(ids, v.Rule.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func TestValid(t *testing.T) {
	req := valid()
	require.Empty(t, Check(req))
	body, err := proto.Marshal(req)
	require.NoError(t, err)
	require.Empty(t, CheckBytes(body))
	require.True(t, proto.Equal(valid(), req), "Check changed the request")
}

// TestEachRule breaks one rule at a time.
func TestEachRule(t *testing.T) {
	const prof = "resource_profiles[0].scope_profiles[0].profiles[0]"
	type request = collectorpb.ExportProfilesServiceRequest
	tests := []struct {
		name   string
		rule   Rule
		path   string
		mutate func(r *request)
	}{
		{"unknown field of a sample", RuleUnknownField, prof + ".samples[1]", func(r *request) {
			profileOf(r, 0).Samples[1].ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
		}},
		{"unknown field of the request", RuleUnknownField, "request", func(r *request) {
			r.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
		}},
		{"invalid UTF-8 in the string table", RuleUTF8, "dictionary.string_table[3]", func(r *request) { r.Dictionary.StringTable[3] = "a\xff" }},
		{"invalid UTF-8 in an attribute", RuleUTF8, "dictionary.attribute_table[4].value.string_value", func(r *request) {
			r.Dictionary.AttributeTable[4].Value = text("a\xff")
		}},
		{"size", RuleSize, "request", func(r *request) { r.Dictionary.StringTable[3] = strings.Repeat("x", MaxRequestSize) }},
		{"no profiles at all", RuleNotEmpty, "resource_profiles", func(r *request) {
			*r = request{Dictionary: &profilespb.ProfilesDictionary{
				MappingTable: []*profilespb.Mapping{{}}, LocationTable: []*profilespb.Location{{}},
				FunctionTable: []*profilespb.Function{{}}, LinkTable: []*profilespb.Link{{}}, StringTable: []string{""},
				AttributeTable: []*profilespb.KeyValueAndUnit{{}}, StackTable: []*profilespb.Stack{{}},
			}}
		}},
		{"resource without scopes", RuleNotEmpty, "resource_profiles[1]", func(r *request) { r.ResourceProfiles[1].ScopeProfiles = nil }},
		{"scope without profiles", RuleNotEmpty, "resource_profiles[1].scope_profiles[0]", func(r *request) {
			r.ResourceProfiles[1].ScopeProfiles[0].Profiles = nil
		}},
		{"profile without samples", RuleNotEmpty, "resource_profiles[1].scope_profiles[0].profiles[0]", func(r *request) {
			r.ResourceProfiles[1].ScopeProfiles[0].Profiles[0].Samples = nil
		}},
		{"no link table", RuleTablePresent, "dictionary.link_table", func(r *request) {
			profileOf(r, 0).Samples = profileOf(r, 0).Samples[:2]
			r.Dictionary.LinkTable = nil
		}},
		{"zero link with bytes", RuleTableZero, "dictionary.link_table[0]", func(r *request) {
			r.Dictionary.LinkTable[0] = &profilespb.Link{TraceId: make([]byte, 16), SpanId: make([]byte, 8)}
		}},
		{"zero mapping with a file", RuleTableZero, "dictionary.mapping_table[0]", func(r *request) { r.Dictionary.MappingTable[0].FilenameStrindex = 5 }},
		{"zero string with text", RuleTableZero, "dictionary.string_table[0]", func(r *request) { r.Dictionary.StringTable[0] = "x" }},
		{"duplicate string", RuleDuplicate, "dictionary.string_table[9]", func(r *request) { r.Dictionary.StringTable[9] = "main.work" }},
		{"duplicate attribute", RuleDuplicate, "dictionary.attribute_table[6]", func(r *request) { r.Dictionary.AttributeTable[6].Value = text("worker") }},
		{"duplicate attribute by reference", RuleDuplicate, "dictionary.attribute_table[6]", func(r *request) {
			r.Dictionary.AttributeTable[4].Value = text("app")
			r.Dictionary.AttributeTable[6].Value = reference(5)
		}},
		{"duplicate attribute with a key by reference", RuleDuplicate, "dictionary.attribute_table[6]", func(r *request) {
			for at, kv := range map[int]*commonpb.KeyValue{4: keyValue("app", "x"), 6: {KeyStrindex: 5, Value: text("x")}} {
				r.Dictionary.AttributeTable[at].Value = &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{
					KvlistValue: &commonpb.KeyValueList{Values: []*commonpb.KeyValue{kv}},
				}}
			}
		}},
		{"duplicate mapping", RuleDuplicate, "dictionary.mapping_table[3]", func(r *request) {
			r.Dictionary.MappingTable = append(r.Dictionary.MappingTable, proto.Clone(r.Dictionary.MappingTable[1]).(*profilespb.Mapping))
			r.Dictionary.LocationTable[3].MappingIndex = 3
		}},
		{"duplicate function", RuleDuplicate, "dictionary.function_table[3]", func(r *request) {
			r.Dictionary.FunctionTable = append(r.Dictionary.FunctionTable, &profilespb.Function{NameStrindex: 9})
			r.Dictionary.LocationTable[3].Lines = []*profilespb.Line{{FunctionIndex: 3}}
		}},
		{"duplicate location", RuleDuplicate, "dictionary.location_table[4]", func(r *request) {
			r.Dictionary.LocationTable = append(r.Dictionary.LocationTable, proto.Clone(r.Dictionary.LocationTable[1]).(*profilespb.Location))
			r.Dictionary.StackTable[1].LocationIndices = []int32{2, 1, 3, 4}
		}},
		{"duplicate stack", RuleDuplicate, "dictionary.stack_table[3]", func(r *request) {
			r.Dictionary.StackTable = append(r.Dictionary.StackTable, &profilespb.Stack{LocationIndices: []int32{1}})
			profileOf(r, 1).Samples[0].StackIndex = 3
		}},
		{"duplicate of the empty stack", RuleDuplicate, "dictionary.stack_table[3]", func(r *request) {
			r.Dictionary.StackTable = append(r.Dictionary.StackTable, &profilespb.Stack{})
			profileOf(r, 1).Samples[0].StackIndex = 3
		}},
		{"duplicate link", RuleDuplicate, "dictionary.link_table[2]", func(r *request) {
			r.Dictionary.LinkTable = append(r.Dictionary.LinkTable, proto.Clone(r.Dictionary.LinkTable[1]).(*profilespb.Link))
			profileOf(r, 1).Samples[0].LinkIndex = 2
		}},
		{"orphaned string", RuleOrphan, "dictionary.string_table[13]", func(r *request) {
			r.Dictionary.StringTable = append(r.Dictionary.StringTable, "x")
		}},
		{"orphaned attribute", RuleOrphan, "dictionary.attribute_table[6]", func(r *request) { profileOf(r, 1).Samples[0].AttributeIndices = nil }},
		{"orphaned function", RuleOrphan, "dictionary.function_table[3]", func(r *request) {
			r.Dictionary.FunctionTable = append(r.Dictionary.FunctionTable, &profilespb.Function{NameStrindex: 3})
		}},
		{"orphaned mapping", RuleOrphan, "dictionary.mapping_table[3]", func(r *request) {
			r.Dictionary.MappingTable = append(r.Dictionary.MappingTable, &profilespb.Mapping{AttributeIndices: []int32{5}})
		}},
		{"orphaned location", RuleOrphan, "dictionary.location_table[3]", func(r *request) {
			r.Dictionary.StackTable[1].LocationIndices = []int32{2, 1}
		}},
		{"orphaned stack", RuleOrphan, "dictionary.stack_table[3]", func(r *request) {
			r.Dictionary.StackTable = append(r.Dictionary.StackTable, &profilespb.Stack{LocationIndices: []int32{3}})
		}},
		{"orphaned link", RuleOrphan, "dictionary.link_table[1]", func(r *request) { profileOf(r, 0).Samples = profileOf(r, 0).Samples[:2] }},
		{"stack index", RuleIndex, prof + ".samples[2].stack_index", func(r *request) { profileOf(r, 0).Samples[2].StackIndex = 3 }},
		{"negative stack index", RuleIndex, prof + ".samples[2].stack_index", func(r *request) { profileOf(r, 0).Samples[2].StackIndex = -1 }},
		{"link index", RuleIndex, prof + ".samples[1].link_index", func(r *request) { profileOf(r, 0).Samples[1].LinkIndex = 2 }},
		{"sample attribute index", RuleIndex, prof + ".samples[1].attribute_indices[1]", func(r *request) {
			profileOf(r, 0).Samples[1].AttributeIndices = []int32{4, 7}
		}},
		{"profile attribute index", RuleIndex, prof + ".attribute_indices[0]", func(r *request) { profileOf(r, 0).AttributeIndices = []int32{7} }},
		{"location index", RuleIndex, "dictionary.stack_table[2].location_indices[1]", func(r *request) {
			r.Dictionary.StackTable[2].LocationIndices = []int32{1, 4}
		}},
		{"mapping index", RuleIndex, "dictionary.location_table[3].mapping_index", func(r *request) { r.Dictionary.LocationTable[3].MappingIndex = 3 }},
		{"function index", RuleIndex, "dictionary.location_table[3].lines[0].function_index", func(r *request) {
			r.Dictionary.LocationTable[3].Lines = []*profilespb.Line{{FunctionIndex: 3}}
		}},
		{"function's file index", RuleIndex, "dictionary.function_table[2].filename_strindex", func(r *request) {
			r.Dictionary.FunctionTable[2].FilenameStrindex = 13
		}},
		{"function's system name index", RuleIndex, "dictionary.function_table[2].system_name_strindex", func(r *request) {
			r.Dictionary.FunctionTable[2].SystemNameStrindex = -1
		}},
		{"unit index", RuleIndex, "dictionary.attribute_table[6].unit_strindex", func(r *request) { r.Dictionary.AttributeTable[6].UnitStrindex = 13 }},
		{"referred text", RuleIndex, "dictionary.attribute_table[6].value.string_value_strindex", func(r *request) {
			r.Dictionary.AttributeTable[6].Value = reference(13)
		}},
		{"resource key twice", RuleUniqueKey, "resource_profiles[0].resource.attributes[2]", func(r *request) {
			r.ResourceProfiles[0].Resource.Attributes = append(r.ResourceProfiles[0].Resource.Attributes, keyValue("service.name", "x"))
		}},
		{"scope key twice", RuleUniqueKey, "resource_profiles[0].scope_profiles[0].scope.attributes[1]", func(r *request) {
			s := r.ResourceProfiles[0].ScopeProfiles[0].Scope
			s.Attributes = append(s.Attributes, keyValue("a", "x"))
		}},
		{"sample key twice", RuleUniqueKey, prof + ".samples[1].attribute_indices[1]", func(r *request) {
			profileOf(r, 0).Samples[1].AttributeIndices = []int32{4, 6}
		}},
		{"location key twice", RuleUniqueKey, "dictionary.location_table[1].attribute_indices[1]", func(r *request) {
			r.Dictionary.LocationTable[1].AttributeIndices = []int32{2, 3}
		}},
		{"key twice in a map", RuleUniqueKey, "resource_profiles[0].resource.attributes[0].value.kvlist_value.values[1]", func(r *request) {
			r.ResourceProfiles[0].Resource.Attributes[0].Value = &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{
				KvlistValue: &commonpb.KeyValueList{Values: []*commonpb.KeyValue{keyValue("a", "1"), keyValue("a", "2")}},
			}}
		}},
		{"attribute without a key", RuleAttribute, "resource_profiles[0].resource.attributes[1]", func(r *request) {
			r.ResourceProfiles[0].Resource.Attributes[1].Key = ""
		}},
		{"table attribute without a key", RuleAttribute, "dictionary.attribute_table[6]", func(r *request) { r.Dictionary.AttributeTable[6].KeyStrindex = 0 }},
		{"reference to attribute 0", RuleAttribute, prof + ".samples[1].attribute_indices[1]", func(r *request) {
			profileOf(r, 0).Samples[1].AttributeIndices = []int32{4, 0}
		}},
		{"key in two ways", RuleAttribute, "dictionary.attribute_table[6].value.kvlist_value.values[0]", func(r *request) {
			r.Dictionary.AttributeTable[6].Value = &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{
				KvlistValue: &commonpb.KeyValueList{Values: []*commonpb.KeyValue{{Key: "a", KeyStrindex: 5, Value: text("x")}}},
			}}
		}},
		{"long resource attribute", RuleAttributeValue, "resource_profiles[0].resource.attributes[1].value", func(r *request) {
			r.ResourceProfiles[0].Resource.Attributes[1].Value = text(strings.Repeat("x", MaxAttributeValue+1))
		}},
		{"long sample attribute", RuleAttributeValue, "dictionary.attribute_table[4].value", func(r *request) {
			r.Dictionary.AttributeTable[4].Value = text(strings.Repeat("x", MaxAttributeValue+1))
		}},
		{"resource key by reference", RulePlain, "resource_profiles[0].resource.attributes[1].key_strindex", func(r *request) {
			r.ResourceProfiles[0].Resource.Attributes[1] = &commonpb.KeyValue{KeyStrindex: 5, Value: text("x")}
		}},
		{"scope value by reference in a list", RulePlain, "resource_profiles[0].scope_profiles[0].scope.attributes[0].value.array_value.values[0].string_value_strindex", func(r *request) {
			r.ResourceProfiles[0].ScopeProfiles[0].Scope.Attributes[0].Value = &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{
				ArrayValue: &commonpb.ArrayValue{Values: []*commonpb.AnyValue{reference(5)}},
			}}
		}},
		{"entity reference", RuleEntityRef, "resource_profiles[0].resource.entity_refs[0]", func(r *request) {
			r.ResourceProfiles[0].Resource.EntityRefs = []*commonpb.EntityRef{{Type: "service", IdKeys: []string{"service.name", "service.instance.id"}}}
		}},
		{"resource schema", RuleSchemaURL, "resource_profiles[0]", func(r *request) { r.ResourceProfiles[0].SchemaUrl = "" }},
		{"scope schema", RuleSchemaURL, "resource_profiles[0].scope_profiles[0]", func(r *request) { r.ResourceProfiles[0].ScopeProfiles[0].SchemaUrl = "" }},
		{"no sample type", RuleSampleType, prof + ".sample_type", func(r *request) { profileOf(r, 0).SampleType = nil }},
		{"no sample unit", RuleSampleType, prof + ".sample_type", func(r *request) { profileOf(r, 0).SampleType.UnitStrindex = 0 }},
		{"no period type", RulePeriod, prof + ".period_type", func(r *request) { profileOf(r, 0).PeriodType = nil }},
		{"period 0", RulePeriod, prof + ".period", func(r *request) { profileOf(r, 0).Period = 0 }},
		{"dash in a type", RuleTypeName, prof + ".sample_type", func(r *request) {
			r.Dictionary.StringTable = append(r.Dictionary.StringTable, "off-cpu")
			profileOf(r, 0).SampleType.TypeStrindex = 13
		}},
		{"no time", RuleTime, "resource_profiles[0].scope_profiles[0].profiles[0]", func(r *request) { profileOf(r, 0).TimeUnixNano = 0 }},
		{"no duration", RuleTime, "resource_profiles[0].scope_profiles[0].profiles[0]", func(r *request) { profileOf(r, 0).DurationNano = 0 }},
		{"short profile ID", RuleProfileID, prof + ".profile_id", func(r *request) { profileOf(r, 0).ProfileId = []byte("short") }},
		{"zero profile ID", RuleProfileID, prof + ".profile_id", func(r *request) { profileOf(r, 0).ProfileId = make([]byte, 16) }},
		{"profile ID twice", RuleProfileID, "resource_profiles[0].scope_profiles[0].profiles[1].profile_id", func(r *request) {
			profileOf(r, 1).ProfileId = profileOf(r, 0).ProfileId
		}},
		{"payload without a format", RulePayload, prof, func(r *request) { profileOf(r, 0).OriginalPayload = []byte("x") }},
		{"format without a payload", RulePayload, prof, func(r *request) { profileOf(r, 0).OriginalPayloadFormat = "pprof" }},
		{"too many samples", RuleMaxSamples, "resource_profiles[1].scope_profiles[0].profiles[0]", func(r *request) {
			p := r.ResourceProfiles[1].ScopeProfiles[0].Profiles[0]
			p.Samples = nil
			for i := range MaxSamples + 1 {
				r.Dictionary.LocationTable = append(r.Dictionary.LocationTable, &profilespb.Location{Address: uint64(i + 1)})
				r.Dictionary.StackTable = append(r.Dictionary.StackTable, &profilespb.Stack{LocationIndices: []int32{int32(4 + i)}})
				p.Samples = append(p.Samples, &profilespb.Sample{StackIndex: int32(3 + i), Values: []int64{1}})
			}
		}},
		{"neither value nor timestamp", RuleValues, prof + ".samples[1]", func(r *request) { profileOf(r, 0).Samples[1].Values = nil }},
		{"two values without timestamps", RuleValues, prof + ".samples[1]", func(r *request) { profileOf(r, 0).Samples[1].Values = []int64{1, 2} }},
		{"more timestamps than values", RuleValues, "resource_profiles[1].scope_profiles[0].profiles[0].samples[0]", func(r *request) {
			r.ResourceProfiles[1].ScopeProfiles[0].Profiles[0].Samples[0].Values = []int64{1}
		}},
		{"two shapes", RuleShape, prof + ".samples[1]", func(r *request) {
			s := profileOf(r, 0).Samples[1]
			s.Values, s.TimestampsUnixNano = nil, []uint64{testTime}
		}},
		{"not merged", RuleMerged, prof + ".samples[2]", func(r *request) {
			profileOf(r, 0).Samples[2].LinkIndex = 0
			profileOf(r, 1).Samples[0].LinkIndex = 1
		}},
		{"not merged for the order of attributes", RuleMerged, prof + ".samples[1]", func(r *request) {
			p := profileOf(r, 0)
			p.Samples[0].AttributeIndices = []int32{4, 3}
			p.Samples[1].StackIndex, p.Samples[1].AttributeIndices = 1, []int32{3, 4}
		}},
		{"timestamp too early", RuleTimestamps, "resource_profiles[0].scope_profiles[0].profiles[1].samples[0].timestamps_unix_nano[1]", func(r *request) {
			profileOf(r, 1).Samples[0].TimestampsUnixNano[1] = testTime - 1
		}},
		{"timestamp too late", RuleTimestamps, "resource_profiles[0].scope_profiles[0].profiles[1].samples[0].timestamps_unix_nano[1]", func(r *request) {
			profileOf(r, 1).Samples[0].TimestampsUnixNano[1] = testTime + testDuration
		}},
		{"mapping range", RuleMappingRange, "dictionary.mapping_table[2]", func(r *request) { r.Dictionary.MappingTable[2].MemoryStart = 5 }},
		{"mapping without build ID", RuleMappingBuildID, "dictionary.mapping_table[2]", func(r *request) {
			r.Dictionary.AttributeTable[5].KeyStrindex = 8
		}},
		{"GNU build ID that is not hexadecimal", RuleBuildIDForm, "dictionary.mapping_table[2]", func(r *request) {
			r.Dictionary.AttributeTable[5].Value = text("89abcdefg")
		}},
		{"short htlhash", RuleBuildIDForm, "dictionary.mapping_table[2]", func(r *request) {
			r.Dictionary.StringTable = append(r.Dictionary.StringTable, KeyHTLHash)
			r.Dictionary.AttributeTable[5].KeyStrindex = 13
		}},
		{"location without address and lines", RuleEmptyFrame, "dictionary.location_table[3]", func(r *request) { r.Dictionary.LocationTable[3].Address = 0 }},
		{"stack with location 0", RuleEmptyFrame, "dictionary.stack_table[2].location_indices[1]", func(r *request) {
			r.Dictionary.StackTable[2].LocationIndices = []int32{1, 0}
		}},
		{"address outside the mapping", RuleAddress, "dictionary.location_table[1].address", func(r *request) { r.Dictionary.LocationTable[1].Address = 0xffff }},
		{"line without a function", RuleLine, "dictionary.location_table[3].lines[0]", func(r *request) {
			r.Dictionary.LocationTable[3].Lines = []*profilespb.Line{{Line: 3}}
		}},
		{"negative line", RuleLine, "dictionary.location_table[1].lines[0]", func(r *request) { r.Dictionary.LocationTable[1].Lines[0].Line = -1 }},
		{"negative start line", RuleLine, "dictionary.function_table[1].start_line", func(r *request) { r.Dictionary.FunctionTable[1].StartLine = -1 }},
		{"function without a name", RuleFunctionName, "dictionary.function_table[3]", func(r *request) {
			r.Dictionary.FunctionTable = append(r.Dictionary.FunctionTable, &profilespb.Function{StartLine: 5})
			r.Dictionary.LocationTable[3].Lines = []*profilespb.Line{{FunctionIndex: 3}}
		}},
		{"function named as an address", RuleNotAddress, "dictionary.function_table[2]", func(r *request) { r.Dictionary.StringTable[9] = "0xffffffff81001234" }},
		{"address named unknown", RuleNotAddress, "dictionary.location_table[1].lines[0]", func(r *request) {
			f := r.Dictionary.LocationTable[1].Lines[0].FunctionIndex
			r.Dictionary.StringTable[r.Dictionary.FunctionTable[f].NameStrindex] = "[unknown]"
		}},
		{"short span ID", RuleLinkLength, "dictionary.link_table[1]", func(r *request) { r.Dictionary.LinkTable[1].SpanId = []byte("0123") }},
		{"zero trace ID", RuleLinkLength, "dictionary.link_table[1]", func(r *request) { r.Dictionary.LinkTable[1].TraceId = make([]byte, 16) }},
	}
	tested := map[string]bool{RuleDecodable.ID: true, RuleKernelAddress.ID: true} // tested below
	for _, tt := range tests {
		tested[tt.rule.ID] = true
		t.Run(tt.name, func(t *testing.T) {
			req := valid()
			tt.mutate(req)
			errs := Check(req)
			require.Equal(t, []string{tt.rule.ID}, ruleIDs(t, errs), "%v", errors.Join(errs...))
			var v *Violation
			require.ErrorAs(t, errs[0], &v)
			require.Equal(t, tt.path, v.Path)
			require.NotEmpty(t, v.Detail)
		})
	}
	seen := map[string]bool{}
	for _, r := range rules {
		require.True(t, tested[r.ID], "no test breaks rule %s", r.ID)
		require.False(t, seen[r.ID], "rule %s is duplicated", r.ID)
		require.NotEmpty(t, r.Source)
		seen[r.ID] = true
	}
}

func TestCheckBytes(t *testing.T) {
	require.Equal(t, []string{RuleDecodable.ID}, ruleIDs(t, CheckBytes([]byte{0xff})))

	req := valid()
	body, err := proto.Marshal(req)
	require.NoError(t, err)
	body = protowire.AppendBytes(protowire.AppendTag(body, 15, protowire.BytesType), []byte("x"))
	require.Equal(t, []string{RuleUnknownField.ID}, ruleIDs(t, CheckBytes(body)))

	// A body with invalid UTF-8 cannot be decoded.
	body, err = proto.Marshal(valid())
	require.NoError(t, err)
	i := strings.Index(string(body), "main.work")
	require.Positive(t, i)
	body[i] = 0xff
	require.Equal(t, []string{RuleDecodable.ID}, ruleIDs(t, CheckBytes(body)))
}

func TestCheckKernelAddresses(t *testing.T) {
	req := valid()
	require.Empty(t, CheckKernelAddresses(req))
	req.Dictionary.LocationTable[2].Address = 0x1234 // an offset
	require.Empty(t, CheckKernelAddresses(req))
	req.Dictionary.LocationTable[2].Address = 0xffffffff81001234
	require.Equal(t, []string{RuleKernelAddress.ID}, ruleIDs(t, CheckKernelAddresses(req)))
	require.Empty(t, Check(req))
	// The vsyscall page has the same kernel address on every machine.
	req.Dictionary.LocationTable[2].AttributeIndices = []int32{2}
	require.Empty(t, CheckKernelAddresses(req))
}

// TestExampleOfTheSpecification checks the first example of the specification's data model. The example breaks only this project's
// stricter rules: https://opentelemetry.io/docs/specs/otel/profiles/data-model/#simple-cpu-profile.
func TestExampleOfTheSpecification(t *testing.T) {
	location := func(function int32, line int64) *profilespb.Location {
		return &profilespb.Location{Lines: []*profilespb.Line{{FunctionIndex: function, Line: line}}}
	}
	req := &collectorpb.ExportProfilesServiceRequest{
		Dictionary: &profilespb.ProfilesDictionary{
			StringTable: []string{
				"", "samples", "count", "cpu", "nanoseconds", "main", "foo", "bar", "baz", "main.go", "foo.go", "bar.go", "baz.go",
			},
			FunctionTable: []*profilespb.Function{
				{},
				{NameStrindex: 5, FilenameStrindex: 9},
				{NameStrindex: 6, FilenameStrindex: 10},
				{NameStrindex: 7, FilenameStrindex: 11},
				{NameStrindex: 8, FilenameStrindex: 12},
			},
			LocationTable:  []*profilespb.Location{{}, location(1, 10), location(2, 20), location(3, 30), location(4, 40)},
			StackTable:     []*profilespb.Stack{{}, {LocationIndices: []int32{3, 2, 1}}, {LocationIndices: []int32{4, 1}}},
			MappingTable:   []*profilespb.Mapping{{}},
			LinkTable:      []*profilespb.Link{{}},
			AttributeTable: []*profilespb.KeyValueAndUnit{{}},
		},
		ResourceProfiles: []*profilespb.ResourceProfiles{{ScopeProfiles: []*profilespb.ScopeProfiles{{Profiles: []*profilespb.Profile{{
			SampleType:   &profilespb.ValueType{TypeStrindex: 1, UnitStrindex: 2},
			Samples:      []*profilespb.Sample{{StackIndex: 1, Values: []int64{3}}, {StackIndex: 2, Values: []int64{2}}},
			TimeUnixNano: 1234567890000000000,
			DurationNano: 1000000000,
			PeriodType:   &profilespb.ValueType{TypeStrindex: 3, UnitStrindex: 4},
			Period:       50000000,
		}}}}}},
	}
	require.Equal(t, []string{RuleProfileID.ID, RuleSchemaURL.ID}, ruleIDs(t, Check(req)))
}

func TestEmptyRequests(t *testing.T) {
	require.Equal(t, []string{RuleNotEmpty.ID, RuleTablePresent.ID}, ruleIDs(t, Check(nil)))
	require.Equal(t, []string{RuleNotEmpty.ID, RuleTablePresent.ID}, ruleIDs(t, CheckBytes(nil)))

	// A program can leave these elements nil, but a decoder never does.
	req := valid()
	req.ResourceProfiles[1] = nil
	req.Dictionary.LocationTable[2] = nil
	req.ResourceProfiles[0].ScopeProfiles[0].Profiles[1] = nil
	require.NotEmpty(t, Check(req))
}

func TestNumberOfViolationsIsBounded(t *testing.T) {
	req := valid()
	for range 1000 {
		req.Dictionary.StringTable = append(req.Dictionary.StringTable, "same")
	}
	require.Len(t, Check(req), maxViolations)
}

func FuzzCheckBytes(f *testing.F) {
	body, err := proto.Marshal(valid())
	require.NoError(f, err)
	f.Add(body)
	f.Fuzz(func(t *testing.T, body []byte) {
		require.LessOrEqual(t, len(CheckBytes(body)), maxViolations)
	})
}
