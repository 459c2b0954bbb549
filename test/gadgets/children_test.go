//go:build e2e

package gadgets

import (
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// TestChildren: with --include-children, a run of chosen processes includes processes that they start during the run, and no others.
func TestChildren(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	const child = "late-child" // TestUnitOfShortProcesses requires that its processes have another name
	for _, g := range []string{"profile_cpu", "profile_offcpu", "profile_pagefault", "profile_cpu of two"} {
		t.Run(g, func(t *testing.T) {
			t.Parallel()
			g, several, _ := strings.Cut(g, " of ")
			parent := start(t, compile(t, "brief"), "", child)
			pids := []string{"--pid=" + strconv.Itoa(parent.PID)}
			if several != "" {
				idle := exec.CommandContext(t.Context(), "sleep", "1000")
				require.NoError(t, idle.Start())
				t.Cleanup(func() { _ = idle.Wait() })
				pids = []string{"--pid=" + strconv.Itoa(idle.Process.Pid), "--also-pids=1000000000," + strconv.Itoa(parent.PID)}
			}
			r, err := export(t, options{image: igtest.Import(t, g), seconds: 3,
				flags: slices.Concat([]string{"--include-children"}, pids, framePointers),
				until: func(samples []receiver.Sample) bool {
					return slices.ContainsFunc(samples, func(s receiver.Sample) bool { return s.Attributes["thread.name"] == child })
				}})
			require.NoError(t, err)
			r.requireSound(t)
			require.NotEmpty(t, r.of(child))
			for _, s := range r.samples {
				require.Contains(t, []string{"brief", child}, s.Attributes["thread.name"])
			}
		})
	}
}
