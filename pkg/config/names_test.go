package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	defaults := Names{
		Memory: 64 << 20, Wait: 20 * time.Millisecond,
		Debuginfod: Debuginfod{Timeout: time.Minute, Cache: "/var/cache/ig-otel-profiles/debuginfod", CacheSize: 1 << 30},
	}
	n, problems := LoadNames(Sources{})
	require.Empty(t, problems)
	require.Equal(t, defaults, n)

	v := readYAML(t, `
operator:
  otel-profiles:
    names:
      memory: 128MiB
      wait: 0s
      source_lines: true
      debuginfod: {urls: ["https://a.example", "https://b.example"], timeout: 5s}
`)
	n, problems = LoadNames(Sources{File: v, Environ: []string{NamesEnvPrefix + "MEMORY=32MiB", NamesEnvPrefix + "DEBUGINFOD_CACHE=/x", NamesEnvPrefix + "WAIT= ", "OTHER=1"}})
	require.Empty(t, problems)
	want := defaults
	want.Memory, want.Wait, want.Lines = 32<<20, 0, true
	want.Debuginfod.URLs, want.Debuginfod.Timeout, want.Debuginfod.Cache = []string{"https://a.example", "https://b.example"}, 5*time.Second, "/x"
	require.Equal(t, want, n)
}

// TestNamesMistakes requires that a mistake names the key, its source and the valid values, and that the default stays.
func TestNamesMistakes(t *testing.T) {
	v := readYAML(t, "operator: {otel-profiles: {names: {memory: plenty, wait: 1h, colour: red}}}")
	n, problems := LoadNames(Sources{File: v, FileName: "c.yaml", Environ: []string{NamesEnvPrefix + "WAITS=1s"}})
	require.EqualValues(t, 64<<20, n.Memory)
	require.Equal(t, 20*time.Millisecond, n.Wait)
	var all []string
	for _, p := range problems {
		all = append(all, p.Error())
	}
	require.Equal(t, []string{
		`operator.otel-profiles.names.colour (c.yaml): unknown key: the valid keys are memory, wait, source_lines, debuginfod.urls, debuginfod.timeout, debuginfod.cache, debuginfod.cache_size`,
		`operator.otel-profiles.names.memory (c.yaml): got "plenty", expected a size of at least 1MiB, such as 64MiB`,
		`operator.otel-profiles.names.wait (c.yaml): got "1h", expected a duration of at most 1s, such as 20ms`,
		`INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_NAMES_WAITS: unknown key: the valid keys are memory, wait, source_lines, debuginfod.urls, debuginfod.timeout, debuginfod.cache, debuginfod.cache_size`,
	}, all)
}
