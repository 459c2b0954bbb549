package export

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	otlpprofiles "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/file"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

func toFile(t testing.TB, format string) config.Exporter {
	cfg := settings(config.TransportFile, "")
	cfg.Path = filepath.Join(t.TempDir(), "profiles.out")
	cfg.Format = format
	return cfg
}

// oldLayout rewrites a request to the field numbers of OTLP 1.9 or 1.8, field by field and without the code under test.
func oldLayout(t testing.TB, version string, body []byte) []byte {
	t.Helper()
	sample := map[protowire.Number]protowire.Number{2: 3, 3: 4, 4: 2}
	profile := map[protowire.Number]protowire.Number{}
	switch version {
	case "1.11":
		return body
	case "1.8":
		profile = map[protowire.Number]protowire.Number{7: 8, 8: 9, 9: 10, 10: 11, 11: 12}
	}
	var walk func(in []byte, path []protowire.Number) []byte
	walk = func(in []byte, path []protowire.Number) []byte {
		var out []byte
		for len(in) > 0 {
			num, typ, n := protowire.ConsumeTag(in)
			require.Positive(t, n)
			v := protowire.ConsumeFieldValue(num, typ, in[n:])
			require.GreaterOrEqual(t, v, 0)
			value := in[n : n+v]
			in = in[n+v:]
			if len(path) == 0 && sample[num] != 0 {
				num = sample[num]
			}
			if len(path) == 1 && profile[num] != 0 {
				num = profile[num]
			}
			out = protowire.AppendTag(out, num, typ)
			if len(path) > 0 && num == path[0] {
				inner, _ := protowire.ConsumeBytes(value)
				out = protowire.AppendBytes(out, walk(inner, path[1:]))
				continue
			}
			out = append(out, value...)
		}
		return out
	}
	return walk(body, []protowire.Number{1, 2, 2, 2})
}

// The Collector's own reader finds the whole request in a JSON line.
func TestJSONLinesAsTheCollectorReadsThem(t *testing.T) {
	for _, version := range []string{"1.8", "1.9", "1.11"} {
		t.Run(version, func(t *testing.T) {
			cfg := toFile(t, "otlp-json")
			cfg.OTLPVersion = version
			cfg.Queue.NumConsumers = 1
			e, _ := open(t, cfg)
			hostile := "a\"b\\c\n\u2028\x7f<é>"
			for _, name := range []string{"one", hostile} {
				e.Enqueue(message(t, name, 0))
			}
			drainAll(t, e)
			require.Equal(t, int64(20), balanced(t, e).Rows.Delivered)
			info, err := os.Stat(cfg.Path)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
			data, err := os.ReadFile(cfg.Path)
			require.NoError(t, err)
			lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
			require.Len(t, lines, 2)
			for i, name := range []string{"one", hostile} {
				pd, err := (&pprofile.JSONUnmarshaler{}).UnmarshalProfiles([]byte(lines[i]))
				require.NoError(t, err)
				rp := pd.ResourceProfiles().At(0)
				service, _ := rp.Resource().Attributes().Get("service.name")
				require.Equal(t, name, service.Str())
				p := rp.ScopeProfiles().At(0).Profiles().At(0)
				require.Equal(t, int64(1_700_000_000_000_000_000), p.Time().AsTime().UnixNano())
				require.Equal(t, uint64(10_000_000_000), p.DurationNano())
				require.Equal(t, int64(1000), p.Period())
				id := p.ProfileID()
				require.Equal(t, strings.Repeat("5a", 16), hex.EncodeToString(id[:]))
				s := p.Samples().At(0)
				require.Equal(t, []int64{3}, s.Values().AsRaw())
				require.Equal(t, []int32{1, 3}, s.AttributeIndices().AsRaw())
				require.Equal(t, int32(1), s.LinkIndex())
				link := pd.Dictionary().LinkTable().At(1).TraceID()
				require.Equal(t, strings.Repeat("ab", 16), hex.EncodeToString(link[:]))
				require.Equal(t, uint64(0x1234), pd.Dictionary().LocationTable().At(1).Address())
				require.Equal(t, int64(42), pd.Dictionary().AttributeTable().At(3).Value().Int())
			}
		})
	}
}

