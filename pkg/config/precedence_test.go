package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"
)

// A carrier is a source that can contain a setting of the exporter `otlp`.
type carrier struct {
	name string
	put  func(src *Sources, s setting, value string)
}

// carriers returns the sources that can set a setting by its table row, weakest first.
func carriers(s setting) []carrier {
	all := []carrier{{"file", func(src *Sources, s setting, value string) {
		src.File.Set(FileKey+"."+BuiltIn+"."+s.Key, value)
	}}}
	if s.Flag != "" {
		all = append(all, carrier{"flag", func(src *Sources, s setting, value string) {
			src.Flags = Flags{s.Flag: Secret(value)}
		}})
	}
	if s.OTel != "" {
		for _, prefix := range []string{otelPrefix, otelProfilesPrefix} {
			all = append(all, carrier{prefix + s.OTel, func(src *Sources, s setting, value string) {
				src.Environ = append(src.Environ, prefix+s.OTel+"="+standard(s, value))
			}})
		}
	}
	return append(all, carrier{EnvPrefix, func(src *Sources, s setting, value string) {
		src.Environ = append(src.Environ, EnvPrefix+"OTLP_"+envName(s.Key)+"="+value)
	}})
}

// standard returns a value in the form of the standard variables.
func standard(s setting, value string) string {
	switch s.Key {
	case "timeout":
		d, _ := time.ParseDuration(value)
		return fmt.Sprint(d.Milliseconds())
	case "exporter", "encoding":
		return map[string]string{TransportGRPC: "grpc", TransportHTTP: "http/protobuf", "proto": "http/protobuf", "json": "http/json"}[value]
	}
	return value
}

// sourcesFor returns sources with an exporter that uses the setting.
func sourcesFor(s setting) Sources {
	src := Sources{File: viper.New()}
	base := FileKey + "." + BuiltIn + "."
	if s.Key != "exporter" && s.Transports != nil {
		src.File.Set(base+"exporter", s.Transports[0])
	}
	if s.Key != "endpoint" {
		endpoint := "base:4317"
		if s.Transports != nil && s.Transports[0] == TransportHTTP {
			endpoint = "http://base:4318"
		}
		src.File.Set(base+"endpoint", endpoint)
	}
	return src
}

func valueOf(t *testing.T, src Sources, s setting) any {
	t.Helper()
	set := Load(src)
	require.Contains(t, set.Names(), BuiltIn)
	return s.get(&set.drafts[BuiltIn].Exporter)
}

// TestPrecedence checks, for every setting, that each source overrides each weaker source and the default. It tries two values.
func TestPrecedence(t *testing.T) {
	for _, s := range table {
		t.Run(s.Key, func(t *testing.T) {
			if s.Key != "endpoint" {
				want, err := s.parse(s.Default)
				require.NoError(t, err)
				require.Equal(t, want, valueOf(t, sourcesFor(s), s), "the default")
			}
			sources := carriers(s)
			for n := range 2 {
				weaker, stronger := sample(s, n), sample(s, 1-n)
				want, err := s.parse(stronger)
				require.NoError(t, err)
				for i, strong := range sources {
					src := sourcesFor(s)
					strong.put(&src, s, stronger)
					require.Equal(t, want, valueOf(t, src, s), "%s alone", strong.name)
					for _, weak := range sources[:i] {
						src := sourcesFor(s)
						weak.put(&src, s, weaker)
						strong.put(&src, s, stronger)
						require.Equal(t, want, valueOf(t, src, s), "%s over %s", strong.name, weak.name)
					}
				}
			}
		})
	}
}

// A named exporter uses its own variables and flags, and never the standard variables.
func TestStandardVariablesAreForTheBuiltInExporter(t *testing.T) {
	src := Sources{File: viper.New(), Environ: []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://elsewhere:4317", "OTEL_EXPORTER_OTLP_PROFILES_TIMEOUT=1",
		EnvPrefix + "PROD_TIMEOUT=3s",
	}}
	src.File.Set(FileKey+".prod.endpoint", "collector:4317")
	e, err := Load(src).Exporter("prod")
	require.NoError(t, err)
	require.Equal(t, "collector:4317", e.Endpoint)
	require.Equal(t, 3*time.Second, e.Timeout)
}

func TestPresetIsBetweenDefaultAndFile(t *testing.T) {
	for name, preset := range presets {
		for key, value := range preset {
			t.Run(name+"/"+key, func(t *testing.T) {
				s := *byKey[key]
				src := sourcesFor(s)
				src.File.Set(FileKey+".otlp.preset", name)
				want, err := s.parse(value)
				require.NoError(t, err)
				require.Equal(t, want, valueOf(t, src, s))
				for n := range 2 {
					other := sample(s, n)
					want, err := s.parse(other)
					require.NoError(t, err)
					src.File.Set(FileKey+".otlp."+key, other)
					if pairs, ok := want.([]KeyValue); ok { // each pair is overridden separately
						rest, err := parsePairs(value)
						require.NoError(t, err)
						want = slices.Concat(pairs, rest)
					}
					require.Equal(t, want, valueOf(t, src, s))
				}
			})
		}
	}
}

func TestPairsOfAPresetAreOverriddenByKey(t *testing.T) {
	e, err := Load(Sources{File: readYAML(t, exportersYAML(
		"prod: {endpoint: 'c:4317', preset: elastic, attributes: [service.name=resource, process.pid=sample]}"))}).Exporter("prod")
	require.NoError(t, err)
	require.Equal(t, []KeyValue{{"service.name", "resource"}, {"process.pid", "sample"}}, e.Attributes)
}

// A notice must report that the environment overrides a flag.
func TestOverriddenFlagIsTold(t *testing.T) {
	for _, s := range table {
		if s.Flag == "" {
			continue
		}
		t.Run(s.Flag, func(t *testing.T) {
			sources := carriers(s)
			for _, env := range sources[2:] {
				src := sourcesFor(s)
				sources[1].put(&src, s, sample(s, 0))
				env.put(&src, s, sample(s, 1))
				set := Load(src)
				told := 0
				for _, notice := range set.NoticesFor("OTLP") {
					if strings.Contains(notice, "--"+s.Flag) {
						require.Contains(t, notice, "overrides")
						told++
					}
				}
				require.Equal(t, 1, told, "%s: %v", env.name, notices(set))
			}
			src := sourcesFor(s)
			sources[1].put(&src, s, sample(s, 0))
			for _, notice := range notices(Load(src)) {
				require.NotContains(t, notice, "overrides")
			}
		})
	}
}
