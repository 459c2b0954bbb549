package receiver

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

func TestResolve(t *testing.T) {
	work := Frame{
		Name: "main.work", Type: "native", File: "main.go", Line: 7,
		Mapping: "/usr/bin/app", BuildID: "0123456789", Address: 0x1234,
	}
	samples := Resolve(request())
	require.Len(t, samples, 3)
	require.Equal(t, Sample{
		Service:    "shop",
		Resource:   map[string]string{"service.name": "shop"},
		Attributes: map[string]string{"thread.name": "worker"},
		Stack:      []Frame{{Name: "vfs_read", Type: "kernel", Mapping: "[kernel.kallsyms]", BuildID: "89abcdef"}, work},
		Type:       "samples", Unit: "count", PeriodType: "cpu", PeriodUnit: "nanoseconds", Period: 10_000_000,
		Values: []int64{3},
		Start:  time.Unix(1_700_000_000, 0).UTC(), End: time.Unix(1_700_000_010, 0).UTC(),
		Scope: "profile_cpu",
	}, samples[0])
	require.Equal(t, []Frame{{Type: "native", Mapping: "/usr/bin/app", BuildID: "0123456789", Address: 0x2345}, work}, samples[2].Stack)
	require.Equal(t, "app+0x2345", samples[2].Stack[0].Label())
	require.Equal(t, "0x2345", Frame{Address: 0x2345}.Label())
	require.Equal(t, "89ab+0x2345", Frame{Address: 0x2345, BuildID: "89ab"}.Label())
	require.Equal(t, "main.go", Frame{File: "main.go"}.Label())
	require.Equal(t, "[empty frame]", Frame{}.Label())
	require.Equal(t, "30313233343536373839616263646566", samples[2].TraceID)
	require.Equal(t, "3031323334353637", samples[2].SpanID)
}

func TestResolveInlinedLines(t *testing.T) {
	req := request()
	req.Dictionary.LocationTable[1].Lines = []*profilespb.Line{{FunctionIndex: 2, Line: 1}, {FunctionIndex: 1, Line: 7}}
	stack := Resolve(req)[1].Stack
	require.Len(t, stack, 2)
	require.Equal(t, "vfs_read", stack[0].Name)
	require.Equal(t, "main.work", stack[1].Name)
}

func TestResolveTakesAnything(t *testing.T) {
	require.Empty(t, Resolve(nil))
	req := request()
	req.Dictionary = nil
	require.Len(t, Resolve(req), 3)
	req = request()
	s := req.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].Samples
	s[0].StackIndex, s[1].AttributeIndices, s[2].LinkIndex = -1, []int32{99, -5}, 99
	req.Dictionary.LocationTable[1].MappingIndex = 99
	req.Dictionary.LocationTable[1].Lines[0].FunctionIndex = -3
	samples := Resolve(req)
	require.Len(t, samples, 3)
	require.Empty(t, samples[0].Stack)
	require.Empty(t, samples[1].Attributes)
}

func TestTotalAndSeconds(t *testing.T) {
	tests := []struct {
		name    string
		sample  Sample
		total   int64
		seconds float64
		isTime  bool
	}{
		{"samples of a period", Sample{Unit: "count", PeriodUnit: "nanoseconds", Period: 5e8, Values: []int64{3}}, 3, 1.5, true},
		{"nanoseconds", Sample{Unit: "nanoseconds", PeriodUnit: "count", Period: 1, Values: []int64{2e9, 1e9}}, 3e9, 3, true},
		{"timestamps", Sample{Unit: "count", PeriodUnit: "nanoseconds", Period: 1e9, Timestamps: []uint64{1, 2}}, 2, 2, true},
		{"values with timestamps", Sample{Unit: "bytes", Values: []int64{5, 6}, Timestamps: []uint64{1, 2}}, 11, 0, false},
		{"events", Sample{Unit: "count", PeriodUnit: "count", Period: 1, Values: []int64{7}}, 7, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.total, tt.sample.Total())
			seconds, isTime := tt.sample.Seconds()
			require.Equal(t, tt.isTime, isTime)
			require.InDelta(t, tt.seconds, seconds, 1e-9)
		})
	}
}

