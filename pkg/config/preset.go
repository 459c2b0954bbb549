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
	{"pyroscope", "sample_shape", "sum", "Pyroscope refuses samples with one timestamp per value.", pyroscopeConvert},
	{"pyroscope", "attribute_values", "string", "Some releases of Pyroscope create labels only from string attributes.", pyroscopeHandler},
	{"pyroscope", "attribute_keys", "label", "Pyroscope 2.x keeps dots in label names, but you cannot select such labels in queries or in Pyroscope's web interface. Pyroscope 1.x replaces the dots itself.", pyroscopeLabels},
	{"pyroscope", "unnamed_functions", "file", "Pyroscope's symbolizer is off by default. Without the symbolizer, the flame graph omits stacks without function names.", pyroscopeConvert},
	{"pyroscope", "profile_name", "label", "Pyroscope uses the period type as the profile's name. Without `label`, the profile `memory` is therefore named `space`, which Pyroscope's web interface does not recognize. With `label`, the operator sends the name in the label `__name__`, and sends no period. CPU profiles, and profiles whose name is the period type, are sent unchanged. Pyroscope does not store periods.", pyroscopeConvert},
	// These 20 and 6 attributes and the four labels that Pyroscope adds reach its limit of 30 labels. One of the four repeats
	// service.name.
	{"pyroscope", "max_resource_attributes", "20", "Pyroscope refuses a series with more than 30 labels. Every attribute of a resource or a sample becomes a label.", pyroscopeLimits},
	{"pyroscope", "max_sample_attributes", "6", "The attributes of samples also count towards Pyroscope's limit of 30 labels.", pyroscopeLimits},
	// A node with 60 containers of 20 thread names has 1,200 series with thread.name, and 60 without.
	{"pyroscope", "attributes", "thread.name=drop", "By default, a Pyroscope tenant can have 5,000 series. With a series for each thread name of each container, five busy nodes could exceed this limit. To keep this attribute, set `attributes: [\"thread.name=sample\"]`.", pyroscopeLimits},

	{"parca", "function_table", "double", "For each frame, Parca up to v0.28.0 shows the name of the preceding entry in the function table.", parcaEncode},
	{"parca", "attribute_values", "string", "Parca creates labels only from string attributes.", parcaNormalizer},
	{"parca", "attribute_keys", "label", "Parca converts attribute names to label names, and keeps only one of two attributes with the same label name. With `label`, the operator makes the label names unique.", parcaNormalizer},
	{"parca", "scope_name", "profile", "Parca shows the scope's name as the profile's name.", parcaNormalizer},

	{"devfiler", "sample_shape", "timestamps", "devfiler counts timestamps, not values.", devfilerService},
	{"devfiler", "frame_type_default", "native", "devfiler refuses frames without a type.", devfilerService},
	{"devfiler", "mappings", "htlhash", "devfiler refuses a mapping that has attributes but no htlhash.", devfilerService},

	{"elastic", "sample_shape", "timestamps", "Elastic writes one event per timestamp, and none for a sample without timestamps.", elasticExporter},
	{"elastic", "frame_type_default", "native", "Elastic refuses a profile that contains a frame without a type.", elasticExporter},
	{"elastic", "attributes", "service.name=both", "Elastic reads the service of an event from the attributes of the sample, not from the attributes of the resource.", elasticExporter},
	{"elastic", "host_id", "true", "Elastic identifies hosts by `host.id`. Elastic treats all hosts without this attribute as one host.", elasticExporter},

	{"history", "exporter", "file", "A history is a folder of files on this machine.", historyReader},
	{"history", "format", FormatHistory, "The command `profile history` reads this format.", historyReader},
	{"history", "path", HistoryFolder, "The command `profile history` reads this folder by default.", historyReader},
	{"history", "sample_shape", "sum", "With the timestamps of individual events, a history needs much more disk space.", historyReader},
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
