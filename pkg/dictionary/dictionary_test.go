package dictionary

import (
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
)

func text(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
}

func TestText(t *testing.T) {
	d := Dictionary{&profilespb.ProfilesDictionary{StringTable: []string{"", "k", "v"}}}
	tests := []struct {
		value *commonpb.AnyValue
		want  string
	}{
		{nil, ""},
		{text("x"), "x"},
		{&commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: true}}, "true"},
		{&commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: -3}}, "-3"},
		{&commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: 0.5}}, "0.5"},
		{&commonpb.AnyValue{Value: &commonpb.AnyValue_BytesValue{BytesValue: []byte{1, 255}}}, "01ff"},
		{&commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{Values: []*commonpb.AnyValue{text("a"), text("b"), text("c")}}}}, "[a,b,c]"},
		{&commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{Values: []*commonpb.KeyValue{
			{KeyStrindex: 1, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValueStrindex{StringValueStrindex: 2}}},
		}}}}, "{k=v}"},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, d.Text(tt.value))
	}
}

func TestDamaged(t *testing.T) {
	for _, d := range []Dictionary{{}, {&profilespb.ProfilesDictionary{StringTable: []string{""}, AttributeTable: []*profilespb.KeyValueAndUnit{nil, {KeyStrindex: 7}}}}} {
		require.Empty(t, d.Str(-1)+d.Str(1))
		require.Empty(t, d.Attributes([]int32{-1, 0, 1, 2}))
	}
}

func TestProfiles(t *testing.T) {
	scope := &profilespb.ScopeProfiles{Profiles: []*profilespb.Profile{{Period: 1}, {Period: 2}}}
	resource := &profilespb.ResourceProfiles{ScopeProfiles: []*profilespb.ScopeProfiles{nil, scope}}
	var paths []string
	for p := range Profiles(&profilespb.ProfilesData{ResourceProfiles: []*profilespb.ResourceProfiles{nil, resource}}) {
		require.Same(t, resource, p.Resource)
		require.Same(t, scope, p.Scope)
		paths = append(paths, p.Path())
	}
	require.Equal(t, []string{"resource_profiles[1].scope_profiles[1].profiles[0]", "resource_profiles[1].scope_profiles[1].profiles[1]"}, paths)
}