// TestCollectorLine reads a line as the Collector's file exporter writes it: IDs in hexadecimal,
// resource attributes as references.
func TestCollectorLine(t *testing.T) {
	const line = `{"resourceProfiles":[{"resource":{"attributes":[` +
		`{"keyStrindex":1,"value":{"stringValueStrindex":2}},{"key":"n","value":{"intValue":"7"}}]},` +
		`"scopeProfiles":[{"scope":{"name":"s"},"profiles":[{"sampleType":{"typeStrindex":3,"unitStrindex":4},` +
		`"samples":[{"stackIndex":1,"linkIndex":1,"values":["5"],"timestampsUnixNano":["1700000000000000000"]}],` +
		`"timeUnixNano":"1700000000000000000","durationNano":"1","periodType":{},` +
		`"profileId":"30313233343536373839616263646566"}]}]}],` +
		`"dictionary":{"mappingTable":[{}],"locationTable":[{},{"lines":[{"functionIndex":1}]}],` +
		`"functionTable":[{},{"nameStrindex":5}],"linkTable":[{},{"traceId":"000102030405060708090a0b0c0d0e0f","spanId":"0001020304050607"}],` +
		`"stringTable":["","service.name","shop","samples","count","main.work"],"attributeTable":[{"value":{}}],` +
		`"stackTable":[{},{"locationIndices":[1]}]},"fieldOfALaterVersion":1}`
	reqs, err := ReadJSONLines(strings.NewReader(line + "\n\n" + line))
	require.NoError(t, err)
	require.Len(t, reqs, 2)
	samples := Resolve(reqs[1])
	require.Len(t, samples, 1)
	require.Equal(t, "shop", samples[0].Service)
	require.Equal(t, "7", samples[0].Resource["n"])
	require.Equal(t, "main.work", samples[0].Stack[0].Name)
	require.Equal(t, "000102030405060708090a0b0c0d0e0f", samples[0].TraceID)
	require.Equal(t, []byte("0123456789abcdef"), reqs[0].ResourceProfiles[0].ScopeProfiles[0].Profiles[0].ProfileId)
}

func TestJSONLines(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, WriteJSONLine(&b, request()))
	require.Contains(t, b.String(), `"traceId":"30313233343536373839616263646566"`)
	require.Equal(t, 1, strings.Count(b.String(), "\n"))
	reqs, err := ReadJSONLines(bytes.NewReader(b.Bytes()))
	require.NoError(t, err)
	require.Len(t, reqs, 1)
	require.True(t, proto.Equal(request(), reqs[0]))

	reqs, err = ReadJSONLines(strings.NewReader(b.String() + b.String()[:50]))
	require.ErrorContains(t, err, "line 2")
	require.Len(t, reqs, 1)
	// A result of a history is one line, which can be as long as the largest answer.
	reqs, err = ReadJSONLines(strings.NewReader(strings.Repeat(" ", 65<<20) + b.String()))
	require.NoError(t, err)
	require.Len(t, reqs, 1)
	// An ID of the wrong length stays unchanged, so the checker can find it.
	bad := request()
	bad.Dictionary.LinkTable[1].SpanId = []byte{1, 2, 3}
	b.Reset()
	require.NoError(t, WriteJSONLine(&b, bad))
	require.Contains(t, b.String(), `"spanId":"010203"`)
	got, err := ParseJSON(b.Bytes())
	require.NoError(t, err)
	require.True(t, proto.Equal(bad, got))

	_, err = ParseJSON([]byte(`{} {}`))
	require.ErrorContains(t, err, "decoding OTLP JSON")
}