// protobuf's own JSON reader must agree, except where OTLP's JSON differs.
func TestJSONAgainstProtobuf(t *testing.T) {
	req := request("app", 0)
	values := []*commonpb.AnyValue{
		{},
		stringValue(""),
		stringValue(`C:\x`), // each needs an escape
		stringValue(`"x`),
		stringValue("x\x1f"),
		stringValue("é"),
		{Value: &commonpb.AnyValue_BoolValue{}},
		{Value: &commonpb.AnyValue_BoolValue{BoolValue: true}},
		{Value: &commonpb.AnyValue_IntValue{IntValue: -1 << 63}},
		{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: 1e-300}},
		{Value: &commonpb.AnyValue_DoubleValue{}},
		{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: math.Inf(1)}},
		{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: math.Inf(-1)}},
		{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: math.NaN()}},
		{Value: &commonpb.AnyValue_BytesValue{BytesValue: []byte{0, 255, 254}}},
		{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{Values: []*commonpb.AnyValue{stringValue("x"), {}}}}},
		{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{Values: []*commonpb.KeyValue{{Key: "k", Value: stringValue("v")}}}}},
	}
	for i, v := range values {
		req.ResourceProfiles[0].Resource.Attributes = append(req.ResourceProfiles[0].Resource.Attributes, &commonpb.KeyValue{Key: fmt.Sprint(i), Value: v})
	}
	profile := req.ResourceProfiles[0].ScopeProfiles[0].Profiles[0]
	profile.Samples = append(profile.Samples, &otlpprofiles.Sample{}, &otlpprofiles.Sample{StackIndex: 1}, &otlpprofiles.Sample{LinkIndex: 7},
		&otlpprofiles.Sample{AttributeIndices: []int32{1, -1}}, &otlpprofiles.Sample{Values: []int64{0, -1 << 63}, TimestampsUnixNano: []uint64{1, 1<<64 - 1}})
	// These three fields differ.
	profile.ProfileId = nil
	req.Dictionary.LinkTable = []*otlpprofiles.Link{{}}
	body, err := proto.Marshal(req)
	require.NoError(t, err)
	line, err := wire.JSON(body)
	require.NoError(t, err)
	require.True(t, json.Valid(line))
	require.NotContains(t, string(line), "\n")
	var got otlpprofiles.ProfilesData
	require.NoError(t, protojson.Unmarshal(line, &got))
	back, err := proto.MarshalOptions{Deterministic: true}.Marshal(&got)
	require.NoError(t, err)
	want, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	require.NoError(t, err)
	require.Equal(t, want, back)
}

func TestRenumbered(t *testing.T) {
	body, err := proto.Marshal(request("app", 100))
	require.NoError(t, err)
	for _, version := range []string{"1.8", "1.9"} {
		old := oldLayout(t, version, body)
		require.NotEqual(t, body, old)
		back, err := wire.FromLayout(old, version)
		require.NoError(t, err)
		require.Equal(t, body, back)
		there, err := wire.ToLayout(body, version)
		require.NoError(t, err)
		require.Equal(t, old, there)
		for n := range len(old) {
			_, _ = wire.FromLayout(old[:n], version) // must not panic
		}
	}
}

// JSON over HTTP uses the same mapping.
func TestHTTPJSON(t *testing.T) {
	r := recvtest.StartHTTP(t, recvtest.HTTPConfig{})
	cfg := settings(config.TransportHTTP, r.URL)
	cfg.Encoding, cfg.Compression = "json", "gzip"
	sent(t, cfg)
	require.Len(t, r.Requests(), 1)
	pd, err := (&pprofile.JSONUnmarshaler{}).UnmarshalProfiles(r.Requests()[0].Body)
	require.NoError(t, err)
	require.Equal(t, 1, pd.SampleCount())
	require.Equal(t, config.ProfilesPath, r.Requests()[0].HTTP.URL.Path)
}

