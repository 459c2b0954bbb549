//go:build e2e

package profile

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// compiler runs the go command in this folder, and returns its output.
func compiler(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, string(said))
	return string(said)
}

// calls returns the weights of the calls that Go's compiler reads from a profile. Each key consists of caller, callee and line.
func calls(t *testing.T, profile string) map[string]int64 {
	t.Helper()
	file := filepath.Join(t.TempDir(), "calls")
	compiler(t, "tool", "preprofile", "-i", profile, "-o", file)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")[1:] // without the header
	weights := map[string]int64{}
	for ; len(lines) >= 3; lines = lines[3:] {
		var line, weight int64
		_, err := fmt.Sscan(lines[2], &line, &weight)
		require.NoError(t, err)
		weights[fmt.Sprintf("%s:%d → %s", lines[0], line, lines[1])] = weight
	}
	require.NotEmpty(t, weights)
	return weights
}

// hot returns the calls that Go's compiler considers hot, and their total weight, which is 99 % of all weight.
func hot(weights map[string]int64) (calls []string, sum int64) {
	total := int64(0)
	for _, w := range weights {
		total += w
	}
	for _, c := range slices.SortedFunc(maps.Keys(weights), func(a, b string) int { return cmp.Or(cmp.Compare(weights[b], weights[a]), cmp.Compare(a, b)) }) {
		calls, sum = append(calls, c), sum+weights[c]
		if sum*100 > total*99 {
			break
		}
	}
	return calls, sum
}

// TestPGO compares hot calls in a Go program's own CPU profile with our samples. By weight, nine of ten calls must be hot in
// our samples, in the original file and after merging. The compiler must then inline and devirtualize them.
func TestPGO(t *testing.T) {
	dir := t.TempDir()
	program, own := filepath.Join(dir, "pgo"), filepath.Join(dir, "own.pb.gz")
	const source = "./testdata/pgo"
	compiler(t, "build", "-trimpath", "-o", program, source)
	process := exec.CommandContext(t.Context(), program, own)
	process.Stderr = os.Stderr
	require.NoError(t, process.Start())
	result, merged := filepath.Join(dir, "result"), filepath.Join(dir, "default.pgo")
	run(t, true, "--pid", fmt.Sprint(process.Process.Pid), "--seconds", "30", "-o", result)
	require.NoError(t, process.Process.Signal(os.Interrupt))
	require.NoError(t, process.Wait())
	said := run(t, true, "pgo", "-o", merged, result)
	require.Contains(t, said, " of pgo (github.com/ig-otel-profiles/ig-otel-profiles/test/profile/testdata/pgo)")

	want := calls(t, own)
	// On a busy machine, the signal for preemption often arrives together with the signal of the runtime's profiler. The profiler
	// then finds this assembly function. The program does not call it, and the compiler cannot inline it.
	maps.DeleteFunc(want, func(call string, _ int64) bool { return strings.HasSuffix(call, " → runtime.asyncPreempt") })
	hottest, sum := hot(want)
	for _, file := range []string{filepath.Join(result, "profile.pb.gz"), merged} {
		got := calls(t, file)
		ours, _ := hot(got)
		found := int64(0)
		for _, c := range hottest {
			if slices.Contains(ours, c) {
				found += want[c]
			} else {
				t.Logf("not hot: %s, %.1f %% of the weight", c, 100*float64(want[c])/float64(sum))
			}
		}
		share := float64(found) / float64(sum)
		t.Logf("%s: %.1f %% of the weight of %d hot calls", filepath.Base(file), 100*share, len(hottest))
		require.GreaterOrEqual(t, share, 0.9)
	}

	decisions := compiler(t, "build", "-trimpath", "-pgo="+merged, "-gcflags=-d=pgodebug=1", "-o", filepath.Join(dir, "optimized"), source)
	require.Regexp(t, `allows inlining for call main\.rounded .* in function main\.flat\.price`, decisions)
	require.Regexp(t, `allows inlining for call main\.flat\.price .* in function main\.total`, decisions, "the interface's call is direct now")
}
