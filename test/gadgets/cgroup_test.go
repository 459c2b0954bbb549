//go:build e2e

package gadgets

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// unified returns where the unified cgroup hierarchy is mounted.
func unified(t *testing.T) string {
	t.Helper()
	dir := unifiedIfAny()
	if dir == "" {
		t.Skip("cgroup2 is not mounted here")
	}
	return dir
}

func unifiedIfAny() string {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	return ""
}

// TestUnitOfShortProcesses runs a unit's processes that exit before their first row arrives. They must belong to the unit's
// service, and not to the host's. They no longer have an executable, unlike processes found in /proc. profile_cpu has fewer
// rows than there are processes, so it counts the other samples.
func TestUnitOfShortProcesses(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	unit, err := os.MkdirTemp(unified(t), "demo-*.service") // an aborted test may have left its folder
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.Remove(unit)) })
	for _, g := range []string{"profile_cpu", "profile_offcpu", "profile_pagefault"} {
		t.Run(g, func(t *testing.T) {
			t.Parallel()
			brief := start(t, compile(t, "brief"), filepath.Join(unit, "cgroup.procs"))
			flags := append([]string{"--comm=brief-child"}, framePointers...)
			full := g == "profile_cpu"
			if full {
				flags = append(flags, "--rows=2")
			}
			r, err := export(t, options{image: igtest.Import(t, g), seconds: 3, flags: flags,
				until: func(samples []receiver.Sample) bool {
					return (!full || len(of(samples, "[rows full]")) > 0) && slices.ContainsFunc(of(samples, "brief-child"), func(s receiver.Sample) bool { return s.Resource["process.executable.name"] == "" })
				}})
			require.NoError(t, err)
			r.requireSound(t)
			require.NotContains(t, string(r.printed), "cgroup_id", "internal fields are not exported")
			longest := strings.TrimSpace(brief.Stop())
			gone, there := 0, 0
			for _, s := range r.of("brief-child") {
				require.Equal(t, strings.TrimSuffix(filepath.Base(unit), ".service"), s.Service)
				if s.Resource["process.executable.name"] == "" {
					gone++
				} else {
					there++
				}
			}
			t.Logf("samples of ended processes: %d, of running ones: %d; the longest took %s ms", gone, there, longest)
			require.NotZero(t, gone)
			require.Equal(t, full, igtest.Total(r.of("[rows full]")) > 0)
		})
	}
}
