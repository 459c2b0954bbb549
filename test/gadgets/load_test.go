//go:build e2e

package gadgets

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// loadOf returns how many threads of churn TestOffCPUUnderLoad runs and for how many seconds: above twice the 13 s that
// the longest waits take, or it would see none from its beginning to its end. With E2E_LOAD_SECONDS it is a load of 12.
func loadOf(t *testing.T) (threads, seconds int) {
	t.Helper()
	text := os.Getenv("E2E_LOAD_SECONDS")
	if text == "" {
		return 3, 28
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return 12, n
}

// missing are waits and their time, and what of them has no user stack.
type missing struct{ waits, time, waitsWithout, timeWithout int64 }

func (m missing) String() string {
	return fmt.Sprintf("%d waits of %.1f s; without a user stack %.3f %% of them and %.3f %% of their time",
		m.waits, seconds(m.time), percent(m.waitsWithout, m.waits), percent(m.timeWithout, m.time))
}

func percent(n, of int64) float64 { return 100 * float64(n) / float64(max(of, 1)) }

// missingOf adds up the samples of threads of a name.
func missingOf(r *run, thread string) missing {
	var m missing
	for _, s := range r.of(thread) {
		without := true
		for _, f := range s.Stack {
			without = without && (f.Type == "kernel" || slices.Contains(marks, f.Name))
		}
		if receiver.TypeOf(s).Type == "switches" {
			m.waits += s.Total()
			if without {
				m.waitsWithout += s.Total()
			}
			continue
		}
		m.time += s.Total()
		if without {
			m.timeWithout += s.Total()
		}
	}
	return m
}

const timeAndSwitches = `offcpu:profiles.value-field=off_cpu_raw\,switches,offcpu:profiles.type=off_cpu\,switches,offcpu:profiles.unit=nanoseconds\,count`

// TestOffCPUUnderLoad has a program wait in so many different stacks that the map of stacks forgets each of them
// within seconds. Long waits must have theirs all the same.
func TestOffCPUUnderLoad(t *testing.T) {
	igtest.NeedRoot(t)
	image := igtest.Import(t, "profile_offcpu")
	threads, seconds := loadOf(t)
	startLoad(t, compile(t, "churn"), strconv.Itoa(threads), "50")
	for _, way := range offCPUWays {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			r, err := export(t, options{name: "profile_offcpu-load-" + way.name, image: image, seconds: seconds, quiet: true, urgent: true,
				flags: slices.Concat([]string{"--annotate=" + timeAndSwitches}, way.flags)})
			require.NoError(t, err)
			busy, patient := missingOf(r, "churn"), missingOf(r, "patient")
			t.Logf("load average: %s", igtest.Output(t, "cat", "/proc/loadavg"))
			t.Logf("churn: %v", busy)
			t.Logf("patient: %v", patient)
			require.Positive(t, busy.waits)
			require.Positive(t, patient.waits)
			for _, m := range []missing{busy, patient} {
				require.Less(t, 100*m.waitsWithout, m.waits)
				require.Less(t, 100*m.timeWithout, m.time)
			}
		})
	}
}

// framePointers has profile_offcpu count every wait, and not draw some for whole stacks.
var framePointers = []string{"--unwind=frame-pointers"}

// offCPUWays are the two ways in which profile_offcpu takes stacks by frame pointers.
var offCPUWays = []struct {
	name  string
	flags []string
}{
	{"back", framePointers},
	{"leaving", []string{"--sched-exit=false"}}, // there the unwinder cannot be called
}
