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
	containers, threads int
	// frames builds a stack. resource and attributes are added to every sample.
	mapping    profile.Mapping
	resource   []profile.Attribute
	attributes []profile.Attribute
	noThreads  bool // omits thread.name
}

// encode returns the messages for several windows of on-CPU samples.
func (n node) encode(t *testing.T, cfg profile.Config, windows int) [][]byte {
	t.Helper()
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
		for c := range n.containers {
			resource := uint64(c + 1)
			a.SetResource(resource, profile.Resource{Attributes: append([]profile.Attribute{
				{Key: "service.name", Value: profile.String(fmt.Sprintf("service-%d", c%20))},
				{Key: "k8s_pod_name", Value: profile.String(fmt.Sprintf("pod-%d", c))},
				{Key: "container_name", Value: profile.String("app")},
				{Key: "host_name", Value: profile.String("node-1")},
			}, n.resource...)})
			for th := range n.threads {
				key := uint64(c*n.threads+th) + 1
				attrs := slices.Clone(n.attributes)
				if !n.noThreads {
					attrs = append(attrs, profile.Attribute{Key: "thread_name", Value: profile.String(fmt.Sprintf("worker-%d", th))})
				}
				s := profile.Sample{Stack: stack[th%2:], Attributes: attrs}
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
			tt.node.containers, tt.node.threads = 3, 4
			for _, body := range tt.node.encode(t, tt.cfg, 2) {
				require.Empty(t, CheckBytes(tt.backend, body), "%v", errors.Join(CheckBytes(tt.backend, body)...))
			}
		})
	}
}

// TestEncoderWrongForABackend makes sure that TestEncoder can fail.
func TestEncoderWrongForABackend(t *testing.T) {
	tests := []struct {
		backend string
		node    node
		cfg     profile.Config
		rules   []string
	}{
		{Elastic, node{mapping: withGNU}, profile.Config{}, []string{elasticHost.ID, elasticService.ID, elasticTimestamps.ID}},
		{Devfiler, node{mapping: withGNU}, profile.Config{}, []string{devfilerHTLHash.ID, devfilerTimestamps.ID}},
		{
			Parca,
			node{mapping: withGNU, attributes: []profile.Attribute{{Key: "process.pid", Value: profile.Int(1)}}},
			profile.Config{},
			[]string{parcaFunction.ID, parcaString.ID},
		},
		{
			Pyroscope,
			node{mapping: withGNU, resource: []profile.Attribute{{Key: "k8s_pod_label_app_kubernetes_io/name", Value: profile.String("x")}}},
			profile.Config{},
			[]string{pyroscopeLabelName.ID},
		},
	}
	for _, tt := range tests {
		t.Run(tt.backend, func(t *testing.T) {
			tt.node.containers, tt.node.threads = 1, 2
			for _, body := range tt.node.encode(t, tt.cfg, 1) {
				req := &request{}
				require.NoError(t, proto.Unmarshal(body, req))
				require.Equal(t, tt.rules, ruleIDs(t, Check(tt.backend, req)))
			}
		})
	}
}

// TestBusyNode counts the series that Pyroscope creates for a busy node. Their number does not depend on the number of windows.
// With the preset, there is one series per container. With thread.name, there is one per thread name and container.
func TestBusyNode(t *testing.T) {
	const containers, threads, windows = 25, 10, 5 // more than the 20 services of a node
	for _, tc := range []struct {
		name   string
		node   node
		labels int
		series int
	}{
		{"preset", node{mapping: withGNU, containers: containers, threads: threads, noThreads: true}, 7, containers},
		{"with thread.name", node{mapping: withGNU, containers: containers, threads: threads}, 8, containers * threads},
	} {
		t.Run(tc.name, func(t *testing.T) {
			series := map[string]bool{}
			for _, body := range tc.node.encode(t, profile.Config{TextAttributes: true}, windows) {
				req := &request{}
				require.NoError(t, proto.Unmarshal(body, req))
				for _, s := range PyroscopeSeries(req) {
					require.Equal(t, "process_cpu:cpu:nanoseconds:cpu:nanoseconds", s.Type)
					require.Len(t, s.Labels, tc.labels)
					series[s.Key()] = true
				}
			}
			require.Len(t, series, tc.series)
		})
	}
}
