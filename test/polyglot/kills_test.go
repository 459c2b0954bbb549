//go:build e2e

package polyglot

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// fiveGadgets are the gadgets of TestKillsUnderFive, with their sample types and the matching lines of testdata/five/five.c.
var fiveGadgets = []struct {
	name, kind, account string
	flags               map[string]string
}{
	{"profile_lock", "delay", "lock", map[string]string{"kernel-locks": "false"}},
	{"profile_cpu", "samples", "", nil},
	{"profile_offcpu", "off_cpu", "off_cpu", nil},
	{"profile_pagefault", "page_faults", "faults", nil},
	{"profile_alloc", "alloc_space", "alloc", map[string]string{"sample-bytes": "1", "max-cost": "1000"}},
}

// outcome finds a result of a gadget's events in its closing line: their number and share of the value.
func outcome(log, words string) (events int64, percent float64) {
	m := regexp.MustCompile(`\d+ events sampled.*?, (\d+) ` + words + ` \(([\d.]+) %`).FindStringSubmatch(log)
	if m == nil {
		return 0, 0
	}
	events, _ = strconv.ParseInt(m[1], 10, 64)
	percent, _ = strconv.ParseFloat(m[2], 64)
	return events, percent
}

// TestKillsUnderFive kills the unwinder repeatedly while all five gadgets profile one program. The program's own counts arrive.
// Some have stacks by frame pointers or none, and these are counted.
func TestKillsUnderFive(t *testing.T) {
	program := filepath.Join(t.TempDir(), "five")
	igtest.Output(t, "gcc", "-O2", "-fno-omit-frame-pointer", "-pthread", "-o", program, "testdata/five/five.c")
	d := startDaemon(t)
	var running []*attached
	for _, g := range fiveGadgets {
		flags := map[string]string{"comm": "five"}
		for key, value := range g.flags {
			flags[key] = value
		}
		running = append(running, d.attach(g.name, flags))
	}
	for _, a := range running {
		require.True(t, d.wait(a.gadget, 6*time.Minute, func() bool { return strings.Contains(a.log.String(), "exporting data source") || len(a.ended) > 0 }), "%s does not start", a.gadget)
		require.Empty(t, a.ended, "%s has ended", a.gadget)
	}
	cmd := exec.Command(program)
	cmd.SysProcAttr = &syscall.SysProcAttr{} // in the session of ig, which shares its CPU time with the program
	five := igtest.StartProgram(t, cmd)
	t.Cleanup(five.Kill)
	for _, g := range fiveGadgets {
		d.arrived(g.kind)
	}
	began := time.Now()
	for i := range *kills {
		time.Sleep(*every)
		pid := d.unwinderPID()
		require.NotZero(t, pid)
		at := time.Now()
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		require.True(t, d.wait("a new unwinder", 3*time.Minute, func() bool { now := d.unwinderPID(); return now != 0 && now != pid }))
		before := d.events("unwound", `unit="samples"`)
		require.True(t, d.wait("stacks are whole again", 5*time.Minute, func() bool { return d.events("unwound", `unit="samples"`) >= before+5 }))
		t.Logf("kill %d: stacks were whole again %.1f s later", i+1, time.Since(at).Seconds())
	}
	time.Sleep(*every)
	lasted := time.Since(began)
	own := map[string]int64{}
	for line := range strings.Lines(five.Stop()) {
		var name string
		var value int64
		_, err := fmt.Sscan(line, &name, &value)
		require.NoError(t, err, line)
		own[name] = value
	}
	time.Sleep(3 * time.Second) // the last interval
	logs := map[string]string{}
	for _, a := range running {
		logs[a.gadget] = a.end()
	}
	closing := readClosingLines(t, logs["profile_cpu"])
	samples := ofProcess(d.stop())[five.PID]
	require.EqualValues(t, *kills, closing.Restarts)
	t.Logf("%d kills in %.0f s: %.1f s without the unwinder, %d stacks lost with it", *kills, lasted.Seconds(), closing.Away, closing.Crashed)
	for _, g := range fiveGadgets {
		value := igtest.Total(igtest.Typed(samples, g.kind))
		without, withoutShare := outcome(logs[g.name], "without an unwinder")
		unknown, unknownShare := outcome(logs[g.name], "of processes that the unwinder had not detected yet")
		lost, lostShare := outcome(logs[g.name], "whose stack did not arrive")
		t.Logf("%-17s by frame pointers %d events, %.1f %% of the value, without an unwinder, and %d, %.1f %%, before it knew the program; without a stack %d, %.1f %%; delivered %d, the program's own %d",
			g.name, without, withoutShare, unknown, unknownShare, lost, lostShare, value, own[g.account])
		assert.Positive(t, value, g.name)
		if g.account != "" {
			assert.InEpsilon(t, own[g.account], value, 0.05, g.name)
		}
	}
}
