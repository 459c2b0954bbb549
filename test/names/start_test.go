//go:build e2e

package names

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// atStart lists the loads that run before ig starts.
var atStart = []string{"c-fp", "cpp", "rust", "go-stripped", "python-work", "compile"}

const (
	startWindow = 2 * time.Second
	startFor    = 16 * time.Second
)

// TestStart shows how many frames have a name in the first windows of a run.
func TestStart(t *testing.T) {
	dir := t.TempDir()
	processes := map[string]*loads.Process{}
	for _, name := range atStart {
		process, err := loads.Run(t.Context(), name, dir, loads.DefaultLimit)
		require.NoError(t, err)
		defer process.Stop()
		processes[name] = process
	}
	ig, gadget := igtest.Built(t, igtest.Bin, "ig"), igtest.Built(t, igtest.Gadgets, "profile_cpu.tar")
	r := startIG(t, ig, gadget, 199, startWindow)
	r.awaitFirst(t)
	time.Sleep(startFor)
	r.cancel()
	samples := r.receiver.Samples()
	begin := time.Now()
	for _, s := range samples {
		if s.Start.Before(begin) {
			begin = s.Start
		}
	}
	windows := map[int][]receiver.Sample{}
	for _, s := range samples {
		windows[int(s.Start.Sub(begin).Round(startWindow)/startWindow)] = append(windows[int(s.Start.Sub(begin).Round(startWindow)/startWindow)], s)
	}
	for w := 0; w <= int(startFor/startWindow); w++ {
		var line strings.Builder
		fmt.Fprintf(&line, "window %d: %s", w, shares(windows[w]))
		for _, name := range atStart {
			comms := []string(nil)
			if name == "compile" {
				comms = compilers
			}
			fmt.Fprintf(&line, "; %s %s", name, shares(of(windows[w], processes[name].PID, comms)))
		}
		t.Log(line.String())
		if os.Getenv("NAMES_VERBOSE") != "" {
			without := map[string]int64{}
			for _, s := range windows[w] {
				for _, f := range s.Stack {
					if name, _ := known(f); f.Type != "kernel" && !name && !strings.HasPrefix(f.Name, "[incomplete") {
						without[fmt.Sprintf("%s %s %s %#x", s.Attributes["thread.name"], f.Name, f.Mapping, f.Address)] += s.Total()
					}
				}
			}
			most := slices.SortedFunc(maps.Keys(without), func(a, b string) int { return cmp.Compare(without[b], without[a]) })
			for _, k := range most[:min(len(most), 40)] {
				t.Logf("    %5d %s", without[k], k)
			}
		}
	}
	if os.Getenv("NAMES_VERBOSE") != "" {
		t.Log(r.said(t))
	}
	all := tally(samples)
	require.Positive(t, all.frames)
	require.GreaterOrEqual(t, all.percent(all.named+all.file), barStart, "name or file, from the start")
}

// barStart applies to all programs of the machine, from the first interval on.
const barStart = 90.0

// tally counts user frames with a name, and user frames with only a file.
func tally(samples []receiver.Sample) *verdict {
	v := &verdict{}
	for f, n := range userFrames(samples) {
		v.frames += n
		hasName, hasFile := known(f)
		switch {
		case hasName:
			v.named += n
		case hasFile:
			v.file += n
		}
	}
	return v
}

// shares describes how many user frames have a name, and how many have a name or a file.
func shares(samples []receiver.Sample) string {
	v := tally(samples)
	return fmt.Sprintf("%d frames %.1f/%.1f", v.frames, v.percent(v.named), v.percent(v.named+v.file))
}
