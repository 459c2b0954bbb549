package vm

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// TestARM64 checks each gadget's data from the virtual machine that arm64.sh boots. The data is about a C and a Go program.
func TestARM64(t *testing.T) {
	out := os.Getenv("ARM64_OUT")
	if out == "" {
		t.Skip("needs a virtual machine's results: run test/vm/arm64.sh")
	}
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
			f, err := os.Open(filepath.Join(out, gadget, "profiles.jsonl"))
			require.NoError(t, err)
			defer f.Close()
			requests, err := receiver.ReadJSONLines(f)
			require.NoError(t, err)
			names, sum := map[string]int64{}, int64(0)
			for _, req := range requests {
				for _, s := range receiver.Resolve(req) {
					require.Equal(t, "arm64", s.Resource["host.arch"])
					sum += s.Total()
					of := map[string]bool{}
					for _, f := range s.Stack {
						of[f.Name] = true
					}
					for name := range maps.Keys(of) {
						names[name] += s.Total()
					}
				}
			}
			for _, name := range functions {
				require.Positive(t, names[name], "%s of %v\n%s", name, slices.Sorted(maps.Keys(names)), said)
			}
			t.Logf("%d in all, %.0f %% of it in %s", sum, 100*float64(names[functions[0]])/float64(sum), functions[0])
		})
	}
}
