//go:build e2e

package matrix

import (
	"debug/elf"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/backends"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// gadget is a gadget to test. One run has an exporter for every preset.
type gadget struct {
	name string
	// own is the name of this project's gadget.
	own string
	// upstream is the name of Inspektor Gadget's gadget, if own is empty.
	upstream string
	flags    []string
	// workload is the program of test/gadgets that the gadget profiles.
	workload string
	// onCPU marks gadgets for on-CPU samples. Elastic accepts no others.
	onCPU bool
	// named says that, with Pyroscope's preset, samples have the profile's name and profiles have no period.
	named bool
	// pyroscope lists the gadget's profile types in Pyroscope.
	pyroscope []string
}

func all() []gadget {
	buildIDs := []string{"--collect-ustack", "--collect-build-id"}
	of := func(typ, unit, period, periodUnit string) []string {
		return []string{strings.Join([]string{period, typ, unit, period, periodUnit}, ":")}
	}
	cpu := []string{"process_cpu:cpu:nanoseconds:cpu:nanoseconds"}
	return []gadget{
		{name: "profile_cpu", own: "profile_cpu", flags: []string{"--frequency=99"}, onCPU: true, pyroscope: cpu},
		{name: "profile_offcpu", own: "profile_offcpu", workload: "waits", flags: []string{"--comm=waits"}, pyroscope: of("off_cpu", "nanoseconds", "off_cpu", "nanoseconds")},
		{name: "profile_pagefault", own: "profile_pagefault", workload: "faults", flags: []string{"--comm=faults"}, pyroscope: of("page_faults", "count", "page_faults", "count")},
		{
			name: "profile_alloc", own: "profile_alloc", named: true, workload: "allocs", flags: []string{"--comm=allocs", "--sample-bytes=4096", "--max-cost=1000"},
			pyroscope: []string{"memory:alloc_objects:count:space:bytes", "memory:alloc_space:bytes:space:bytes"},
		},
		{
			name: "profile_lock", own: "profile_lock", named: true, workload: "contends",
			pyroscope: []string{"mutex:contentions:count:contentions:count", "mutex:delay:nanoseconds:contentions:count"},
		},
		{name: "Inspektor Gadget's profile_cpu", upstream: "profile_cpu", flags: buildIDs, onCPU: true, pyroscope: cpu},
		{name: "Inspektor Gadget's trace_open", upstream: "trace_open", flags: buildIDs, workload: "opens", pyroscope: of("events", "count", "open", "count")},
	}
}

// enough reports whether requests contain the data to check for a preset.
func (g gadget) enough(preset string, burn *function, bodies [][]byte) bool {
	c, samples := cell{burn: map[string][]uint64{}}, 0
	for _, body := range bodies {
		req := &collectorpb.ExportProfilesServiceRequest{}
		if err := proto.Unmarshal(body, req); err != nil {
			return true // check reports why
		}
		c.count(req.GetDictionary())
		samples += len(receiver.Resolve(req))
	}
	return samples > 0 && (!g.showsFiles(preset) || len(c.burn[burn.hash]) > 0)
}

// showsFiles reports whether the receiver accepts the gadget's samples and identifies files.
func (g gadget) showsFiles(preset string) bool {
	return g.onCPU && (preset == backends.Devfiler || preset == backends.Elastic)
}

// cell is a gadget's result with one preset.
type cell struct {
	bodies  [][]byte
	samples []receiver.Sample
	broken  map[string]int // by rule, in all
	series  map[string]backends.Series
	hashed  int // locations with an htlhash
	// burn holds the addresses sent for heavy, a function of the test's Go program, by htlhash.
	burn map[string][]uint64
	// notGo says that some of these locations have another frame type.
	notGo bool
}

func (c *cell) check(t *testing.T, preset string, named bool) {
	t.Helper()
	c.broken, c.series, c.burn = map[string]int{}, map[string]backends.Series{}, map[string][]uint64{}
	for _, body := range c.bodies {
		// Check the protocol's rules first, and then the receiver's.
		protocol := otlpcheck.CheckBytes(body)
		if preset == backends.Parca { // it needs a form that breaks two of the rules
			protocol = otlpcheck.CheckDoubled(body)
		}
		for _, err := range append(protocol, backends.CheckBytes(preset, body)...) {
			var v *otlpcheck.Violation
			require.ErrorAs(t, err, &v)
			if preset == backends.Pyroscope && named && strings.HasSuffix(v.Path, ".period") {
				continue // it would show a period's type as the name, so the profiles have no period
			}
			if c.broken[v.Rule.ID]++; c.broken[v.Rule.ID] <= 3 {
				t.Logf("%s: %v", preset, err)
			}
		}
		req := &collectorpb.ExportProfilesServiceRequest{}
		require.NoError(t, proto.Unmarshal(body, req))
		for _, err := range backends.CheckPyroscopeWindow(req, time.Now()) {
			require.NoError(t, err)
		}
		for _, s := range backends.PyroscopeSeries(req) {
			c.series[s.Key()] = s
		}
		c.samples = append(c.samples, receiver.Resolve(req)...)
		c.count(req.GetDictionary())
	}
}

// count counts the locations in files with an htlhash, and collects the addresses of heavy.
func (c *cell) count(d *profilespb.ProfilesDictionary) {
	text := func(indices []int32, key string) string {
		for _, i := range indices {
			if a := d.AttributeTable[i]; d.StringTable[a.KeyStrindex] == key {
				return a.Value.GetStringValue()
			}
		}
		return ""
	}
	for _, l := range d.LocationTable[1:] {
		hash := text(d.MappingTable[l.MappingIndex].AttributeIndices, "process.executable.build_id.htlhash")
		if hash != "" {
			c.hashed++
		}
		if len(l.Lines) > 0 && d.StringTable[d.FunctionTable[l.Lines[0].FunctionIndex].NameStrindex] == heavy {
			c.burn[hash] = append(c.burn[hash], l.Address)
			c.notGo = c.notGo || text(l.AttributeIndices, "profile.frame.type") != "go"
		}
	}
}

// TestMatrix runs each gadget with each preset.
func TestMatrix(t *testing.T) {
	igtest.NeedRoot(t)
	burn := filepath.Join(t.TempDir(), "burn")
	igtest.Output(t, "go", "build", "-buildvcs=false", "-o", burn, "../e2e/burn")
	igtest.StartProgram(t, exec.Command(burn))
	inBurn := find(t, burn, heavy)

	presets := slices.DeleteFunc(config.Presets(), func(preset string) bool { return preset == config.FormatHistory })
	for _, g := range all() {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			var image string
			if g.own != "" {
				image = igtest.Import(t, g.own)
			} else {
				var err error
				image, err = igtest.BuildUpstream(t, g.upstream)
				require.NoError(t, err)
			}
			if g.workload != "" {
				start(t, g.workload)
			}
			sent := capture(t, image, presets, g.flags, func(preset string, bodies [][]byte) bool { return g.enough(preset, inBurn, bodies) })
			for _, preset := range presets {
				c := &cell{bodies: sent[preset]}
				c.check(t, preset, g.named)
				g.require(t, preset, inBurn, c)
			}
		})
	}
}

