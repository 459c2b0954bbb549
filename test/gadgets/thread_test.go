//go:build e2e

package gadgets

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// TestThread requires that a run with --tid has the waits of one thread of a process. The process's three threads nearly always
// wait, so the waits of all three would take about three times as long as the run.
func TestThread(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	c := start(t, compile(t, "contends"))
	thread := ""
	require.Eventually(t, func() bool {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", c.PID))
		require.NoError(t, err)
		for _, task := range tasks {
			if task.Name() != fmt.Sprint(c.PID) {
				thread = task.Name()
			}
		}
		return len(tasks) == 4
	}, time.Minute, time.Millisecond)
	r, err := export(t, options{image: igtest.Import(t, "profile_offcpu"), seconds: 4, flags: append([]string{"--tid=" + thread}, framePointers...),
		until: func(samples []receiver.Sample) bool { return len(igtest.Through(asleep(samples), "contend")) > 0 }})
	require.NoError(t, err)
	r.requireSound(t)
	require.NotEmpty(t, r.samples)
	first := slices.MinFunc(r.samples, func(a, b receiver.Sample) int { return a.Start.Compare(b.Start) }).Start
	last := slices.MaxFunc(r.samples, func(a, b receiver.Sample) int { return a.End.Compare(b.End) }).End
	waited := time.Duration(igtest.Total(r.samples))
	t.Logf("%v of %v off the CPU", waited, last.Sub(first))
	// The first rows arrive after a second, and have the waits since the gadget's start. Their window can start within this second.
	require.Less(t, waited, (last.Sub(first)+time.Second)*11/10)
	require.Greater(t, waited, last.Sub(first)/4)
}
