//go:build e2e

package profile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	checkRule = "share>+5%"
	// checkRuns is the number of runs per side. Several runs show the program's normal variation. On a busy machine, successive
	// samples are similar, so the variation within a single run is too small.
	checkRuns = 3
)

// judgement is the part of the JSON output of "profile check" that this test reads.
type judgement struct {
	Before, After struct{ Samples float64 }
	Shares        []struct {
		Function      string
		Before, After float64
		FoundFrom     float64 `json:"found_from"`
		Broken        []string
	}
}

func judged(t *testing.T, code int, args ...string) (j judgement) {
	t.Helper()
	cmd := command(t.Context(), t, append([]string{"check", "--format", "json", "--fail-on", checkRule}, args...)...)
	out, err := cmd.Output()
	if code >= 0 {
		require.Equal(t, code, cmd.ProcessState.ExitCode(), "%v: %s", err, out)
	} else if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		require.Equal(t, 1, exit.ExitCode(), "%s", exit.Stderr)
	}
	require.NoError(t, json.Unmarshal(out, &j))
	return j
}

// against returns the arguments of "profile check" that compare the runs of two sides.
func against(before, after []string) []string {
	return slices.Concat(before, []string{"--"}, after)
}

// TestCheck requires that "profile check" finds only the function that was made slower, and nothing in an unchanged program.
// The change is far beyond the samples' random error. TestFigures counts how often the check finds smaller changes.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "shop")
	compiler(t, "build", "-o", program, "./testdata/check")
	var sides [3][]string // before, unchanged, changed
	var errs [len(sides) * checkRuns]error
	var group sync.WaitGroup
	for i := range errs {
		side := i / checkRuns
		run := filepath.Join(dir, fmt.Sprintf("%s-%d", []string{"base", "same", "new"}[side], i%checkRuns))
		sides[side] = append(sides[side], run)
		// With a low priority, the programs do not slow down the start of ig.
		process := exec.CommandContext(t.Context(), "nice", "-n", "19", program, []string{"0", "0", "80"}[side])
		group.Go(func() {
			errs[i] = sampleRun(t, process, "--seconds", "10", "--frequency", "4000", "-o", run, "--", "--unwind=frame-pointers")
		})
	}
	group.Wait()
	require.NoError(t, errors.Join(errs[:]...))
	base, changed := sides[0], sides[2]
	for code, side := range sides[1:] {
		j := judged(t, code, against(base, side)...)
		for _, s := range j.Shares {
			if s.Function == "main.price" {
				t.Logf("price %.1f → %.1f %%; %.0f and %.0f samples; growth is stated as detectable from %.0f %% on", 100*s.Before, 100*s.After, j.Before.Samples, j.After.Samples, 100*s.FoundFrom/s.Before)
			}
			require.Equal(t, code == 1 && s.Function == "main.price", len(s.Broken) > 0, "%s %.1f → %.1f %%", s.Function, 100*s.Before, 100*s.After)
		}
	}
	run(t, false, append([]string{"check", "--fail-on", "shop:" + checkRule}, against(base, changed)...)...)
	require.Contains(t, run(t, true, "diff", base[0], changed[0], "-o", "none"), "main.price")
}