func (g gadget) require(t *testing.T, preset string, burn *function, c *cell) {
	t.Helper()
	require.NotEmpty(t, c.samples, preset)
	if preset == backends.Elastic && !g.onCPU {
		// This receiver accepts only on-CPU samples.
		require.Equal(t, []string{"elastic-type"}, slices.Sorted(maps.Keys(c.broken)))
		return
	}
	require.Empty(t, c.broken, preset)
	if preset == backends.Pyroscope {
		for _, s := range c.series {
			require.Contains(t, g.pyroscope, s.Type)
			require.LessOrEqual(t, len(s.Labels), 30)
			require.NotContains(t, s.Labels, "thread_name")
		}
	}
	if !g.showsFiles(preset) {
		return
	}
	require.Positive(t, c.hashed, "%s: locations with an htlhash", preset)
	require.NotEmpty(t, c.burn[burn.hash], "%s: its own among %v", preset, slices.Collect(maps.Keys(c.burn)))
	for _, addr := range c.burn[burn.hash] {
		require.GreaterOrEqual(t, addr, burn.start)
		require.LessOrEqual(t, addr, burn.end)
	}
	if g.own != "" { // a frame with a name has its file
		require.Empty(t, c.burn[""], "%s: %s without an htlhash", preset, heavy)
		require.False(t, c.notGo, "%s: %s is a Go function", preset, heavy)
	}
}

// heavy is the function that uses most of the test program's CPU time.
const heavy = "main.heavy"

// function describes where a function is.
type function struct {
	hash       string // of its file
	start, end uint64
}

// find finds a function in a program.
func find(t *testing.T, program, name string) *function {
	t.Helper()
	f, err := os.Open(program)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	hash, err := buildid.HTLHash(f, st.Size())
	require.NoError(t, err)
	e, err := elf.NewFile(f)
	require.NoError(t, err)
	symbols, err := e.Symbols()
	require.NoError(t, err)
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == name })
	require.NotEqual(t, -1, i)
	return &function{hash, symbols[i].Value, symbols[i].Value + symbols[i].Size}
}
