package config

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	igconfig "github.com/inspektor-gadget/inspektor-gadget/pkg/config"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"
)

// readYAML reads a config in the same way as Inspektor Gadget.
func readYAML(t testing.TB, text string) *viper.Viper {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	v := igconfig.NewWithPath(file)
	require.NoError(t, v.ReadInConfig())
	return v
}

// exportersYAML puts exporters below their key in a config.
func exportersYAML(text string) string {
	var b strings.Builder
	b.WriteString("operator:\n  otel-profiles:\n    exporters:\n")
	for line := range strings.Lines(text) {
		b.WriteString("      " + line)
	}
	return b.String()
}

// deploy changes a config like `kubectl gadget deploy --daemon-config FILE --set-daemon-config K=V`: viper reads it and writes
// another file.
func deploy(t testing.TB, text string, sets ...string) *viper.Viper {
	t.Helper()
	v := viper.New()
	v.SetConfigType("yaml")
	require.NoError(t, v.ReadConfig(strings.NewReader("events-buffer-length: 16384\noperator:\n  oci:\n    verify-image: true\n")))
	require.NoError(t, v.MergeConfig(strings.NewReader(text)))
	for _, set := range sets {
		key, value, _ := strings.Cut(set, "=")
		v.Set(key, value)
	}
	var out bytes.Buffer
	require.NoError(t, v.WriteConfigTo(&out))
	return readYAML(t, out.String())
}

const everything = `
Prod.EU-1:
  exporter: otlp-http
  endpoint: https://collector.example.com:4318
  encoding: json
  compression: zstd
  timeout: 20s
  headers:
    - X-Scope-OrgID=tenant-1
    - x.dotted=a=b
  auth: {username: "0123", password: pass=word}
  tls: {server_name_override: other.example.com, min_version: 1.3, insecure_skip_verify: true, reload_interval: 1h}
  retry_on_failure: {enabled: true, initial_interval: 1s, randomization_factor: 0.25, multiplier: 2, max_interval: 1m, max_elapsed_time: 5m}
  sending_queue: {queue_size: 128MiB, num_consumers: 2, storage: /var/lib/q, storage_size: 1GB, max_age: 30m}
  batch: {interval: 30s, max_request_size: 2097152}
  shutdown_timeout: 15s
  otlp_version: 1.9
  preset: parca
  scope_name: image
  host_id: true
  frame_type_default: native
  mappings: htlhash
  mappings_from_proc: false
  file_addresses: offset
  raw_addresses: true
  max_resource_attributes: 12
  max_sample_attributes: 3
  sample_shape: single
  sampling: 1/10
  collect_stacks: off
  resource: ["deployment.environment.name=prod", "Team=A=B"]
  attributes: ["process.pid=sample", "Thread.Name=drop"]
  max_values_per_attribute: 10
  pod_labels: [app.kubernetes.io/Part-of, tier]
  service_name: s
  host_service_name: h
  service_from_labels: false
  process_context: hosts
  compat_names: true
  kernel_addresses: raw
  image_digest: true
old:
  exporter: otlp-grpc
  endpoint: collector:4317
  insecure: true
  compression: ""
maps:
  endpoint: collector:4317
  keepalive: {time: 1m, timeout: 5s, permit_without_stream: true}
  balancer_name: pick_first
  headers: {x-scope-orgid: "1", x.dotted: a}
  resource:
    deployment.environment.name: prod
    team: {name: core}
  attributes: {process.pid: drop, thread.name: resource}
  sending_queue.queue_size: 32MiB
disk:
  exporter: file
  path: profiles.pb
  format: otlp-proto
  rotation: {max_megabytes: 1, max_total_megabytes: 4, max_days: 2, max_backups: 3}
`

