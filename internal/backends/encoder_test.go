package backends

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

// node simulates a busy node with several containers, whose threads all run the same few functions.
type node struct {
	mapping profile.Mapping
	// resource and attributes are added to every sample.
	resource, attributes []profile.Attribute
}

// encode returns the messages for several windows of on-CPU samples.
func (n node) encode(t *testing.T, cfg profile.Config) [][]byte {
	t.Helper()
	const windows, containers, threads = 2, 3, 4
	cfg.Scope = profile.Scope{Name: "profile_cpu", Version: "v1"}
	cfg.SchemaURL = "https://opentelemetry.io/schemas/1.37.0"
	cfg.Types = []profile.ValueType{{Type: "samples", Unit: "count"}}
	cfg.PeriodType, cfg.Period = profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, 10_000_000
	a := profile.New(cfg)
	stack := []profile.Frame{
		{Name: "vfs_read", Type: profile.FrameKernel},
		{Name: "main.work", Type: profile.FrameGo, Address: 0x1234, Mapping: n.mapping},
		{Type: profile.FrameNative, Address: 0x4321},
	}
	var bodies [][]byte
	for w := range windows {
		start := testTime + uint64(w)*10_000_000_000
		for c := range containers {
			resource := uint64(c + 1)
			a.SetResource(resource, profile.Resource{Attributes: append([]profile.Attribute{
				{Key: "service.name", Value: profile.String(fmt.Sprintf("service-%d", c))},
				{Key: "k8s_pod_name", Value: profile.String(fmt.Sprintf("pod-%d", c))},
				{Key: "container_name", Value: profile.String("app")},
				{Key: "host_name", Value: profile.String("node-1")},
			}, n.resource...)})
			for th := range threads {
				key := uint64(c*threads+th) + 1
				thread := profile.Attribute{Key: "thread_name", Value: profile.String(fmt.Sprintf("worker-%d", th))}
				s := profile.Sample{Stack: stack[th%2:], Attributes: append(slices.Clone(n.attributes), thread)}
				status := a.Add(key, []int64{3}, start+uint64(th))
				if status == profile.NeedSample {
					status = a.Insert(resource, key, s, []int64{3}, start+uint64(th))
				}
				require.Equal(t, profile.Added, status)
			}
		}
		flushed := a.Flush(start, start+10_000_000_000, profile.Limits{})
		require.NotEmpty(t, flushed.Messages)
		for _, m := range flushed.Messages {
			bodies = append(bodies, m.Body)
		}
	}
	return bodies
}

var (
	withGNU  = profile.Mapping{File: "/usr/bin/app", GNUBuildID: "0123456789abcdef0123456789abcdef01234567", Symbolized: true}
	withHash = profile.Mapping{File: "/usr/bin/app", HTLHash: "0123456789abcdef0123456789abcdef"}
)

// TestEncoder checks the output of this project's encoder.
func TestEncoder(t *testing.T) {
	service := profile.Attribute{Key: "service.name", Value: profile.String("shop")}
	host := profile.Attribute{Key: "host.id", Value: profile.String("h1")}
	tests := []struct {
		backend string
		node    node
		cfg     profile.Config
	}{
		{Collector, node{mapping: withGNU}, profile.Config{}},
		{Collector, node{mapping: withGNU}, profile.Config{Shape: profile.ShapeSingle}},
		{Pyroscope, node{mapping: withGNU}, profile.Config{TextAttributes: true}},
		{Pyroscope, node{mapping: withGNU}, profile.Config{Shape: profile.ShapeTimestamps}},
		{Elastic, node{mapping: withHash, resource: []profile.Attribute{host}, attributes: []profile.Attribute{service}}, profile.Config{Shape: profile.ShapeTimestamps}},
		{Devfiler, node{mapping: withHash}, profile.Config{Shape: profile.ShapeTimestamps}},
		{Devfiler, node{}, profile.Config{Shape: profile.ShapeTimestamps}},
		{Devfiler, node{mapping: withGNU}, profile.Config{Shape: profile.ShapeTimestamps, HashedMappings: true}},
		{Parca, node{mapping: withGNU}, profile.Config{DoubleFunctions: true, TextAttributes: true}},
		{Parca, node{mapping: withGNU}, profile.Config{DoubleFunctions: true, Shape: profile.ShapeTimestamps}},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.backend, tt.cfg.Shape), func(t *testing.T) {
			for _, body := range tt.node.encode(t, tt.cfg) {
				require.Empty(t, CheckBytes(tt.backend, body), "%v", errors.Join(CheckBytes(tt.backend, body)...))
			}
		})
	}
	// Without the settings, the same messages break rules.
	for _, body := range (node{mapping: withGNU, attributes: []profile.Attribute{{Key: "process.pid", Value: profile.Int(1)}}}).encode(t, profile.Config{}) {
		req := &request{}
		require.NoError(t, proto.Unmarshal(body, req))
		require.Equal(t, []string{parcaFunction.ID, parcaString.ID}, ruleIDs(t, Check(Parca, req)))
		require.Equal(t, []string{elasticHost.ID, elasticService.ID, elasticTimestamps.ID}, ruleIDs(t, Check(Elastic, req)))
		require.Equal(t, []string{devfilerHTLHash.ID, devfilerTimestamps.ID}, ruleIDs(t, Check(Devfiler, req)))
	}
}
