package vm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestARM64 checks each gadget's data from the virtual machine that arm64.sh boots. The data is about a C and a Go program.
func TestARM64(t *testing.T) {
	out := results(t, "ARM64_OUT")
	for gadget, functions := range map[string][]string{
		"profile_cpu":       {"burn_inner", "burn_outer", "main.heavy", "main.work"},
		"profile_offcpu":    {"main"}, // burn-c sleeps
		"profile_pagefault": nil,
	} {
		t.Run(gadget, func(t *testing.T) {
			said, err := os.ReadFile(filepath.Join(out, gadget, "ig.log"))
			require.NoError(t, err)
			rc, err := os.ReadFile(filepath.Join(out, gadget, "rc"))
			require.NoError(t, err)
			if gadget == "profile_pagefault" && strings.TrimSpace(string(rc)) != "0" {
				require.Regexp(t, `attaching eBPF program "ig_fault_(user|kern)": .*no such file or directory`, string(said))
				t.Skip("this kernel has no tracepoint for page faults on arm64")
			}
			require.Equal(t, "0", strings.TrimSpace(string(rc)), "%s", said)
			samples := readSamples(t, filepath.Join(out, gadget))
			for _, s := range samples {
				require.Equal(t, "arm64", s.Resource["host.arch"])
			}
			for _, name := range functions {
				sum := igtest.Total(igtest.Through(samples, name))
				t.Logf("%d in all, %d of it in %s", igtest.Total(samples), sum, name)
				require.Positive(t, sum, "%s\n%s", name, said)
			}
		})
	}
}
