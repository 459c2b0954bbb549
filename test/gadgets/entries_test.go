//go:build e2e

package gadgets

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestEntriesPerCPU limits maps of stacks to their entries per CPU on a machine with 256 CPUs. With the gadgets' sizes, which grow,
// that is enough. Without growing, the CPUs' reserves use up the entries.
//
// The CPUs are never idle. At this frequency, each takes 71 samples between two reads of the rows, but has 64 entries without
// growing. Almost every sample has a different stack.
func TestEntriesPerCPU(t *testing.T) {
	igtest.NeedRoot(t)
	cpus := int64(0)
	_, err := fmt.Sscan(igtest.Output(t, "nproc"), &cpus)
	require.NoError(t, err)
	// That is 2,900 waits a second, as a load of 12 had on two CPUs, or fewer on a slow machine.
	waits := []string{strconv.FormatInt(6*cpus, 10), "0", "4000"}
	ofChurn := []string{"--comm=churn", "--annotate=" + timeAndSwitches}
	busy := []string{strconv.FormatInt(12*cpus, 10), "0"}
	for _, tc := range []struct {
		gadget      string
		load, flags []string
		// Entries per CPU: with the gadget's sizes after growing, and with its sizes without growing.
		grown, notGrown entries
	}{
		{"profile_cpu", busy, slices.Concat([]string{"--frequency=71"}, framePointers), entries{256, 256}, entries{16384 / 256, 8192 / 256}},
		{"profile_offcpu", waits, slices.Concat(ofChurn, framePointers), entries{2048, 256}, entries{16384 / 128, 8192 / 128}},
	} {
		t.Run(tc.gadget, func(t *testing.T) {
			startLoad(t, compile(t, "churn"), tc.load...)
			t.Run("grown", func(t *testing.T) { testEntries(t, tc.gadget, tc.flags, tc.grown, cpus, true) })
			t.Run("not grown", func(t *testing.T) { testEntries(t, tc.gadget, tc.flags, tc.notGrown, cpus, false) })
		})
	}
}

// entries are the entries of the stack maps per CPU.
type entries struct{ user, kernel int64 }

// testEntries runs a gadget beside another one on the same load.
func testEntries(t *testing.T, gadget string, flags []string, e entries, cpus int64, enough bool) {
	t.Parallel()
	r, err := export(t, options{image: igtest.Import(t, gadget), seconds: 6, quiet: true, urgent: true,
		flags: append([]string{fmt.Sprintf("--stack-entries=%d", e.user*cpus), fmt.Sprintf("--kernel-stack-entries=%d", e.kernel*cpus)}, flags...)})
	require.NoError(t, err)
	all, without := r.accounts.Read, r.accounts.NoStack
	if gadget == "profile_offcpu" { // there is always a kernel stack
		m := missingOf(r, "churn")
		all, without = m.waits, m.waitsWithout
	}
	t.Logf("%d entries for user stacks, %d for kernel stacks: %d of %d without user stack", e.user*cpus, e.kernel*cpus, without, all)
	require.Greater(t, all, 128*cpus, "the load does not keep the CPUs busy")
	// If other programs keep the CPUs busy, rows are read late, and some stacks find no room even so.
	if enough {
		require.Less(t, 100*without, all)
	} else {
		require.Greater(t, 10*without, all)
	}
}
