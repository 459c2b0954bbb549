//go:build e2e

package gadgets

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestEntriesPerCPU gives maps of stacks the entries for each CPU that they have on a machine with 256 of them: those
// that the gadgets' sizes grow to, and those of the sizes without growing, which the reserves of the CPUs use up.
//
// The CPUs have no idle moment, however fast they are, and the frequency is such that each takes more samples in the
// second between two looks at the rows than it has entries without growing: 71 of 64, almost every one with a stack of
// its own.
func TestEntriesPerCPU(t *testing.T) {
	igtest.NeedRoot(t)
	cpus := int64(0)
	_, err := fmt.Sscan(igtest.Output(t, "nproc"), &cpus)
	require.NoError(t, err)
	// As many waits as a load of 12 has had on two CPUs, 2,900 a second, but for what the machine is too slow for.
	waits := []string{strconv.FormatInt(6*cpus, 10), "0", "4000"}
	ofChurn := []string{"--comm=churn", "--annotate=" + timeAndSwitches}
	busy := []string{strconv.FormatInt(12*cpus, 10), "0"}
	for _, tc := range []struct {
		name, gadget string
		load         []string
		flags        []string
		user, kernel int64 // for each CPU
		enough       bool
	}{
		{"grown", "profile_cpu", busy, []string{"--frequency=71"}, 256, 256, true},
		{"not grown", "profile_cpu", busy, []string{"--frequency=71"}, 16384 / 256, 8192 / 256, false},
		{"waits, grown", "profile_offcpu", waits, ofChurn, 2048, 256, true},
		{"waits, not grown", "profile_offcpu", waits, ofChurn, 16384 / 128, 8192 / 128, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			startLoad(t, compile(t, "churn"), tc.load...)
			r, err := export(t, options{name: tc.gadget + "-entries", image: igtest.Import(t, tc.gadget), seconds: 6, quiet: true, urgent: true,
				flags: append([]string{fmt.Sprintf("--stack-entries=%d", tc.user*cpus), fmt.Sprintf("--kernel-stack-entries=%d", tc.kernel*cpus)}, tc.flags...)})
			require.NoError(t, err)
			all, without := r.accounts.read, r.accounts.noStack
			if tc.gadget == "profile_offcpu" { // there is a kernel stack in any case
				m := missingOf(r, "churn")
				all, without = m.waits, m.waitsWithout
			}
			t.Logf("%d entries for user stacks, %d for kernel stacks: %d of %d without their user stack", tc.user*cpus, tc.kernel*cpus, without, all)
			require.Greater(t, all, 128*cpus, "the load does not keep the CPUs busy")
			// Where something else keeps the CPUs busy the rows are looked at late, and some stacks find no room all the same.
			if tc.enough {
				require.Less(t, 100*without, all)
			} else {
				require.Greater(t, 10*without, all)
			}
		})
	}
}
