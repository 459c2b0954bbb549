//go:build e2e

package gadgets

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// missing has waits and their time, and the parts of both without a user stack.
type missing struct{ waits, time, waitsWithout, timeWithout int64 }

func (m missing) String() string {
	return fmt.Sprintf("%d waits of %.1f s; without a user stack %.3f %% of them and %.3f %% of their time",
		m.waits, float64(m.time)/1e9, percent(m.waitsWithout, m.waits), percent(m.timeWithout, m.time))
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

// In TestOffCPUUnderLoad, a program waits in so many different stacks that the stack map drops each of them within seconds.
// Long waits must still have theirs. The program is paced. The map has room only for the stacks of a few seconds, and a busy
// machine can read it that late.
func TestOffCPUUnderLoad(t *testing.T) {
	igtest.NeedRoot(t)
	const stacks, patients = 4096, 50
	image := igtest.Import(t, "profile_offcpu")
	load := startLoad(t, compile(t, "churn"), "3", strconv.Itoa(patients), "2000")
	for _, way := range offCPUWays {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			waits := func(samples []receiver.Sample, thread string) (n int64) {
				for _, s := range of(samples, thread) {
					if s.Type == "switches" {
						n += s.Total()
					}
				}
				return n
			}
			r, err := export(t, options{image: image, quiet: true, urgent: true,
				flags: slices.Concat([]string{"--annotate=" + timeAndSwitches, "--stack-entries=" + strconv.Itoa(stacks), "--pid=" + strconv.Itoa(load.PID)}, way.flags),
				until: func(samples []receiver.Sample) bool {
					return waits(samples, "churn") > 4*stacks && waits(samples, "patient") >= patients
				}})
			require.NoError(t, err)
			for _, thread := range []string{"churn", "patient"} {
				m := missingOf(r, thread)
				t.Logf("%s: %v", thread, m)
				require.Less(t, 10*m.waitsWithout, m.waits)
				require.Less(t, 10*m.timeWithout, m.time)
			}
		})
	}
}

// framePointers makes a gadget count every event, instead of drawing some for whole stacks.
var framePointers = []string{"--unwind=frame-pointers"}

// offCPUWays are profile_offcpu's two ways to take stacks by frame pointers.
var offCPUWays = []struct {
	name  string
	flags []string
}{
	{"back", framePointers},
	{"leaving", []string{"--sched-exit=false"}}, // here the unwinder cannot be called
}