func TestProtoRecords(t *testing.T) {
	record, err := file.Encoder("otlp-proto", "1.8")(message(t, "app", 0).Body)
	require.NoError(t, err)
	require.Equal(t, oldLayout(t, "1.8", message(t, "app", 0).Body), record[4:])

	cfg := toFile(t, "otlp-proto")
	e, _ := open(t, cfg)
	for i := range 3 {
		e.Enqueue(message(t, "app", i*100))
	}
	drainAll(t, e)
	data, err := os.ReadFile(cfg.Path)
	require.NoError(t, err)
	for i := range 3 {
		n := binary.BigEndian.Uint32(data)
		var pd otlpprofiles.ProfilesData
		require.NoError(t, proto.Unmarshal(data[4:4+n], &pd))
		require.True(t, proto.Equal(request("app", i*100).Dictionary, pd.Dictionary))
		data = data[4+n:]
	}
	require.Empty(t, data)
}

func TestPprofFiles(t *testing.T) {
	for _, version := range []string{"1.8", "1.9", "1.11"} {
		t.Run(version, func(t *testing.T) {
			cfg := toFile(t, "pprof")
			cfg.OTLPVersion = version
			cfg.Path = filepath.Join(filepath.Dir(cfg.Path), "cpu.pb.gz")
			cfg.Rotation = config.Rotation{MaxBackups: 3, MaxMegabytes: 1, MaxTotalMegabytes: 1} // pprof files reserve no room for a current file
			e, _ := open(t, cfg)
			for range 5 {
				e.Enqueue(message(t, "shop", 0))
			}
			drainAll(t, e)
			stats := balanced(t, e)
			require.Equal(t, int64(50), stats.Rows.Delivered)
			require.Positive(t, stats.WireBytes)
			files, err := filepath.Glob(filepath.Join(filepath.Dir(cfg.Path), "*"))
			require.NoError(t, err)
			require.Len(t, files, 3, "max_backups")
			for _, path := range files {
				require.Regexp(t, `/cpu-\d{8}T\d{6}\.\d{9}Z-\d{6}\.pb\.gz$`, path)
				info, err := os.Stat(path)
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
				f, err := os.Open(path)
				require.NoError(t, err)
				p, err := profile.Parse(f)
				require.NoError(t, err)
				require.NoError(t, f.Close())
				require.Equal(t, []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}, p.SampleType)
				require.Equal(t, "cpu", p.DefaultSampleType)
				require.Len(t, p.Sample, 1)
				s := p.Sample[0]
				require.Equal(t, []int64{3, 3000}, s.Value)
				require.Equal(t, []string{"shop"}, s.Label["service.name"])
				require.Equal(t, []string{"worker"}, s.Label["thread.name"])
				require.Equal(t, []string{strings.Repeat("ab", 16)}, s.Label["trace_id"])
				require.Len(t, s.Location, 2)
				require.Equal(t, "main", s.Location[1].Line[0].Function.Name)
				require.Equal(t, "app", s.Location[1].Mapping.File)
				require.Equal(t, "cafe", s.Location[1].Mapping.BuildID)
			}
		})
	}
}

// FuzzFileFormats encodes any bytes as a request. The result must be an error or a valid record.
func FuzzFileFormats(f *testing.F) {
	body, err := proto.Marshal(request("app", 0))
	require.NoError(f, err)
	f.Add(body)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		if line, err := file.Encoder("otlp-json", "")(body); err == nil {
			require.True(t, json.Valid(line))
			require.Equal(t, 1, bytes.Count(line, []byte("\n")))
		}
		if data, err := file.Encoder("pprof", "")(body); err == nil {
			_, err := profile.ParseData(data)
			require.NoError(t, err)
		}
	})
}

