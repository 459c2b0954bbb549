package report

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// FuzzReports writes every report of any message that decodes.
func FuzzReports(f *testing.F) {
	body, err := proto.Marshal(&collectorpb.ExportProfilesServiceRequest{
		Dictionary: &profilespb.ProfilesDictionary{
			StringTable:   []string{"", "main.work", "samples", "count", "cpu", "nanoseconds"},
			FunctionTable: []*profilespb.Function{{}, {NameStrindex: 1}},
			LocationTable: []*profilespb.Location{{}, {Lines: []*profilespb.Line{{FunctionIndex: 1}}}, {Address: 7}},
			StackTable:    []*profilespb.Stack{{}, {LocationIndices: []int32{2, 1}}},
		},
		ResourceProfiles: []*profilespb.ResourceProfiles{{
			Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{{Key: "service.name", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: "shop"}}}}},
			ScopeProfiles: []*profilespb.ScopeProfiles{{Profiles: []*profilespb.Profile{{
				SampleType: &profilespb.ValueType{TypeStrindex: 2, UnitStrindex: 3}, PeriodType: &profilespb.ValueType{TypeStrindex: 4, UnitStrindex: 5}, Period: 1,
				Samples: []*profilespb.Sample{{StackIndex: 1, Values: []int64{1}}},
			}}}},
		}},
	})
	require.NoError(f, err)
	f.Add(body)
	f.Fuzz(func(t *testing.T, body []byte) {
		req := &collectorpb.ExportProfilesServiceRequest{}
		if proto.Unmarshal(body, req) != nil {
			return
		}
		samples := receiver.Resolve(req)
		require.NoError(t, WriteTop(io.Discard, timer, "SERVICE", Top(Fold(samples), 10, Options{Group: Program, Own: true}), Options{}))
		require.NoError(t, WriteFlameSVG(io.Discard, "t", samples))
		require.NoError(t, WriteDifference(io.Discard, Side{samples, 1}, Side{samples[:len(samples)/2], 2}, 5, Options{}))
	})
}
