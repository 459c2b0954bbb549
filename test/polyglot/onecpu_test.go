//go:build e2e

package polyglot

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

var stacks = flag.Int("stacks", 100000, "how many stacks TestOneCPU checks")

// sides are the prefixes of the two programs' functions.
var sides = []string{"left", "right"}

// TestPrebuild builds the programs for TestOneCPU on a machine without a compiler. E2E_PREBUILD names the folder.
func TestPrebuild(t *testing.T) {
	dir := os.Getenv("E2E_PREBUILD")
	if dir == "" {
		t.Skip("E2E_PREBUILD is not set")
	}
	for _, side := range sides {
		compilePinned(t, filepath.Join(dir, "pinned-"+side), side)
	}
}

func compilePinned(t *testing.T, program, side string) {
	t.Helper()
	igtest.Output(t, "gcc", "-O2", "-fno-omit-frame-pointer", "-DSIDE="+side, "-o", program, "testdata/pinned/pinned.c")
}

// TestOneCPU runs two programs on one CPU with the probes of four gadgets. Their programs call three chains: for kprobes, for
// perf events, which interrupt the others, and for raw tracepoints, which two gadgets share. No stack must mix functions of
// both programs, or have them in the wrong order. With test/gadgets/vm.sh, it runs on a kernel that preempts eBPF programs of
// uprobes.
func TestOneCPU(t *testing.T) {
	pids := map[int]string{}
	for _, side := range sides {
		program, ok := igtest.Prebuilt("pinned-" + side)
		if !ok {
			program = filepath.Join(t.TempDir(), "pinned")
			compilePinned(t, program, side)
		}
		cmd := exec.Command(program)
		cmd.SysProcAttr = &syscall.SysProcAttr{} // in the session of ig, which shares its CPU time with the program
		p := igtest.StartProgram(t, cmd)
		t.Cleanup(p.Kill)
		pids[p.PID] = side
	}
	d := startDaemon(t)
	for gadget, flags := range map[string]map[string]string{
		"profile_cpu": {"frequency": "997"}, "profile_offcpu": {}, "profile_pagefault": {}, "profile_alloc": {"sample-bytes": "20000", "max-cost": "1000"},
	} {
		flags["comm"] = "pinned"
		d.attach(gadget, flags)
	}
	result := func(name string) int {
		return int(d.metric("ig_otel_profiles_unwinder_events_total", fmt.Sprintf("result=%q", name)))
	}
	require.True(t, d.wait("the stacks", 15*time.Minute, func() bool { return result("unwound") >= *stacks }))
	t.Logf("%d unwound, %d found the chain in use", result("unwound"), result("busy"))
	kinds := map[string]int{}
	for pid, samples := range ofProcess(d.stop()) {
		side := pids[pid]
		if side == "" {
			continue
		}
		for _, s := range samples {
			require.Empty(t, mixed(s.Stack, side), "%s: %v", s.Type, s.Stack)
			if len(s.Stack) > 0 && indexOf(s.Stack, side+"_outer") >= 0 {
				kinds[s.Type+" "+side]++
			}
		}
	}
	t.Logf("%v", kinds)
	for _, side := range sides {
		for _, kind := range []string{"samples", "off_cpu", "page_faults", "alloc_space"} {
			require.Positive(t, kinds[kind+" "+side], "%s of %s", kind, side)
		}
	}
}

func indexOf(frames []receiver.Frame, name string) int {
	return slices.IndexFunc(frames, func(f receiver.Frame) bool { return f.Name == name })
}

// mixed describes the error in a stack of a side: a function of another side, or a wrong caller.
func mixed(frames []receiver.Frame, side string) string {
	callers := map[string]string{side + "_inner": side + "_middle", side + "_middle": side + "_outer", side + "_outer": "main"}
	for i, f := range frames {
		for _, end := range []string{"_inner", "_middle", "_outer"} {
			if strings.HasSuffix(f.Name, end) && f.Name != side+end {
				return f.Name
			}
		}
		// A stack that was not unwound to its end has no further callers.
		if caller := callers[f.Name]; caller != "" && i+1 < len(frames) && frames[i+1].Name != caller && indexOf(frames, "main") >= 0 {
			return f.Name + " is called by " + frames[i+1].Name
		}
	}
	return ""
}
