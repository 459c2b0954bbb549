//go:build e2e

package profile

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// figuresSource is a program of 50 functions, which run in random order. The argument is the share of price in percent. The
// other functions have equal shares. The functions keep their values in registers. So each loop takes the same time, wherever
// the function is in memory, and shares do not vary between runs.
func figuresSource() string {
	var functions, list strings.Builder
	for i := range 50 {
		name := cmp.Or(map[int]string{0: "price"}[i], fmt.Sprint("f", i))
		fmt.Fprintf(&functions, "\n//go:noinline\nfunc %s(n int, state uint64) uint64 {\n\tfor range n {\n\t\tstate = state*6364136223846793005 + %d\n\t}\n\treturn state\n}\n", name, i+1)
		if i > 0 {
			list.WriteString(name + ", ")
		}
	}
	return `package main

import (
	"math/rand/v2"
	"os"
	"strconv"
)
` + functions.String() + `
func main() {
	share, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		panic(err)
	}
	others := []func(int, uint64) uint64{` + list.String() + `}
	const turns = 4000
	ofPrice := int(turns * float64(len(others)) * share / (100 - share))
	for state := uint64(1); ; {
		if i := rand.IntN(len(others) + 1); i == len(others) {
			state = price(ofPrice, state)
		} else {
			state = others[i](turns, state)
		}
	}
}
`
}

// slowed returns the share of price in percent, after its share of 10 % has become slower by a percentage.
func slowed(percent float64) float64 { return 100 * (10 + percent/10) / (100 + percent/10) }

// TestFigures counts how often "profile check" finds a function that has become slower. Each side is one run. It compares each
// changed run with each unchanged run, and half of the unchanged runs with the other half. Two runs take place at the same time,
// one on each of two CPUs. The test logs counts, and only requires that samples arrive.
func TestFigures(t *testing.T) {
	pairs, err := strconv.Atoi(os.Getenv("CHECK_PAIRS"))
	if err != nil {
		t.Skip("CHECK_PAIRS is not set: run make check-figures")
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "shop")
	require.NoError(t, os.WriteFile(source, []byte(figuresSource()), 0o644))
	compiler(t, "build", "-o", program, source)
	for _, figure := range []struct {
		samples string // of price
		seconds int
		rounds  int
		shares  []float64 // of price in percent; 10 is the unchanged program
	}{
		{"1,000", 13, pairs, []float64{10, 10, slowed(10), slowed(20), 12.3, slowed(40)}},
		{"10,000", 125, (pairs + 1) / 2, []float64{10, 10.7}},
	} {
		runs := map[float64][]string{}
		for round := range figure.rounds {
			for two := range slices.Chunk(figure.shares, 2) {
				var group sync.WaitGroup
				errs := make([]error, len(two))
				for i, share := range two {
					run := filepath.Join(dir, fmt.Sprintf("%d-%d-%v-%d", figure.seconds, round, share, i))
					runs[share] = append(runs[share], run)
					group.Go(func() {
						errs[i] = sampleRun(t, exec.CommandContext(t.Context(), program, fmt.Sprint(share)), "--seconds", fmt.Sprint(figure.seconds), "--frequency", "997", "-o", run)
					})
				}
				group.Wait()
				for _, err := range errs {
					require.NoError(t, err)
				}
			}
		}
		for _, share := range slices.Compact(slices.Clone(figure.shares)) {
			before, after := runs[10], runs[share]
			if share == 10 {
				before, after = after[:len(after)/2], after[len(after)/2:]
			}
			found, others, own, samples := 0, 0, 0.0, 0.0
			all := float64(len(before) * len(after))
			for _, b := range before {
				for _, a := range after {
					j := judged(t, -1, b, a)
					require.Positive(t, j.Before.Samples)
					samples += (j.Before.Samples + j.After.Samples) / 2 / all
					another := false
					for _, s := range j.Shares {
						if s.Function == "main.price" {
							own += s.After / all
						}
						if len(s.Broken) > 0 && s.Function != "main.price" {
							another = true
							t.Logf("%s: %.2f %% before, %.2f %% after", s.Function, 100*s.Before, 100*s.After)
						}
						if len(s.Broken) > 0 && s.Function == "main.price" {
							found++
						}
					}
					if another {
						others++
					}
				}
			}
			t.Logf("about %s samples of price: share 10 → %.2f %%, measured %.2f %%: price named in %d, another function in %d of %.0f comparisons of %d and %d runs, with %.0f samples a side",
				figure.samples, share, 100*own, found, others, all, len(before), len(after), samples)
		}
	}
}

// sampleRun starts a program, runs profile on it with the given flags, and kills the program.
func sampleRun(t *testing.T, program *exec.Cmd, flags ...string) error {
	if err := program.Start(); err != nil {
		return err
	}
	defer func() {
		_ = program.Process.Kill()
		_ = program.Wait() // killed
	}()
	said, err := command(context.WithoutCancel(t.Context()), t, append([]string{"--pid", fmt.Sprint(program.Process.Pid)}, flags...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}
