package config

import (
	"maps"
	"slices"
)

// A presetRule is a preset's default for a setting. The user's value overrides it.
type presetRule struct {
	Preset, Key, Value string
	Why                string // the receiver's behaviour that requires it
	Source             string // the repository and file that show it
}

// The rules are based on these source files of receivers.
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
	{"pyroscope", "sample_shape", "sum", "It refuses samples with one timestamp per value.", pyroscopeConvert},
	{"pyroscope", "attribute_values", "string", "Only text becomes a label in every release.", pyroscopeHandler},
	{"pyroscope", "attribute_keys", "label", "2.x keeps dots in label names, and its query language and pages cannot select such labels. 1.x replaces them itself.", pyroscopeLabels},
	{"pyroscope", "unnamed_functions", "file", "Its symbolizer is off by default. Without it, the flame graph omits stacks without function names.", pyroscopeConvert},
	{"pyroscope", "profile_name", "label", "It uses the period type as the profile's name. So `memory` would be `space`, which its pages do not know. It does not store periods.", pyroscopeConvert},
	// These 20 and 6 attributes and the four labels that Pyroscope adds reach its limit of 30 labels. One of the four repeats
	// service.name.
	{"pyroscope", "max_resource_attributes", "20", "It refuses a series with more than 30 labels. Every attribute of a resource or a sample is a label.", pyroscopeLimits},
	{"pyroscope", "max_sample_attributes", "6", "The limit of 30 labels also covers attributes of samples.", pyroscopeLimits},
	// A node with 60 containers of 20 thread names has 1,200 series with thread.name, and 60 without.
	{"pyroscope", "attributes", "thread.name=drop", "A tenant has 5,000 series by default. With each thread name of each container as a series, four busy nodes would reach that limit. `thread.name=sample` restores the attribute.", pyroscopeLimits},

	{"parca", "function_table", "double", "Up to v0.28.0, it reads the entry before the right one, so every frame would have another function's name.", parcaEncode},
	{"parca", "attribute_values", "string", "Only text becomes a label.", parcaNormalizer},
	{"parca", "attribute_keys", "label", "It makes these names itself. If two attributes had the same label name, the last one would win.", parcaNormalizer},
	{"parca", "scope_name", "profile", "It shows the scope's name as the profile's name.", parcaNormalizer},

	{"devfiler", "sample_shape", "timestamps", "It counts timestamps, not values.", devfilerService},
	{"devfiler", "frame_type_default", "native", "It refuses frames without a type.", devfilerService},
	{"devfiler", "mappings", "htlhash", "It refuses a mapping that has attributes but no htlhash.", devfilerService},

	{"elastic", "sample_shape", "timestamps", "It writes one event per timestamp, and none for a sample without timestamps.", elasticExporter},
	{"elastic", "frame_type_default", "native", "It refuses a profile with an untyped frame.", elasticExporter},
	{"elastic", "attributes", "service.name=both", "It takes an event's service from the sample, not from the resource.", elasticExporter},
	{"elastic", "host_id", "true", "It identifies hosts by `host.id`. Hosts without one count as the same host.", elasticExporter},

	{"history", "exporter", "file", "A history is a folder on this machine.", historyReader},
	{"history", "format", FormatHistory, "`profile history` reads it.", historyReader},
	{"history", "path", HistoryFolder, "`profile history` reads this folder by default.", historyReader},
	{"history", "sample_shape", "sum", "Timestamps within an interval would take most of the space.", historyReader},
}

// presets maps each receiver to its settings that differ from the defaults. The Collector uses the defaults.
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

// presetsWith returns the presets that set a key, in table order.
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
