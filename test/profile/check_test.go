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

// checkAt says how each run is sampled.
const (
	checkSeconds   = "20"
	checkFrequency = "4000"
	checkRule      = "share>+5%"
)

// sampleCheck samples a new process of the program with price made so many percent slower.
func sampleCheck(t *testing.T, program, dir string, slower int) error {
	process := exec.CommandContext(t.Context(), program, strconv.Itoa(slower))
	if err := process.Start(); err != nil {
		return err
	}
	said, err := command(t.Context(), t, "--pid", fmt.Sprint(process.Process.Pid), "--seconds", checkSeconds, "--frequency", checkFrequency, "-o", dir,
		"--", "--unwind=frame-pointers").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, said)
	}
	_ = process.Process.Kill()
	_ = process.Wait() // killed
	return err
}

// judgement is what profile check writes in JSON, as far as this test reads it.
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

// TestCheck: profile check finds the function that was made slower, and no other, and nothing in a program that has not changed. With
// CHECK_PAIRS it counts how often.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "shop")
	compiler(t, "build", "-o", program, "./testdata/check")
	pairs, slower := 1, []int{0, 40}
	counted := os.Getenv("CHECK_PAIRS") != ""
	if counted {
		var err error
		pairs, err = strconv.Atoi(os.Getenv("CHECK_PAIRS"))
		require.NoError(t, err)
		slower = []int{0, 10, 20, 40}
	}
	found, others, samples, least := make([]int, len(slower)), make([]int, len(slower)), 0.0, 0.0
	for pair := range pairs {
		before := filepath.Join(dir, fmt.Sprintf("base-%d", pair))
		errs := make([]error, 1+len(slower))
		var group sync.WaitGroup
		group.Go(func() { errs[0] = sampleCheck(t, program, before, 0) })
		after := make([]string, len(slower))
		for i, percent := range slower {
			after[i] = filepath.Join(dir, fmt.Sprintf("new-%d-%d", percent, pair))
			group.Go(func() { errs[1+i] = sampleCheck(t, program, after[i], percent) })
		}
		group.Wait()
		require.NoError(t, errors.Join(errs...))
		for i, percent := range slower {
			code := -1
			if !counted {
				code = min(percent, 1)
			}
			j := judged(t, code, before, after[i])
			for _, s := range j.Shares {
				if s.Function == "main.price" {
					least += s.FoundFrom / s.Before / float64(pairs*len(slower))
					t.Logf("pair %d, %d %% slower: price %.1f → %.1f %%, %v; %.0f and %.0f samples", pair, percent, 100*s.Before, 100*s.After, s.Broken, j.Before.Samples, j.After.Samples)
				}
				if len(s.Broken) > 0 && s.Function == "main.price" {
					found[i]++
				} else if len(s.Broken) > 0 {
					others[i]++
				}
			}
			samples += (j.Before.Samples + j.After.Samples) / float64(2*pairs*len(slower))
		}
	}
	t.Logf("of %d pairs each, %.0f samples a side; growth of price is said to be found from %.0f %% on", pairs, samples, 100*least)
	for i, percent := range slower {
		t.Logf("%d %% slower: price named in %d, others named %d times", percent, found[i], others[i])
	}
	zero, forty := slices.Index(slower, 0), slices.Index(slower, 40)
	require.Zero(t, found[zero]+others[zero], "an unchanged program")
	require.Equal(t, pairs, found[forty])
	if counted {
		return
	}
	base, changed := filepath.Join(dir, "base-0"), filepath.Join(dir, "new-40-0")
	run(t, false, "check", base, changed, "--fail-on", "shop:"+checkRule)
	require.Contains(t, run(t, true, "diff", base, changed, "-o", "none"), "main.price")
	for _, format := range []string{"text", "markdown"} {
		run(t, true, "check", base, changed, "--format", format)
	}
	require.Contains(t, run(t, false, "check", base, filepath.Join(dir, "missing")), "no such file")
}
