package receiver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testTime     = uint64(1_700_000_000_000_000_000)
	testDuration = uint64(10_000_000_000)
)

func text(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
}

// request returns a valid request. In the span of a trace, shop's main.work called vfs_read (3 samples), ran by itself (2) and
// called a function without a symbol (1).
func request() *collectorpb.ExportProfilesServiceRequest {
	return &collectorpb.ExportProfilesServiceRequest{
		Dictionary: &profilespb.ProfilesDictionary{
			StringTable: []string{
				"", "cpu", "nanoseconds", "main.work", "main.go", "/usr/bin/app",
				"process.executable.build_id.gnu", "profile.frame.type", "thread.name",
				"vfs_read", "[kernel.kallsyms]", "samples", "count",
			},
			AttributeTable: []*profilespb.KeyValueAndUnit{
				{},
				{KeyStrindex: 6, Value: text("0123456789")},
				{KeyStrindex: 7, Value: text("native")},
				{KeyStrindex: 7, Value: text("kernel")},
				{KeyStrindex: 8, Value: text("worker")},
				{KeyStrindex: 6, Value: text("89abcdef")},
			},
			FunctionTable: []*profilespb.Function{{}, {NameStrindex: 3, FilenameStrindex: 4}, {NameStrindex: 9}},
			MappingTable: []*profilespb.Mapping{
				{}, {FilenameStrindex: 5, AttributeIndices: []int32{1}}, {FilenameStrindex: 10, AttributeIndices: []int32{5}},
			},
			LocationTable: []*profilespb.Location{
				{},
				{MappingIndex: 1, Address: 0x1234, AttributeIndices: []int32{2}, Lines: []*profilespb.Line{{FunctionIndex: 1, Line: 7}}},
				{MappingIndex: 2, AttributeIndices: []int32{3}, Lines: []*profilespb.Line{{FunctionIndex: 2}}},
				{MappingIndex: 1, Address: 0x2345, AttributeIndices: []int32{2}},
			},
			StackTable: []*profilespb.Stack{
				{}, {LocationIndices: []int32{2, 1}}, {LocationIndices: []int32{1}}, {LocationIndices: []int32{3, 1}},
			},
			LinkTable: []*profilespb.Link{{}, {TraceId: []byte("0123456789abcdef"), SpanId: []byte("01234567")}},
		},
		ResourceProfiles: []*profilespb.ResourceProfiles{{
			Resource:  &resourcepb.Resource{Attributes: []*commonpb.KeyValue{{Key: "service.name", Value: text("shop")}}},
			SchemaUrl: "https://opentelemetry.io/schemas/1.37.0",
			ScopeProfiles: []*profilespb.ScopeProfiles{{
				Scope:     &commonpb.InstrumentationScope{Name: "profile_cpu"},
				SchemaUrl: "https://opentelemetry.io/schemas/1.37.0",
				Profiles: []*profilespb.Profile{{
					SampleType:   &profilespb.ValueType{TypeStrindex: 11, UnitStrindex: 12},
					PeriodType:   &profilespb.ValueType{TypeStrindex: 1, UnitStrindex: 2},
					Period:       10_000_000,
					TimeUnixNano: testTime, DurationNano: testDuration,
					ProfileId: []byte("0123456789abcdef"),
					Samples: []*profilespb.Sample{
						{StackIndex: 1, AttributeIndices: []int32{4}, Values: []int64{3}},
						{StackIndex: 2, Values: []int64{2}},
						{StackIndex: 3, LinkIndex: 1, Values: []int64{1}},
					},
				}},
			}},
		}},
	}
}