func TestRotation(t *testing.T) {
	cfg := toFile(t, "otlp-json")
	cfg.Path = filepath.Join(filepath.Dir(cfg.Path), "p.jsonl")
	cfg.Rotation = config.Rotation{MaxMegabytes: 1, MaxBackups: 2, MaxDays: 7}
	dir := filepath.Dir(cfg.Path)
	// The first file is ours and too old. The second only has a similar name.
	old := filepath.Join(dir, "p-20200102T030405.000000000Z.jsonl")
	other := filepath.Join(dir, "p-20200102.jsonl")
	for _, path := range []string{old, other} {
		writeFile(t, path, []byte("x"))
		long := time.Now().Add(-30 * 24 * time.Hour)
		require.NoError(t, os.Chtimes(path, long, long))
	}
	e, _ := open(t, cfg)
	for range 20 {
		e.Enqueue(message(t, "app", 300_000))
	}
	drainAll(t, e)
	require.Equal(t, int64(200), balanced(t, e).Rows.Delivered)
	require.NoFileExists(t, old)
	require.FileExists(t, other)
	backups, err := filepath.Glob(filepath.Join(dir, "p-*Z.jsonl"))
	require.NoError(t, err)
	require.Len(t, backups, 2)
	for _, path := range append(backups, cfg.Path) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.LessOrEqual(t, len(data), 1<<20)
		for _, line := range bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
			require.True(t, json.Valid(line), "records are whole")
		}
	}
}

// Standard output is a symbolic link that the exporter must follow.
func TestToStandardOutput(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	fd, err := unix.Dup(int(w.Fd()))
	require.NoError(t, err)
	cfg := toFile(t, "otlp-json")
	cfg.Path = fmt.Sprintf("/dev/fd/%d", fd)
	e, _ := sent(t, cfg)
	require.NoError(t, unix.Close(fd))
	require.NoError(t, w.Close())
	stop(t, e)
	line, err := io.ReadAll(r)
	require.NoError(t, err)
	require.True(t, json.Valid(line))
	require.NoError(t, r.Close())
}

// Unfinished files of killed processes are removed. Files that another process is writing or has written stay.
func TestLeftoversOfPprofFilesAreRemoved(t *testing.T) {
	cfg := toFile(t, "pprof")
	dir := filepath.Dir(cfg.Path)
	cfg.Path = filepath.Join(dir, "p")
	const stamp = "-20200102T030405.000000000Z-000001.pb.gz.tmp"
	long := time.Now().Add(-30 * 24 * time.Hour)
	left, fresh, foreign := filepath.Join(dir, "p"+stamp), filepath.Join(dir, "p"+strings.Replace(stamp, "2020", "2021", 1)), filepath.Join(dir, "q"+stamp)
	for _, path := range []string{left, fresh, foreign} {
		writeFile(t, path, []byte("x"))
		if path != fresh {
			require.NoError(t, os.Chtimes(path, long, long))
		}
	}
	folder, link := filepath.Join(dir, "p"+strings.Replace(stamp, "2020", "2022", 1)), filepath.Join(dir, "p"+strings.Replace(stamp, "2020", "2023", 1))
	require.NoError(t, os.Mkdir(folder, 0o700))
	require.NoError(t, os.Chtimes(folder, long, long))
	require.NoError(t, os.Symlink(foreign, link))
	stays := []string{fresh, foreign, folder, link}
	if os.Geteuid() == 0 {
		other := filepath.Join(dir, "p"+strings.Replace(stamp, "2020", "2019", 1))
		writeFile(t, other, []byte("x"))
		require.NoError(t, os.Chown(other, 12345, -1))
		require.NoError(t, os.Chtimes(other, long, long))
		stays = append(stays, other)
	}
	sent(t, cfg)
	require.NoFileExists(t, left)
	for _, path := range stays {
		_, err := os.Lstat(path)
		require.NoError(t, err)
	}
}
