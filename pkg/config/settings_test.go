package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

func TestEverySettingIsWhole(t *testing.T) {
	keys, suffixes := map[string]bool{}, map[string]bool{}
	for _, s := range table {
		t.Run(s.Key, func(t *testing.T) {
			require.False(t, keys[s.Key], "twice in the table")
			require.False(t, suffixes[envName(s.Key)], "two keys with one variable")
			keys[s.Key], suffixes[envName(s.Key)] = true, true

			require.True(t, strings.HasSuffix(s.Doc, "."), "the sentence is not finished")
			require.NotEmpty(t, s.takes)
			_, err := s.parse(s.Default)
			require.NoError(t, err, "the default is wrong")

			var example any
			require.NoError(t, yaml.Unmarshal([]byte(s.Example), &example))
			if s.Type == "string" {
				example = s.Example
			}
			value, err := s.parse(example)
			require.NoError(t, err, "the example is wrong")
			var e Exporter
			s.set(&e, value)
			require.Equal(t, value, s.get(&e))
		})
	}
}

func TestEveryFieldHasASetting(t *testing.T) {
	// After each row of the table is set, no field of an Exporter must have its zero value.
	var e Exporter
	for _, s := range table {
		value, err := s.parse(sample(s, 1))
		require.NoError(t, err, s.Key)
		if b, ok := value.(bool); ok && !b {
			value = true
		}
		s.set(&e, value)
	}
	var empty []string
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			name := prefix + v.Type().Field(i).Name
			switch {
			case v.Field(i).Kind() == reflect.Struct:
				walk(name+".", v.Field(i))
			case v.Field(i).IsZero():
				empty = append(empty, name)
			}
		}
	}
	walk("", reflect.ValueOf(e))
	require.Equal(t, []string{"Name", "Source", "Written.Scheme", "Written.Where"}, empty)
}

// sample returns the first or second of two valid values of a setting, as text.
func sample(s setting, n int) string {
	pick := func(values ...string) string { return values[n] }
	switch s.Key {
	case "endpoint":
		if slices.Contains(s.Transports, TransportGRPC) {
			return pick("first:4317", "second:4317")
		}
	case "profiles_endpoint":
		return pick("http://first:4318/p", "http://second:4318/p")
	case "attributes":
		return pick("process.pid=sample", "container.id=drop")
	case "batch.interval":
		return pick("11s", "12s")
	case "sending_queue.queue_size":
		return pick("65MiB", "66MiB")
	}
	switch s.Type {
	case "boolean":
		return pick("true", "false")
	case "choice":
		return pick(s.Values[0], s.Values[1])
	case "duration":
		return pick("31s", "32s")
	case "size":
		return pick("1MiB", "2MiB")
	case "integer":
		return pick("3", "4")
	case "number":
		if s.Key == "retry_on_failure.multiplier" {
			return pick("2", "3")
		}
		return pick("0.25", "0.75")
	case "1/N":
		return pick("1/3", "1/4")
	default:
		if strings.HasPrefix(s.Type, "key=value") {
			return pick("a=1", "b=2")
		}
		return pick("first", "second")
	}
}

// A setting that exists only for a preset must work, name the preset in its notice, and be absent from the reference.
func TestSettingsOfPresets(t *testing.T) {
	set := Load(Sources{File: readYAML(t, exportersYAML("prod: {endpoint: 'collector:4317', attribute_values: string, mappings: htlhash}\nparca: {endpoint: 'parca:7070', preset: parca}"))})
	require.Empty(t, set.Problems())
	prod, err := set.Exporter("prod")
	require.NoError(t, err)
	require.True(t, prod.StringAttributes)
	require.True(t, prod.HashedMappings)
	require.Equal(t, []string{
		`exporter "prod": attribute_values: is deprecated: set preset to pyroscope or parca instead, which includes this setting`,
		`exporter "prod": mappings: is deprecated: set preset to devfiler instead, which includes this setting`,
	}, set.NoticesFor("prod"))
	require.Empty(t, set.NoticesFor("parca"))
	for i := range table {
		if table[i].quirk {
			require.NotEmpty(t, presetsWith(table[i].Key))
			require.NotContains(t, settingsTables(), "| `"+table[i].Key+"` |")
		}
	}
}
