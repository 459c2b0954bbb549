//go:build e2e

package gadgets

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEntriesPerCPU gives maps of stacks the entries for each CPU that they have on a machine with 256 of them: those
// that the gadgets' sizes grow to, and those of the sizes without growing, which the reserves of the CPUs use up.
//
// The CPUs have no idle moment, however fast they are, and the frequency is such that each takes more samples in the
// second between two looks at the rows than it has entries without growing: 71 of 64, almost every one with a stack of
// its own.
func TestEntriesPerCPU(t *testing.T) {
	needRoot(t)
	cpus := int64(0)
	_, err := fmt.Sscan(output(t, "nproc"), &cpus)
	require.NoError(t, err)
	for _, tc := range []struct {
		name         string
		user, kernel int64 // for each CPU
		none         bool
	}{
		{"grown", 256, 256, true},
		{"not grown", 16384 / 256, 8192 / 256, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			startLoad(t, compile(t, "churn"), strconv.FormatInt(12*cpus, 10), "0")
			r, err := export(t, options{name: "profile_cpu-entries", image: importGadget(t, "profile_cpu"), seconds: 6, quiet: true, urgent: true,
				flags: []string{fmt.Sprintf("--stack-entries=%d", tc.user*cpus), fmt.Sprintf("--kernel-stack-entries=%d", tc.kernel*cpus), "--frequency=71"}})
			require.NoError(t, err)
			t.Logf("%d entries for user stacks, %d for kernel stacks: %d of %d rows without their stack",
				tc.user*cpus, tc.kernel*cpus, r.accounts.noStack, r.accounts.read)
			require.Greater(t, r.accounts.read, 128*cpus, "the load does not keep the CPUs busy")
			require.Equal(t, tc.none, r.accounts.noStack == 0)
		})
	}
}
