//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDraws requires that gadgets' random samples are correct on average. The random numbers are the same in each run.
func TestDraws(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// A program cannot include the kernel's headers.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bpf"), 0o755))
	for _, header := range []string{"vmlinux.h", "bpf/bpf_helpers.h"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, header), nil, 0o600))
	}
	program := filepath.Join(dir, "draws")
	out, err := exec.CommandContext(t.Context(), "gcc", "-O2", "-Wall", "-Werror", "-I", dir, "-I", "../../gadgets/include", "-o", program, "testdata/draws.c", "-lm").CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.CommandContext(t.Context(), program).Output()
	require.NoError(t, err)
	t.Logf("\n%s", out)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, lines, 15)
	const runs = 200 // of the program
	for _, line := range lines {
		var name string
		var value, events, deviation float64
		_, err := fmt.Sscan(line, &name, &value, &events, &deviation)
		require.NoError(t, err)
		allowed := 3.5*deviation/math.Sqrt(runs) + 0.001
		require.InDelta(t, 1, value, allowed, name)
		require.InDelta(t, 1, events, allowed, name)
		if strings.HasPrefix(name, "faults-") && !strings.Contains(name, "waves") {
			require.Less(t, deviation, 0.02, "%s: long rows of similar events", name)
		}
	}
}