func TestFile(t *testing.T) {
	set := Load(Sources{File: readYAML(t, exportersYAML(everything)), FileName: "c.yaml", Daemon: true})
	require.Empty(t, set.Problems())
	require.Equal(t, []string{"disk", "maps", "old", "prod.eu-1"}, set.Names())

	e, err := set.Exporter("PROD.eu-1")
	require.NoError(t, err)
	require.Equal(t, Exporter{
		Name: "prod.eu-1", Source: "c.yaml", DoubleFunctions: true,
		Transport: TransportHTTP, Endpoint: "https://collector.example.com:4318", Written: Written{"https", "c.yaml"}, Encoding: "json", Compression: "zstd",
		Timeout: 20 * time.Second, Headers: []Header{{"x-scope-orgid", "tenant-1"}, {"x.dotted", "a=b"}},
		Auth:         Auth{Username: "0123", Password: "pass=word"},
		TLS:          TLS{ServerNameOverride: "other.example.com", MinVersion: "1.3", InsecureSkipVerify: true, ReloadInterval: time.Hour},
		Keepalive:    Keepalive{Timeout: 10 * time.Second},
		BalancerName: "round_robin",
		Retry: Retry{
			Enabled: true, InitialInterval: time.Second, RandomizationFactor: 0.25, Multiplier: 2,
			MaxInterval: time.Minute, MaxElapsedTime: 5 * time.Minute,
		},
		Queue:           Queue{Size: 128 << 20, NumConsumers: 2, Storage: "/var/lib/q", StorageSize: 1e9, MaxAge: 30 * time.Minute},
		Batch:           Batch{Interval: 30 * time.Second, MaxRequestSize: 2 << 20},
		ShutdownTimeout: 15 * time.Second, OTLPVersion: "1.9", Preset: "parca", SampleShape: "single", Sampling: 10,
		Resource:              []KeyValue{{"deployment.environment.name", "prod"}, {"Team", "A=B"}},
		Attributes:            []KeyValue{{"process.pid", "sample"}, {"Thread.Name", "drop"}},
		MaxValuesPerAttribute: 10, PodLabels: []string{"app.kubernetes.io/Part-of", "tier"},
		ServiceName: "s", HostServiceName: "h", ProcessContext: ContextHosts, CompatNames: true, KernelAddresses: "raw", ImageDigest: true,
		StringAttributes: true, LabelKeys: true, MaxResourceAttributes: 12, MaxSampleAttributes: 3, HostID: true,
		NativeDefault: true, HashedMappings: true, OffsetAddresses: true, RawAddresses: true, Format: "otlp-json", Rotation: Rotation{100, 1000, 0, 0}, Retention: Retention{24 * time.Hour, 1 << 30},
	}, e)

	// Settings of Inspektor Gadget's own operator have the same meaning.
	e, err = set.Exporter("old")
	require.NoError(t, err)
	require.Equal(t, "collector:4317", e.Endpoint)
	require.True(t, e.Insecure)
	require.Equal(t, "none", e.Compression)

	e, err = set.Exporter("maps")
	require.NoError(t, err)
	require.Equal(t, []Header{{"x-scope-orgid", "1"}, {"x.dotted", "a"}}, e.Headers)
	require.Equal(t, []KeyValue{{"deployment.environment.name", "prod"}, {"team.name", "core"}}, e.Resource)
	require.Equal(t, []KeyValue{{"process.pid", "drop"}, {"thread.name", "resource"}}, e.Attributes)
	require.Equal(t, Keepalive{Time: time.Minute, Timeout: 5 * time.Second, PermitWithoutStream: true}, e.Keepalive)
	require.EqualValues(t, 32<<20, e.Queue.Size)

	e, err = set.Exporter("disk")
	require.NoError(t, err)
	require.Equal(t, Rotation{1, 4, 2, 3}, e.Rotation)
}