func start(t *testing.T, opts Options) *Receiver {
	t.Helper()
	r, err := Start(opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func dial(t *testing.T, r *Receiver) collectorpb.ProfilesServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(r.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return collectorpb.NewProfilesServiceClient(conn)
}

func TestGRPC(t *testing.T) {
	for _, compression := range []string{"identity", "gzip", "zstd"} {
		t.Run(compression, func(t *testing.T) {
			r := start(t, Options{})
			client := dial(t, r)
			for range 3 {
				_, err := client.Export(t.Context(), request(), grpc.UseCompressor(compression))
				require.NoError(t, err)
			}
			require.Empty(t, r.Findings())
			require.Len(t, r.Requests(), 3)
			require.True(t, proto.Equal(request(), r.Requests()[0]))
			require.Equal(t, Stats{Requests: 3, Samples: 9, Bytes: 3 * int64(proto.Size(request()))}, r.Stats())
			require.Len(t, r.Samples(), 3, "one request, sent three times")
			next := request()
			next.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].ProfileId[0] = 'x'
			_, err := client.Export(t.Context(), next, grpc.UseCompressor(compression))
			require.NoError(t, err)
			require.Len(t, r.Samples(), 6)
		})
	}
}

func TestRespond(t *testing.T) {
	refuse := true
	r := start(t, Options{Respond: func(context.Context, *collectorpb.ExportProfilesServiceRequest) (*collectorpb.ExportProfilesServiceResponse, error) {
		if refuse {
			return nil, status.Error(codes.Unavailable, "later")
		}
		return &collectorpb.ExportProfilesServiceResponse{PartialSuccess: &collectorpb.ExportProfilesPartialSuccess{RejectedProfiles: 1}}, nil
	}})
	client := dial(t, r)
	_, err := client.Export(t.Context(), request())
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Empty(t, r.Requests())
	refuse = false
	resp, err := client.Export(t.Context(), request())
	require.NoError(t, err)
	require.EqualValues(t, 1, resp.GetPartialSuccess().GetRejectedProfiles())
	require.Len(t, r.Requests(), 1)
}

func TestFindings(t *testing.T) {
	r := start(t, Options{})
	bad := request()
	bad.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].Period = 0
	_, err := dial(t, r).Export(t.Context(), bad)
	require.NoError(t, err)
	require.Len(t, r.Findings(), 1)
	require.ErrorContains(t, r.Findings()[0], "resource_profiles[0].scope_profiles[0].profiles[0].period")
}

func TestKeepsNoMoreThanAskedFor(t *testing.T) {
	size := int64(proto.Size(request()))
	r := start(t, Options{MaxBytes: 2*size + 1})
	client := dial(t, r)
	for i := range 5 {
		req := request()
		req.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].ProfileId[0] = byte('0' + i)
		_, err := client.Export(t.Context(), req)
		require.NoError(t, err)
	}
	require.Len(t, r.Requests(), 2)
	require.EqualValues(t, '4', r.Requests()[1].ResourceProfiles[0].ScopeProfiles[0].Profiles[0].ProfileId[0])
	require.Equal(t, Stats{Requests: 5, Samples: 15, Bytes: 5 * size, Dropped: 3}, r.Stats())
}

func TestOnlyLoopback(t *testing.T) {
	_, err := Start(Options{GRPCAddr: "0.0.0.0:0"})
	require.ErrorContains(t, err, "not a loopback address")
	_, err = Start(Options{Dir: filepath.Join(t.TempDir(), "missing")})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	r := start(t, Options{Dir: dir})
	client := dial(t, r)
	other := request()
	other.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].ProfileId[0] = 'x'
	for _, req := range []*collectorpb.ExportProfilesServiceRequest{other, request()} {
		_, err := client.Export(t.Context(), req)
		require.NoError(t, err)
	}
	require.NoError(t, r.Close())

	f, err := os.Open(filepath.Join(dir, "profiles.jsonl"))
	require.NoError(t, err)
	reqs, err := ReadJSONLines(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Len(t, reqs, 2)
	require.True(t, proto.Equal(request(), reqs[1]))

	f, err = os.Open(filepath.Join(dir, PprofFile))
	require.NoError(t, err)
	p, err := pprof.Parse(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	total := int64(0)
	for _, s := range p.Sample {
		total += s.Value[1]
	}
	require.EqualValues(t, 2*6*10_000_000, total)

	info, err := os.Stat(filepath.Join(dir, "profiles.jsonl"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// On a full disk, the file keeps the whole requests, so that it can be read.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if os.Geteuid() != 0 || unix.Mount("none", dir, "tmpfs", 0, "size=8k") != nil {
		t.Skip("a small disk needs root")
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	r, err := Start(Options{Dir: dir})
	require.NoError(t, err)
	client := dial(t, r)
	long := request()
	long.Dictionary.StringTable = append(long.Dictionary.StringTable, strings.Repeat("x", 8<<10))
	for _, req := range []*collectorpb.ExportProfilesServiceRequest{request(), long} {
		_, err := client.Export(t.Context(), req)
		require.NoError(t, err)
	}
	require.ErrorIs(t, r.Close(), unix.ENOSPC)
	f, err := os.Open(filepath.Join(dir, "profiles.jsonl"))
	require.NoError(t, err)
	defer f.Close()
	reqs, err := ReadJSONLines(f)
	require.NoError(t, err)
	require.Len(t, reqs, 1)
}
