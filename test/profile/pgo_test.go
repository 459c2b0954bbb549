//go:build e2e

package profile

import (
	"bytes"
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

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// compiler runs the go command in this folder, and returns its output.
func compiler(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nice", append([]string{"-n", "19", "go"}, args...)...) // other tests sample meanwhile
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

// exporting runs ig with a file exporter that writes pprof, until the returned function stops it and returns the largest file.
func exporting(t *testing.T, pid int, unwind string) func() string {
	t.Helper()
	prefix := filepath.Join(t.TempDir(), "cpu")
	cmd := igrun.Command(t.Context(), igtest.Built(t, igtest.Bin, "ig"), append([]string{"run", igtest.Import(t, "profile_cpu"), "--unwind=" + unwind, "--frequency=99", "--output=none",
		fmt.Sprintf("--pid=%d", pid), "--otel-profiles-exporter=disk", "--otel-profiles-interval=1h"}, igrun.GadgetFlags()...)...)
	const variables = "INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_EXPORTERS_DISK_"
	cmd.Env = append(os.Environ(), variables+"EXPORTER=file", variables+"FORMAT=pprof", variables+"PATH="+prefix)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	return func() string {
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.NoError(t, cmd.Wait(), said.String())
		files, err := filepath.Glob(prefix + "-*.pb.gz")
		require.NoError(t, err)
		require.NotEmpty(t, files, said.String())
		size := func(file string) int64 {
			info, err := os.Stat(file)
			require.NoError(t, err)
			return info.Size()
		}
		// The first interval has a random length, so it rarely ends during the run. There are then two files.
		return slices.MaxFunc(files, func(a, b string) int { return cmp.Compare(size(a), size(b)) })
	}
}

// TestPGO compares hot calls in a Go program's own CPU profile with our samples. By weight, nine of ten calls must be hot in
// our samples: in the command's file, in a file exporter's file, and after merging. With each file as it is, the compiler must
// then inline and devirtualize them. For frame-pointer stacks, the test only reports the share.
func TestPGO(t *testing.T) {
	dir := t.TempDir()
	program, own := filepath.Join(dir, "pgo"), filepath.Join(dir, "own.pb.gz")
	const source = "./testdata/pgo"
	compiler(t, "build", "-trimpath", "-o", program, source)
	process := exec.CommandContext(t.Context(), program, own)
	process.Stderr = os.Stderr
	require.NoError(t, process.Start())
	result, merged := filepath.Join(dir, "result"), filepath.Join(dir, "default.pgo")
	whole, framePointers := exporting(t, process.Process.Pid, "whole"), exporting(t, process.Process.Pid, "frame-pointers")
	run(t, true, "--pid", fmt.Sprint(process.Process.Pid), "--seconds", "30", "-o", result)
	exported, byFramePointers := whole(), framePointers()
	require.NoError(t, process.Process.Signal(os.Interrupt))
	require.NoError(t, process.Wait())
	t.Parallel() // only the sampling needs the CPUs for itself
	said := run(t, true, "pgo", "-o", merged, result)
	require.Contains(t, said, " of pgo (github.com/ig-otel-profiles/ig-otel-profiles/test/profile/testdata/pgo)")

	want := calls(t, own)
	// On a busy machine, the signal for preemption often arrives together with the signal of the runtime's profiler. The profiler
	// then finds this assembly function. The program does not call it, and the compiler cannot inline it.
	maps.DeleteFunc(want, func(call string, _ int64) bool { return strings.HasSuffix(call, " → runtime.asyncPreempt") })
	hottest, sum := hot(want)
	files := []string{filepath.Join(result, "profile.pb.gz"), exported, merged}
	for _, file := range append(files, byFramePointers) {
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
		t.Logf("%s: %.1f %% of the weight of %d hot calls", file, 100*share, len(hottest))
		if file != byFramePointers {
			require.GreaterOrEqual(t, share, 0.9)
		}
	}
	require.Regexp(t, `, from [2-9] profiles`, run(t, true, "pgo", "-o", filepath.Join(dir, "both.pgo"), result, filepath.Dir(exported)))

	for i, file := range files {
		// -pgo compiles all packages again, with the same decisions in the main package.
		flags := []string{"-pgo=" + file, "-gcflags=-d=pgodebug=1"}
		if i > 0 {
			flags = []string{"-pgo=off", "-gcflags=-pgoprofile=" + file + " -d=pgodebug=1"}
		}
		decisions := compiler(t, append(append([]string{"build", "-trimpath"}, flags...), "-o", filepath.Join(dir, "optimized"), source)...)
		require.Regexp(t, `allows inlining for call main\.rounded .* in function main\.flat\.price`, decisions, file)
		require.Regexp(t, `allows inlining for call main\.flat\.price .* in function main\.total`, decisions, "the interface's call is direct now: %s", file)
	}
}
