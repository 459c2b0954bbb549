//go:build e2e

package profile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// These settings apply to each sampled run.
const (
	checkFrequency = "4000"
	checkRule      = "share>+5%"
	// checkRuns is the number of runs per side. Several runs show the program's normal variation. On a busy machine, successive
	// samples are similar, so the variation within a single run is too small.
	checkRuns = 3
)

// sampleCheck samples a new process of the program, in which the function price is slower by a given percentage.
func sampleCheck(t *testing.T, program, dir, seconds string, slower int) error {
	// With a low priority, the programs do not slow down the start of ig.
	process := exec.CommandContext(t.Context(), "nice", "-n", "19", program, strconv.Itoa(slower))
	if err := process.Start(); err != nil {
		return err
	}
	said, err := command(t.Context(), t, "--pid", fmt.Sprint(process.Process.Pid), "--seconds", seconds, "--frequency", checkFrequency, "-o", dir,
		"--", "--unwind=frame-pointers").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, said)
	}
	_ = process.Process.Kill()
	_ = process.Wait() // killed
	return err
}

// judgement is the part of the JSON output of "profile check" that this test reads.
type judgement struct {
	Before, After struct{ Samples float64 }
	Tested        int
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
// With CHECK_PAIRS, the test counts how often it does.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "shop")
	compiler(t, "build", "-o", program, "./testdata/check")
	pairs, slower, seconds := 1, []int{0, 80}, "10" // far beyond these samples' random error
	counted := os.Getenv("CHECK_PAIRS") != ""
	if counted {
		var err error
		pairs, err = strconv.Atoi(os.Getenv("CHECK_PAIRS"))
		require.NoError(t, err)
		slower, seconds = []int{0, 10, 20, 40}, "20"
	}
	var base, changed []string // of the last pair
	found, others, samples, least := make([]int, len(slower)), make([]int, len(slower)), 0.0, 0.0
	for pair := range pairs {
		sides := make([][]string, 1+len(slower)) // before, then one for each of slower
		errs := make([]error, len(sides)*checkRuns)
		var group sync.WaitGroup
		for i := range errs {
			side, name, percent := i/checkRuns, "base", 0
			if side > 0 {
				percent = slower[side-1]
				name = fmt.Sprint("new-", percent)
			}
			run := filepath.Join(dir, fmt.Sprintf("%s-%d-%d", name, pair, i%checkRuns))
			sides[side] = append(sides[side], run)
			group.Go(func() { errs[i] = sampleCheck(t, program, run, seconds, percent) })
		}
		group.Wait()
		require.NoError(t, errors.Join(errs...))
		base, changed = sides[0], sides[len(sides)-1]
		for i, percent := range slower {
			code := -1
			if !counted {
				code = min(percent, 1)
			}
			j := judged(t, code, against(sides[0], sides[1+i])...)
			another := false
			for _, s := range j.Shares {
				if s.Function == "main.price" {
					least += s.FoundFrom / s.Before / float64(pairs*len(slower))
					t.Logf("pair %d, %d %% slower: price %.1f → %.1f %%, %v; %.0f and %.0f samples", pair, percent, 100*s.Before, 100*s.After, s.Broken, j.Before.Samples, j.After.Samples)
				}
				if len(s.Broken) > 0 && s.Function == "main.price" {
					found[i]++
				} else if len(s.Broken) > 0 {
					another = true
					t.Logf("pair %d, %d %% slower: %s %.1f → %.1f %% was named, too", pair, percent, s.Function, 100*s.Before, 100*s.After)
				}
			}
			if another {
				others[i]++
			}
			samples += (j.Before.Samples + j.After.Samples) / float64(2*pairs*len(slower))
		}
	}
	t.Logf("of %d pairs each, %.0f samples a side; growth of price is stated as detectable from %.0f %% on", pairs, samples, 100*least)
	for i, percent := range slower {
		t.Logf("%d %% slower: price named in %d, another function in %d", percent, found[i], others[i])
	}
	if counted {
		return // the page has the numbers
	}
	require.Zero(t, found[0]+others[0], "an unchanged program")
	require.Equal(t, pairs, found[len(found)-1])
	run(t, false, append([]string{"check", "--fail-on", "shop:" + checkRule}, against(base, changed)...)...)
	require.Contains(t, run(t, true, "diff", base[0], changed[0], "-o", "none"), "main.price")
	for _, format := range []string{"text", "markdown"} {
		run(t, true, append([]string{"check", "--format", format}, against(base, changed)...)...)
	}
	missing := command(t.Context(), t, "check", base[0], filepath.Join(dir, "missing"))
	said, _ := missing.CombinedOutput() // its exit code is checked below
	require.Contains(t, string(said), "no such file")
	require.Equal(t, 2, missing.ProcessState.ExitCode())
}
