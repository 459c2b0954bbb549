//go:build e2e

package memory

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// run is one run of the gadget on a program.
type run struct {
	truth    map[string]igtest.Truth
	samples  []receiver.Sample
	captured igtest.Captured
	log      string
}

// plan describes a program and how to profile it.
type plan struct {
	program string
	env     []string
	seconds float64
	rounds  int // at least; without seconds, it is enoughRounds
	pause   int // microseconds between two rounds
	flags   []string
	// leaks is the function that leaks. If it is set, the run continues until it has sent the memory in use after the program's
	// work.
	leaks string
}

// enoughRounds is a number of rounds that makes the random error of each function's bytes small.
const enoughRounds = 7000

// watched holds flags that remove the limit on the probes' cost. Otherwise, values would be extrapolated.
var watched = []string{"--max-cost=1000", "--sample-bytes=4096"}

// source returns the path of a file of testdata.
func source(name string) string { return filepath.Join("testdata", name) }

// compile compiles a program as distributions do, without frame pointers.
func compile(t *testing.T, compiler string, args ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "allocate")
	igtest.Output(t, compiler, append(args, "-o", program)...)
	return program
}

func cProgram(t *testing.T) string {
	t.Helper()
	return compile(t, "gcc", "-O2", "-fomit-frame-pointer", "-Wall", "-Werror", source("allocate.c"))
}

// profile starts ig with profile_alloc, and waits until the log contains a text.
func profile(t *testing.T, rcv *receiver.Receiver, until string, flags ...string) *igtest.Run {
	t.Helper()
	r := igtest.Start(t, igtest.Import(t, "profile_alloc"), append(igtest.ExportTo(rcv), flags...)...)
	r.Says(until)
	return r
}

// start starts a program of testdata. Not every one ends with its input.
func start(t *testing.T, p plan) *igtest.Program {
	t.Helper()
	rounds := p.rounds
	if p.seconds == 0 {
		rounds = cmp.Or(rounds, enoughRounds)
	}
	cmd := exec.CommandContext(t.Context(), p.program, fmt.Sprint(p.seconds), strconv.Itoa(p.pause), strconv.Itoa(rounds))
	cmd.Env = append(os.Environ(), p.env...)
	c := igtest.StartProgram(t, cmd)
	t.Cleanup(c.Kill)
	require.Equal(t, "ready\n", c.Lines(1))
	return c
}

// letWork makes a program do its work, and returns its counts of bytes and calls. The program continues to run.
func letWork(t *testing.T, c *igtest.Program) map[string]igtest.Truth {
	t.Helper()
	c.Next()
	return igtest.ReadTruth(t, c.Lines(3))
}

// watch profiles a program.
func watch(t *testing.T, p plan) *run {
	t.Helper()
	igtest.NeedRoot(t)
	rcv := igtest.Receiver(t)
	c := start(t, p)
	ig := profile(t, rcv, "the first probes are attached", append([]string{"--pid=" + strconv.Itoa(c.PID)}, p.flags...)...)
	if p.env != nil {
		time.Sleep(2 * time.Second) // the second file with an allocator needs its probes before the program allocates
	}
	r := &run{truth: letWork(t, c)}
	if p.leaks != "" {
		require.Eventually(t, func() bool {
			return float64(igtest.InUse(rcv.Samples(), "inuse_space", p.leaks)) > (1-share10)*float64(r.truth[p.leaks].Sum)
		}, 2*time.Minute, 500*time.Millisecond, "not all of what leaked is in use")
	}
	ig.Stop()
	r.samples, r.log = rcv.Samples(), ig.Log.String()
	r.captured = readCaptured(t, r.log)
	require.Empty(t, rcv.Findings())
	return r
}

// readCaptured reads the closing line of the operator captures, and requires that no event was lost.
func readCaptured(t *testing.T, log string) igtest.Captured {
	t.Helper()
	c := igtest.ReadCaptured(t, log)
	require.Zero(t, c.Lost)
	return c
}

// through returns the samples of a type with a function on their stacks.
func through(samples []receiver.Sample, sampleType, function string) []receiver.Sample {
	return igtest.Through(igtest.Typed(samples, sampleType), function)
}
