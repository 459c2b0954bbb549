//go:build e2e

package gadgets

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// waitsFor is the program that waits for one thing after another.
const waitsFor = "waitsfor"

// withoutFramePointers compiles as distributions do.
var withoutFramePointers = []string{"-O2", "-fomit-frame-pointer"}

// waitsOf has, by the program's own names, its functions and the expected off_cpu.reason and off_cpu.syscall.
var waitsOf = map[string][3]string{
	"futex":           {"waits_in_futex", "sleeping", "futex"},
	"sleep":           {"waits_in_sleep", "sleeping", "sleep"},
	"poll":            {"waits_in_poll", "sleeping", "poll"},
	"read":            {"waits_in_read", "sleeping", "read"},
	"receive":         {"waits_in_receive", "sleeping", "receive"},
	"write":           {"waits_in_write", "sleeping", "write"},
	"wait":            {"waits_in_wait", "sleeping", "wait"},
	"uninterruptible": {"waits_uninterruptible", "uninterruptible", "other_syscall"},
	"disk":            {"waits_for_disk", "uninterruptible", "read"},
	"preempted":       {"waits_preempted", "preempted", "no_syscall"},
}

// TestWhyThreadsWait: of a program without frame pointers, profile_offcpu has whole stacks. Each wait has its reason, the kind of
// system call, and the share that the program measures. Stacks are taken when a thread returns. make test-kernels runs this on
// kernels where that takes a kprobe.
func TestWhyThreadsWait(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	program, ok := igtest.Prebuilt(waitsFor)
	if !ok {
		program = compileInto(t, t.TempDir(), waitsFor, withoutFramePointers...)
	}
	w := startAs(t, 65534, program)
	const enough = 3e9 // nanoseconds
	r, err := export(t, options{image: igtest.Import(t, "profile_offcpu"), seconds: 10, flags: []string{"--unwind=whole", "--comm=" + waitsFor},
		until: func(samples []receiver.Sample) bool {
			return igtest.Total(igtest.Through(of(samples, waitsFor), "waits_in_futex")) > enough
		}})
	require.NoError(t, err)
	r.requireSound(t)
	require.Regexp(t, "unwind: stacks are whole, collected at (the tracepoint sched_exit_tp|a kprobe on finish_task_switch)", string(r.log))

	spent, sum := map[string]float64{}, 0.0
	for line := range strings.Lines(w.Stop()) {
		var name string
		var ns float64
		_, err := fmt.Sscan(line, &name, &ns)
		require.NoError(t, err, line)
		if spent[name] = ns; name != "preempted" && name != "disk" { // in which the program also runs
			sum += ns
		}
	}
	for name := range waitsOf {
		if name != "disk" {
			require.Positive(t, spent[name], name)
		}
	}
	found, right, wrong, why := map[string]float64{}, map[string]float64{}, map[string]float64{}, map[string]map[string]int64{}
	var all, whole, known float64
	for _, s := range r.of(waitsFor) {
		n := s.Total()
		all += float64(n)
		if !slices.Contains(marks, s.Stack[len(s.Stack)-1].Name) {
			whole += float64(n)
		}
		for name, want := range waitsOf {
			if igtest.Depth(s, want[0]) < 0 {
				continue
			}
			reason, call := s.Attributes["off_cpu.reason"], s.Attributes["off_cpu.syscall"]
			switch {
			case reason == want[1] && call == want[2]:
				right[name] += float64(n)
			case reason != "preempted": // this can happen anywhere
				wrong[name] += float64(n)
			}
			if why[name] == nil {
				why[name] = map[string]int64{}
			}
			why[name][reason+" "+call] += n
			if found[name] += float64(n); name != "preempted" && name != "disk" {
				known += float64(n)
			}
		}
	}
	t.Logf("%.1f %% of %.0f s have whole stacks", 100*whole/all, all/1e9)
	assert.GreaterOrEqual(t, whole, 0.9*all) // the first moments are missing, which take seconds on an emulated processor
	for name := range spent {
		t.Logf("%-16s share %4.1f %%, measured by the program %4.1f %%; %v", name, 100*found[name]/known, 100*spent[name]/sum, why[name])
		assert.Positive(t, right[name], "%s: %v", name, why[name])
		assert.LessOrEqual(t, wrong[name], 0.1*right[name], "%s: %v", name, why[name])
		if name != "preempted" && name != "disk" {
			assert.InDelta(t, spent[name]/sum, found[name]/known, 0.03, name)
		}
	}
}
