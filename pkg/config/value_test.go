package config

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"
)

func TestSizes(t *testing.T) {
	for written, want := range map[any]int64{
		"0": 0, "1024": 1024, 1024: 1024, int64(7): 7, 6.4e7: 64e6, "1KB": 1000, "1KiB": 1024, "1 kib": 1024, "64MiB": 64 << 20,
		"64Mi": 64 << 20, "64MB": 64e6, "64M": 64e6, "3.5MiB": 7 << 19, "1GiB": 1 << 30, "1TB": 1e12, "12B": 12,
	} {
		got, err := parseSize(written, 0, maxSize)
		require.NoError(t, err, written)
		require.Equal(t, want, got, written)
	}
	for _, written := range []any{"", "MiB", "-1", "1XB", "1e3", "0x10", "1.2.3MiB", "99999999999999999999TB", math.NaN(), math.Inf(1), -1, true, nil, []any{1}} {
		_, err := parseSize(written, 0, maxSize)
		require.Error(t, err, written)
	}
	for _, n := range []int64{0, 1, 1023, 1024, 3670016, 64 << 20, maxSize} {
		got, err := parseSize(formatSize(n), 0, maxSize)
		require.NoError(t, err)
		require.Equal(t, n, got)
	}
}

func TestDurations(t *testing.T) {
	for written, want := range map[any]time.Duration{"10s": 10 * time.Second, " 1m30s ": 90 * time.Second, "0": 0, 0: 0, "500ms": 500 * time.Millisecond} {
		got, err := parseDuration(written, 0, noLimit)
		require.NoError(t, err, written)
		require.Equal(t, want, got)
	}
	for _, written := range []any{"10", 10, 1.5, "", "1d", "-1s", true, nil, "99999999h"} {
		_, err := parseDuration(written, 0, noLimit)
		require.Error(t, err, written)
	}
	for _, d := range []time.Duration{0, time.Millisecond, time.Second, time.Minute, time.Hour, 90 * time.Minute, time.Hour + time.Second} {
		got, err := time.ParseDuration(short(d))
		require.NoError(t, err)
		require.Equal(t, d, got, short(d))
	}
}

// TestOnOff also passes booleans, because YAML 1.1 readers convert on and off.
func TestOnOff(t *testing.T) {
	for written, want := range map[any]bool{"on": true, "Off": false, true: true, false: false, "false": false, "": true} {
		got, err := byKey["collect_stacks"].parse(written)
		require.NoError(t, err, written)
		require.Equal(t, want, got, written)
	}
	_, err := byKey["collect_stacks"].parse("never")
	require.EqualError(t, err, `"never"`)
}

func TestLists(t *testing.T) {
	for _, written := range []any{"app, tier,", []any{"app", " tier "}, []string{"app", "tier", "app"}} {
		got, err := parseList(written)
		require.NoError(t, err)
		require.Equal(t, []string{"app", "tier"}, got)
	}
	kvs, err := parsePairs(`a=1\,2, b=x=y ,`)
	require.NoError(t, err)
	require.Equal(t, []KeyValue{{"a", "1,2"}, {"b", "x=y"}}, kvs)
	_, err = parsePairs("a=1,a=2")
	require.ErrorContains(t, err, `the key "a" twice`)
	_, err = parsePairs(map[string]any{"a": time.Time{}})
	require.ErrorContains(t, err, "a date")
}

func TestNearest(t *testing.T) {
	for written, want := range map[string]string{
		"timout": "timeout", "copression": "compression", "header": "headers", "haeders": "headers", "end_point": "endpoint",
		"x": "", "": "", "authenticator_extension_name": "",
	} {
		if want == "" {
			require.Contains(t, oneOf("tls.", written, "an exporter", keysBelow("")), "an exporter accepts exporter, endpoint,", written)
			continue
		}
		require.Equal(t, "the closest match is tls."+want, oneOf("tls.", written, "an exporter", keysBelow("")))
	}
	require.Equal(t, 1, Distance("ab", "ba"))
	require.Equal(t, 3, Distance("", "abc"))
	require.Equal(t, 2, Distance("kitten", "sittin"))
}

// FuzzLoad checks that Load returns for any file and environment, and that its messages fit into a log.
func FuzzLoad(f *testing.F) {
	f.Add(exportersYAML(everything), "PROD_TIMEOUT", "3s", "c:4317")
	f.Add("operator: {otel-profiles: {exporters: {a: {b: {c: {exporter: x}}}, 1: [2]}}}", "A_B_C_TLS_CA_FILE", "\x00", "http://[::1")
	for _, group := range mistakes {
		for _, m := range group.cases {
			if m.file != "" {
				f.Add(exportersYAML(m.file), "X", "y", "dns:")
			}
		}
	}
	f.Fuzz(func(t *testing.T, file, variable, value, endpoint string) {
		v := viper.New()
		v.SetConfigType("yaml")
		if v.ReadConfig(strings.NewReader(file)) != nil {
			return
		}
		set := Load(Sources{File: v, Flags: Flags{"otel-profiles-endpoint": Secret(endpoint)}, Environ: []string{
			EnvPrefix + variable + "=" + value, "OTEL_EXPORTER_OTLP_" + variable + "=" + value,
			"OTEL_EXPORTER_OTLP_HEADERS=" + value, "OTEL_RESOURCE_ATTRIBUTES=" + value,
		}})
		for _, name := range set.Names() {
			e, err := set.Exporter(name)
			if err == nil {
				require.NotEmpty(t, e.Transport)
			}
			require.LessOrEqual(t, len(e.String()), 1<<20)
		}
		for _, text := range append(texts(set.Problems()), notices(set)...) {
			require.False(t, strings.ContainsAny(text, "\n\r\x00\x1b"), "%q", text)
		}
	})
}

func TestCredentialNames(t *testing.T) {
	for _, name := range []string{"authorization", "x-api-key", "api_key", "x-apikey", "x-auth-token", "dd-api-key", "cookie", "lightstep-access-token", "x-honeycomb-team", "uptrace-dsn", "x-p-dsn", "x-jwt-assertion", "x-license"} {
		require.True(t, CredentialHeader(name), name)
	}
	for _, name := range []string{"x-scope-orgid", "x-monkey", "x-keyspace", "tenant", "x-team", "x-honeycomb-dataset"} {
		require.False(t, CredentialHeader(name), name)
	}
}
