//go:build e2e

package gadgets

import (
	"slices"
	"testing"
	"time"

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

// TestEveryUser runs the gadgets on programs of a user other than root, which user and group select. Stacks are text, or IDs. The printed and the exported
// data must be the same.
func TestEveryUser(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	for _, g := range all() {
		if g.origin != here {
			continue
		}
		for _, form := range forms {
			t.Run(g.name+"-"+form.name, func(t *testing.T) {
				t.Parallel()
				startAs(t, 65534, compile(t, g.program))
				seen := func(samples []receiver.Sample) bool { return len(of(samples, g.program)) > 0 }
				r, err := export(t, options{image: igtest.Import(t, g.name), seconds: 2, flags: slices.Concat(g.flags, form.flags, []string{"--comm=" + g.program, "--uid=65534", "--gid=65533"}),
					until: func(samples []receiver.Sample) bool { return seen(samples) && (g.until == nil || g.until(samples)) }})
				require.NoError(t, err)
				g.require(t, r)
				require.True(t, seen(r.samples), "samples of %s", g.program)
			})
		}
	}
}

// asleep returns the samples of waits except waits for a CPU.
func asleep(samples []receiver.Sample) []receiver.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool { return s.Attributes["off_cpu.reason"] != "sleeping" })
}

// TestOffCPULimits leaves out long and short waits. The limits apply to each wait in a row's sum.
func TestOffCPULimits(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	image := igtest.Import(t, "profile_offcpu")
	start(t, compile(t, "waits"))
	const limit = 60 * time.Millisecond
	for _, tc := range []struct{ name, flag, there string }{
		{"max", "--max-duration=60000", "wait_short"},
		{"min", "--min-duration=60000", "wait_long"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, err := export(t, options{image: image, seconds: 2, flags: append([]string{"--comm=waits", tc.flag}, framePointers...),
				until: func(samples []receiver.Sample) bool {
					return igtest.Total(igtest.Through(asleep(samples), tc.there)) > 0
				}})
			require.NoError(t, err)
			r.requireSound(t)
			for _, row := range r.rows {
				waited, waits := igtest.Number(t, row, "off_cpu_raw"), igtest.Number(t, row, "switches")
				require.Equal(t, tc.name == "max", waited <= waits*limit.Nanoseconds(), "%d waits of %d ns in all", waits, waited)
			}
			require.Positive(t, igtest.Total(igtest.Through(asleep(r.samples), tc.there)))
		})
	}
}
