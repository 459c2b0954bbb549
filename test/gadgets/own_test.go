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

// forms are the two ways in which a gadget of this project hands over stacks.
var forms = []struct {
	name  string
	flags []string
}{
	{"text", nil},
	{"ids", []string{"--format-stacks=false"}},
}

// TestEveryUser runs the gadgets' programs as a user other than root. Without a filter, what they do is
// seen all the same.
func TestEveryUser(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	for _, g := range all() {
		if g.origin != here || g.program == "" {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			startAs(t, 65534, compile(t, g.program))
			r, err := export(t, options{name: g.name + "-nobody", image: igtest.Import(t, g.name), seconds: 1, flags: []string{"--comm=" + g.program},
				until: func(samples []receiver.Sample) bool { return len(of(samples, g.program)) > 0 }})
			require.NoError(t, err)
			r.requireSound(t)
			require.NotEmpty(t, r.of(g.program), "samples of %s", g.program)
		})
	}
}

// TestOffCPU compares what the profile says of a program that waits with what the
// program measured itself.
func TestOffCPU(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	image := igtest.Import(t, "profile_offcpu")
	for _, form := range forms {
		for _, way := range offCPUWays {
			t.Run(form.name+"-"+way.name, func(t *testing.T) {
				t.Parallel()
				testOffCPU(t, image, form.name+"-"+way.name, slices.Concat(form.flags, way.flags))
			})
		}
	}
}

func testOffCPU(t *testing.T, image, form string, flags []string) {
	waits := start(t, compile(t, "waits"))
	r, err := export(t, options{name: "profile_offcpu-waits-" + form, image: image, seconds: 4, flags: append([]string{"--pid=" + strconv.Itoa(waits.cmd.Process.Pid)}, flags...),
		until: func(samples []receiver.Sample) bool { return totalIn(asleep(samples), "wait_short") > 3e8 }})
	require.NoError(t, err)
	var inLong, inShort int64
	_, err = fmt.Sscan(waits.stop(t), &inLong, &inShort)
	require.NoError(t, err)

	r.requireSound(t)
	printed := int64(0)
	for _, row := range r.rows {
		printed += number(t, row, "off_cpu_raw")
		if text := row["kern_stack"]; text != "" {
			require.Regexp(t, "^__schedule; ", text, "the gadget itself leaves the tracing out")
		}
	}
	samples := r.of("waits")
	require.Len(t, samples, len(r.samples), "the run is limited to one program")
	all := int64(0)
	for _, s := range samples {
		require.Equal(t, receiver.Type{Type: "off_cpu", Unit: "nanoseconds", PeriodType: "off_cpu", PeriodUnit: "nanoseconds", Period: 1}, receiver.TypeOf(s))
		require.Contains(t, []string{"sleeping", "preempted"}, s.Attributes["off_cpu.reason"])
		all += s.Total()
		require.NotEmpty(t, s.Stack)
		require.Equal(t, "__schedule", s.Stack[0].Name, "the stack begins at the scheduler: %v", s.Stack)
		if in(s, "wait_long") {
			require.True(t, in(s, "do_nanosleep") || s.Attributes["off_cpu.reason"] == "preempted", "%v", s.Stack)
			require.False(t, in(s, "wait_short"))
		}
	}
	require.Equal(t, printed, all, "time printed and exported")
	require.LessOrEqual(t, all, r.end.Sub(r.start).Nanoseconds(), "one thread")

	sleeping := asleep(samples)
	slept := total(sleeping)
	long, short := totalIn(sleeping, "wait_long"), totalIn(sleeping, "wait_short")
	t.Logf("%.3f s off the CPU, of which asleep %.3f s in wait_long, %.3f s in wait_short; the program's own, from before to after the gadget: %.3f s and %.3f s",
		seconds(all), seconds(long), seconds(short), seconds(inLong), seconds(inShort))
	require.Positive(t, short)
	// Three times as long, and on a busy machine longer by the wait for a CPU in either.
	require.Greater(t, float64(long), 1.2*float64(short))
	require.Greater(t, float64(long+short), 0.95*float64(slept), "the program sleeps nowhere else")
}

// asleep returns the samples of waits that were no waits for a CPU.
func asleep(samples []receiver.Sample) []receiver.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool { return s.Attributes["off_cpu.reason"] != "sleeping" })
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

// TestOffCPULimits has the gadget leave out the long waits, and the short ones.
func TestOffCPULimits(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	image := igtest.Import(t, "profile_offcpu")
	start(t, compile(t, "waits"))
	for _, tc := range []struct{ name, flag, there, gone string }{
		{"max", "--max-duration=20000", "wait_short", "wait_long"},
		{"min", "--min-duration=20000", "wait_long", "do_poll"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, err := export(t, options{name: "profile_offcpu-" + tc.name, image: image, seconds: 3, flags: append([]string{"--comm=waits", tc.flag}, framePointers...),
				until: func(samples []receiver.Sample) bool { return totalIn(asleep(samples), tc.there) > 0 }})
			require.NoError(t, err)
			r.requireSound(t)
			sleeping := asleep(r.samples)
			there, gone := totalIn(sleeping, tc.there), totalIn(sleeping, tc.gone)
			t.Logf("%.3f s in %s, %.3f s in %s", seconds(there), tc.there, seconds(gone), tc.gone)
			require.Positive(t, there)
			// A short wait on a busy machine may take long, though not often.
			require.Less(t, 5*gone, there)
		})
	}
}