// requireDeployable checks that a config has no mistakes and keeps its meaning after a deployment.
func requireDeployable(t *testing.T, text, name string) {
	t.Helper()
	direct, deployed := Load(Sources{File: readYAML(t, text), Daemon: true}), Load(Sources{File: deploy(t, text), Daemon: true})
	require.Empty(t, direct.Problems(), name)
	require.Empty(t, deployed.Problems(), name)
	require.NotEmpty(t, direct.Names(), name)
	require.Equal(t, direct.Names(), deployed.Names())
	require.Equal(t, notices(direct), notices(deployed))
	for _, name := range direct.Names() {
		want, err := direct.Exporter(name)
		require.NoError(t, err)
		got, err := deployed.Exporter(name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestDeployedFileMeansTheSame(t *testing.T) {
	text := exportersYAML(everything)
	requireDeployable(t, text, "everything")
	// An upgrade deploys the config a second time.
	var out bytes.Buffer
	require.NoError(t, deploy(t, text).WriteConfigTo(&out))
	again := Load(Sources{File: deploy(t, out.String()), Daemon: true})
	require.Equal(t, Load(Sources{File: readYAML(t, text), Daemon: true}).Names(), again.Names())
	require.Empty(t, again.Problems())
}

// --set-daemon-config writes all values as text.
func TestSetDaemonConfig(t *testing.T) {
	const prefix = FileKey + ".Prod."
	v := deploy(t, "operator: {}\n",
		prefix+"endpoint=collector:4317", prefix+"insecure=true", prefix+"timeout=3s",
		prefix+"sending_queue.num_consumers=4", prefix+"retry_on_failure.multiplier=2.5",
		prefix+"headers=x-a=1,x-b=2", prefix+"pod_labels=app,tier", prefix+"otlp_version=1.9",
		prefix+"resource.deployment.environment.name=prod")
	set := Load(Sources{File: v, Daemon: true})
	require.Empty(t, set.Problems())
	e, err := set.Exporter("prod")
	require.NoError(t, err)
	require.True(t, e.Insecure)
	require.Equal(t, 3*time.Second, e.Timeout)
	require.Equal(t, 4, e.Queue.NumConsumers)
	require.InDelta(t, 2.5, e.Retry.Multiplier, 0)
	require.Equal(t, []Header{{"x-a", "1"}, {"x-b", "2"}}, e.Headers)
	require.Equal(t, []string{"app", "tier"}, e.PodLabels)
	require.Equal(t, "1.9", e.OTLPVersion)
	require.Equal(t, []KeyValue{{"deployment.environment.name", "prod"}}, e.Resource)
}

// viper splits names at their dots. Keys that are also parts of names are still found.
func TestNamesWithDots(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"one":                 {"a.b.c: {exporter: otlp-grpc, endpoint: 'h:1'}", []string{"a.b.c"}},
		"without exporter":    {"a.b: {endpoint: 'h:1'}", []string{"a.b"}},
		"beside its start":    {"{a: {exporter: otlp-grpc, endpoint: 'h:1'}, a.b: {exporter: otlp-grpc, endpoint: 'h:1'}}", []string{"a", "a.b"}},
		"two with a start":    {"{a.b: {endpoint: 'h:1'}, a.c: {endpoint: 'h:1'}}", []string{"a.b", "a.c"}},
		"a setting's name":    {"a.exporter: {exporter: otlp-grpc, endpoint: 'h:1'}", []string{"a.exporter"}},
		"a group's name":      {"a.tls: {exporter: otlp-grpc, endpoint: 'h:1'}", []string{"a.tls"}},
		"a header's name":     {"a: {endpoint: 'h:1', headers: {exporter: x, endpoint: y}}", []string{"a"}},
		"a resource's key":    {"a: {endpoint: 'h:1', resource: {exporter.x: y}}", []string{"a"}},
		"named like settings": {"endpoint: {exporter: otlp-grpc, endpoint: 'h:1'}", []string{"endpoint"}},
	} {
		t.Run(name, func(t *testing.T) {
			for way, v := range map[string]*viper.Viper{"direct": readYAML(t, exportersYAML(test.text)), "deployed": deploy(t, exportersYAML(test.text))} {
				set := Load(Sources{File: v, Daemon: true})
				require.Empty(t, set.Problems(), way)
				require.Equal(t, test.want, set.Names(), way)
			}
		})
	}
}

func TestMisplacedExporters(t *testing.T) {
	for text, want := range map[string]string{
		"operator: {otel-profiles: {exporter: {prod: {endpoint: 'c:4317'}}}}": `operator.otel-profiles.exporter (c.yaml): unknown key: exporters belong under operator.otel-profiles.exporters`,
		"otel-profiles: {exporters: {prod: {endpoint: 'c:4317'}}}":            `otel-profiles.exporters (c.yaml): unknown key: exporters belong under operator.otel-profiles.exporters`,
	} {
		set := Load(Sources{File: readYAML(t, text), FileName: "c.yaml"})
		require.Equal(t, []string{want}, texts(set.Problems()))
	}
	// Inspektor Gadget itself stores these keys in this place.
	set := Load(Sources{File: readYAML(t, "operator: {otel-profiles: {otel-profiles-exporter: prod, otel-profiles-name: x}}")})
	require.Empty(t, set.Problems())
}

func TestExporterWithoutSettings(t *testing.T) {
	for _, text := range []string{"otlp:", "otlp: {}", "OTLP: {tls: }"} {
		set := Load(Sources{File: readYAML(t, exportersYAML(text)), Daemon: true})
		require.Empty(t, set.Problems(), text)
		e, err := set.Exporter("otlp")
		require.NoError(t, err, text)
		require.Equal(t, "localhost:4317", e.Endpoint)
		require.True(t, e.Insecure)
	}
}

// TestSmallestSizes requires that a queue and a folder with room for exactly one request are valid.
func TestSmallestSizes(t *testing.T) {
	for _, size := range []string{"1MiB", "1025KiB"} {
		set := Load(Sources{File: readYAML(t, exportersYAML("prod: {endpoint: 'c:4317', batch: {max_request_size: 1MiB}, sending_queue: {queue_size: "+size+", storage: /var/lib/q, storage_size: "+size+"}}"))})
		_, err := set.Exporter("prod")
		require.NoError(t, err)
	}
}

func TestBuiltInExporter(t *testing.T) {
	e, err := Load(Sources{}).Exporter("otlp")
	require.NoError(t, err)
	require.Equal(t, "localhost:4317", e.Endpoint)
	require.True(t, e.Insecure, "http:// is plain text")

	_, err = Load(Sources{Daemon: true}).Exporter("otlp")
	require.ErrorContains(t, err, "unknown exporter")

	set := Load(Sources{Daemon: true, Environ: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317"}})
	require.Equal(t, []string{"otlp"}, set.Names())
	set = Load(Sources{Daemon: true, Environ: []string{"OTEL_EXPORTER_OTLP_TIMEOUT=1"}})
	require.Empty(t, set.Names(), "a time-out names no receiver")
}

// TestLoadChangesNothing requires that Load modifies neither Inspektor Gadget's config nor the caller's slices.
func TestLoadChangesNothing(t *testing.T) {
	v := readYAML(t, exportersYAML(everything))
	before := v.AllSettings()
	environ := []string{EnvPrefix + "OLD_AUTH_BEARER_TOKEN=s3cr3t", "OTEL_EXPORTER_OTLP_HEADERS=a=s3cr3t"}
	first := Load(Sources{File: v, Environ: environ})
	require.Equal(t, before, v.AllSettings())
	second := Load(Sources{File: v, Environ: environ})
	for _, name := range first.Names() {
		a, errA := first.Exporter(name)
		b, errB := second.Exporter(name)
		require.Equal(t, errA, errB)
		require.Equal(t, a, b)
	}
}

// A daemon must open no file when it starts. Mistakes in files are found when a gadget runs.
func TestLoadOpensNoFile(t *testing.T) {
	set := Load(Sources{File: readYAML(t, exportersYAML(
		"prod: {endpoint: 'c:4317', auth: {bearer_token_file: /nowhere}, tls: {ca_file: /nowhere, cert_file: /nowhere, key_file: /nowhere}, sending_queue: {storage: /nowhere/q}}"))})
	require.Empty(t, set.Problems())
	_, err := set.Exporter("prod")
	require.NoError(t, err)
}

// The built-in exporter has no folder, and does not use the folder of another exporter.
func TestStorageInTheFolderHere(t *testing.T) {
	set := Load(Sources{File: readYAML(t, exportersYAML("prod: {endpoint: 'c:4317', sending_queue: {storage: ./}}")), FileName: "c.yaml"})
	_, err := set.Exporter("prod")
	require.NotContains(t, fmt.Sprint(err), "the folder of exporter")
}
