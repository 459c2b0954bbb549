package config

import (
	"maps"
	"slices"
)

// A presetRule is a setting that a preset sets to something else than its default. It can be set
// otherwise in the exporter.
type presetRule struct {
	Preset, Key, Value string
	Why                string // what the receiver does that asks for it
	Source             string // the repository and file of the receiver in which that can be read
}

// The files of receivers that the rules come from.
const (
	pyroscopeConvert = "grafana/pyroscope pkg/ingester/otlp/convert.go"
	pyroscopeHandler = "grafana/pyroscope pkg/ingester/otlp/ingest_handler.go"
	pyroscopeLimits  = "grafana/pyroscope pkg/validation/limits.go"
	pyroscopeLabels  = "grafana/pyroscope pkg/validation/validate.go"
	parcaNormalizer  = "parca-dev/parca pkg/normalizer/otel.go"
	parcaEncode      = "parca-dev/parca pkg/profile/encode.go"
	devfilerService  = "elastic/devfiler src/collector/otlp/service.rs"
	historyReader    = "ig-otel-profiles/ig-otel-profiles cmd/profile/history.go"
	elasticExporter  = "open-telemetry/opentelemetry-collector-contrib exporter/elasticsearchexporter/internal/serializer/otelserializer/serializeprofiles/transform.go"
)

var presetRules = []presetRule{
	{"pyroscope", "sample_shape", "sum", "Values with a timestamp each are refused.", pyroscopeConvert},
	{"pyroscope", "attribute_values", "string", "Only text becomes a label in every release.", pyroscopeHandler},
	{"pyroscope", "attribute_keys", "label", "2.x keeps the dots of a name, and then neither its query language nor its pages can select it. 1.x makes the same names itself.", pyroscopeLabels},
	{"pyroscope", "unnamed_functions", "file", "Without its symbolizer, which is off by default, a stack of frames without a function vanishes from the flame graph.", pyroscopeConvert},
	{"pyroscope", "profile_name", "label", "It takes the type of the period for the profile's name: memory would be called space, and its pages know memory only. It does not keep periods.", pyroscopeConvert},
	// 20 and 6 make the 30 labels that Pyroscope takes with the four that it adds itself, one of which is
	// service.name once more.
	{"pyroscope", "max_resource_attributes", "20", "A series with more than 30 labels is refused, and every attribute of a resource and of a sample is one.", pyroscopeLimits},
	{"pyroscope", "max_sample_attributes", "6", "The same.", pyroscopeLimits},
	// With thread.name, a node with 60 containers of 20 thread names has 1,200 series, and 60 without.
	{"pyroscope", "attributes", "thread.name=drop", "A tenant has 5,000 series unless told otherwise, and each thread name of each container would be one: four busy nodes. `thread.name=sample` brings it back.", pyroscopeLimits},

	{"parca", "function_table", "double", "It takes the entry before the one that a line names, up to v0.28.0 at least: every frame would have another function's name.", parcaEncode},
	{"parca", "attribute_values", "string", "Only text becomes a label.", parcaNormalizer},
	{"parca", "attribute_keys", "label", "It makes these names itself. Of two attributes with one label name the last one would win.", parcaNormalizer},
	{"parca", "scope_name", "profile", "The name of the scope is shown as the profile's name.", parcaNormalizer},

	{"devfiler", "sample_shape", "timestamps", "It counts timestamps, not values.", devfilerService},
	{"devfiler", "frame_type_default", "native", "A frame without a type is refused.", devfilerService},
	{"devfiler", "mappings", "htlhash", "A mapping with attributes but without an htlhash is refused.", devfilerService},

	{"elastic", "sample_shape", "timestamps", "It writes an event per timestamp, and none for a sample without.", elasticExporter},
	{"elastic", "frame_type_default", "native", "A profile with a frame without a type is refused.", elasticExporter},
	{"elastic", "attributes", "service.name=both", "An event has the service of its sample; that of the resource is not shown.", elasticExporter},
	{"elastic", "host_id", "true", "The table of hosts goes by host.id: hosts without one become one.", elasticExporter},

	{"history", "exporter", "file", "It is a folder of this machine.", historyReader},
	{"history", "format", FormatHistory, "`profile history` reads it.", historyReader},
	{"history", "path", HistoryFolder, "`profile history` looks there.", historyReader},
	{"history", "sample_shape", "sum", "It adds up; times within an interval would take more than the rest.", historyReader},
}

// presets holds, by receiver, the settings that differ from the defaults. The Collector's are the
// defaults: what the protocol asks for and nothing else.
var presets = func() map[string]map[string]string {
	all := map[string]map[string]string{"collector": {}}
	for _, r := range presetRules {
		if all[r.Preset] == nil {
			all[r.Preset] = map[string]string{}
		}
		all[r.Preset][r.Key] = r.Value
	}
	return all
}()

// presetsWith returns the presets that set a key, in the order of the table.
func presetsWith(key string) (names []string) {
	for _, r := range presetRules {
		if r.Key == key && !slices.Contains(names, r.Preset) {
			names = append(names, r.Preset)
		}
	}
	return names
}

// Presets returns the names of the presets, sorted.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }
