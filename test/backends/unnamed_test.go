//go:build e2e

package backends

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestNothingVanishes sends the stacks of a program without symbols. Pyroscope's flame graph shows only frames that have a
// function. With the preset, all frames have a function. Without it, they are missing from the graph.
func TestNothingVanishes(t *testing.T) {
	needs(t, "pyroscope")
	igtest.NeedRoot(t)
	named, bare := startPyroscope(t), startPyroscope(t)
	config := "operator:\n  otel-profiles:\n    exporters:\n" +
		exporter(t, "pyroscope", "pyroscope", "named", named.addr()) +
		exporter(t, "pyroscope", "pyroscope", "bare", bare.addr()) + "        unnamed_functions: none\n"
	program := filepath.Join(t.TempDir(), "stripped")
	igtest.Output(t, "clang", "-O0", "-fno-omit-frame-pointer", "-static", "-s", "-o", program, "../e2e/testdata/burn.c")
	used, all := burn(t, program, config, "named,bare", burnTime)

	var stored int64
	require.Eventually(t, func() bool {
		stored = named.stored(t, "{}", all)
		return named.seconds(stored, frequency) > 0.9*used.Seconds()
	}, time.Minute, 2*time.Second)
	require.Equal(t, stored, named.flame(t, "{}", all), "the flame graph has all stored samples")
	inFile := int64(0)
	for _, s := range named.query(t, "{}", all) {
		if strings.Contains(strings.Join(s.functions, " "), "[stripped]") {
			inFile += s.value
		}
	}
	require.Greater(t, float64(inFile), 0.9*float64(stored), "frames have the name of their file")

	require.Equal(t, stored, bare.stored(t, "{}", all))
	missing := 100 - 100*float64(bare.flame(t, "{}", all))/float64(stored)
	t.Logf("without names %.0f %% of the CPU time is missing from the flame graph", missing)
	require.Greater(t, missing, 50.0)
}

// TestCompression checks the receivers' answers to zstd, and the remedy in the log.
func TestCompression(t *testing.T) {
	igtest.NeedRoot(t)
	servers := []server{startParca(t)}
	if asked("pyroscope") {
		servers = append(servers, startPyroscope(t))
	}
	for _, s := range servers {
		transports := []string{"otlp-grpc", "otlp-http"}
		if s.name() == "parca" {
			transports = transports[:1] // it supports OTLP over gRPC only
		}
		for _, transport := range transports {
			t.Run(s.name()+" "+transport, func(t *testing.T) {
				config := "operator:\n  otel-profiles:\n    exporters:\n" +
					strings.Replace(exporter(t, s.name(), s.name(), "zstd", s.addr()), "exporter: otlp-grpc", "exporter: "+transport, 1) + "        compression: zstd\n"
				said := sample(t, config)
				require.Contains(t, said, "refuses zstd", "a warning before anything is sent")
				require.Contains(t, said, "set compression: gzip", "the remedy for the server's answer")
				require.NotContains(t, said, "service.profilesSupport", "not the version of the protocol")
			})
		}
	}
}
