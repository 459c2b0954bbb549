package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	fileexport "github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/file"
)

// goProgram writes a profile of a Go program. In each of 60 lines, add calls a method of circle weight times. square is inlined
// into the method.
func goProgram(t *testing.T, file, buildID, folder string, weight int64, change ...func(*pprof.Profile)) string {
	t.Helper()
	p := &pprof.Profile{
		SampleType: []*pprof.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		PeriodType: &pprof.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 1e7,
		Mapping: []*pprof.Mapping{{ID: 1, File: file, BuildID: buildID}, {ID: 2, File: "[kernel.kallsyms]"}},
		Function: []*pprof.Function{
			{ID: 1, Name: "main.add", Filename: folder + "/main.go", StartLine: 10}, {ID: 2, Name: "main.circle.Area", Filename: folder + "/main.go", StartLine: 90},
			{ID: 3, Name: "main.square", Filename: folder + "/main.go", StartLine: 80}, {ID: 4, Name: "page_fault"},
		},
	}
	f := p.Function
	inner := &pprof.Location{ID: 1, Address: 16, Mapping: p.Mapping[0], Line: []pprof.Line{{Function: f[2], Line: 81}, {Function: f[1], Line: 91}}}
	kernel := &pprof.Location{ID: 2, Mapping: p.Mapping[1], Line: []pprof.Line{{Function: f[3]}}}
	p.Location = []*pprof.Location{inner, kernel}
	for i := range 60 {
		outer := &pprof.Location{ID: uint64(i + 3), Address: uint64(i + 1000), Mapping: p.Mapping[0], Line: []pprof.Line{{Function: f[0], Line: int64(i + 11)}}}
		p.Location = append(p.Location, outer)
		p.Sample = append(p.Sample, &pprof.Sample{
			Value: []int64{weight, weight * 1e7}, Location: []*pprof.Location{kernel, inner, outer}, Label: map[string][]string{"k8s.pod.name": {"shop-1"}},
		})
	}
	for _, c := range change {
		c(p)
	}
	require.NoError(t, p.CheckValid())
	path := filepath.Join(t.TempDir(), "profile.pb.gz")
	out, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, p.Write(out))
	require.NoError(t, out.Close())
	return path
}

// mergePGO returns the output and the profile of "profile pgo".
func mergePGO(t *testing.T, args ...string) (string, *pprof.Profile) {
	t.Helper()
	var out bytes.Buffer
	file := filepath.Join(t.TempDir(), "default.pgo")
	require.NoError(t, runPGO(append([]string{"-o", file}, args...), &out))
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	p, err := pprof.ParseData(data)
	require.NoError(t, err)
	return strings.ReplaceAll(out.String(), file, "default.pgo"), p
}

// TestPGO merges runs of several builds into one profile, without kernel frames, addresses and labels.
func TestPGO(t *testing.T) {
	const folder = "example.com/shop/cmd/shop"
	one, two := goProgram(t, "/usr/bin/shop-1.2", "aaaaaaaa1", folder, 20), goProgram(t, "/usr/bin/shop-1.3", "bbbbbbbb1", folder, 30)
	said, p := mergePGO(t, one, two)
	require.Contains(t, said, "default.pgo: 3000 samples (30.0 s of CPU time) of shop-1.3 (example.com/shop/cmd/shop), 2 builds, from 2 profiles\n")
	require.Contains(t, said, "60 hot calls with 99 % of the weight; two halves of the samples agree in 98 % of it: enough\n")
	require.NotContains(t, said, "left out")
	page, err := os.ReadFile("../../docs/guides/pgo.md")
	require.NoError(t, err)
	require.Contains(t, strings.ReplaceAll(string(page), "\n   ", "\n"), "```text\n"+said+"```\n", "the page's example is what the command prints")
	require.Len(t, p.Sample, 60)
	require.Equal(t, []int64{50 * 1e7, 50}, p.Sample[0].Value)
	require.Empty(t, p.Sample[0].Label)
	require.Len(t, p.Sample[0].Location, 2)
	require.Len(t, p.Sample[0].Location[0].Line, 2)
	require.Zero(t, p.Sample[0].Location[0].Address)

	// Go's own reader must get these weights from the merged profile, and from a single input.
	for _, file := range []string{one, write(t, p)} {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		in, err := pprof.ParseData(data)
		require.NoError(t, err)
		for _, s := range in.Sample { // Go uses the two innermost locations, even kernel frames
			if s.Location[0].Mapping.File == "[kernel.kallsyms]" {
				s.Location = s.Location[1:]
			}
		}
		ours := map[pgoCall]int64{}
		for _, s := range in.Sample {
			for c := range callsOf(s.Location) {
				ours[c] += s.Value[0]
			}
		}
		require.Len(t, ours, 61)
		require.Equal(t, takenByGo(t, write(t, in)), ours)
	}
}

func write(t *testing.T, p *pprof.Profile) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "profile.pb.gz")
	require.NoError(t, create(path, p.Write))
	return path
}

// takenByGo returns the calls and weights that Go's toolchain reads from a file.
func takenByGo(t *testing.T, file string) map[pgoCall]int64 {
	t.Helper()
	out := filepath.Join(t.TempDir(), "calls")
	said, err := exec.CommandContext(t.Context(), "go", "tool", "preprofile", "-i", file, "-o", out).CombinedOutput()
	require.NoError(t, err, string(said))
	text, err := os.ReadFile(out)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")[1:] // without the head
	calls := map[pgoCall]int64{}
	for ; len(lines) >= 3; lines = lines[3:] {
		c, weight := pgoCall{caller: lines[0], callee: lines[1]}, int64(0)
		_, err := fmt.Sscan(lines[2], &c.offset, &weight)
		require.NoError(t, err)
		calls[c] = weight
	}
	return calls
}

// goOTLP returns the samples of goProgram as OTLP, with a start line for each function. Without kernel frames, Go's compiler reads
// all calls.
func goOTLP(file, folder string, weight int64, kernel bool) *collectorpb.ExportProfilesServiceRequest {
	frame := func(name string, line int64, address uint64) receiver.Frame {
		return receiver.Frame{Name: name, Type: "go", File: folder + "/main.go", Line: line, Mapping: file, Address: address}
	}
	var samples []receiver.Sample
	for i := range 60 {
		stack := []receiver.Frame{frame("main.square", 81, 16), frame("main.circle.Area", 91, 16), frame("main.add", int64(i+11), uint64(i+1000))}
		if kernel {
			stack = append([]receiver.Frame{{Name: "page_fault", Type: "kernel", Mapping: "[kernel.kallsyms]", Address: 1}}, stack...)
		}
		shared := timed(weight/2, stack...) // the same stack as the next sample, with another attribute
		shared.Attributes = map[string]string{"thread.name": "worker"}
		samples = append(samples, shared, timed(weight-weight/2, stack...))
	}
	r := request(samples...)
	for _, f := range r.Dictionary.FunctionTable {
		f.StartLine = map[string]int64{"main.add": 10, "main.circle.Area": 90, "main.square": 80}[r.Dictionary.StringTable[f.NameStrindex]]
	}
	return r
}

// exported writes requests as a file exporter does: all into one file, or as pprof each into a file of its own.
func exported(t *testing.T, format, path string, requests ...*collectorpb.ExportProfilesServiceRequest) {
	t.Helper()
	var all []byte
	for i, r := range requests {
		body, err := proto.Marshal(r)
		require.NoError(t, err)
		data, err := fileexport.Encoder(format, "1.11")(body)
		require.NoError(t, err)
		if all = append(all, data...); format == "pprof" {
			require.NoError(t, os.WriteFile(fmt.Sprintf("%s-%d.pb.gz", path, i), data, 0o600))
		}
	}
	if format != "pprof" {
		require.NoError(t, os.WriteFile(path, all, 0o600))
	}
}

// TestPGOOfEachInput requires the same calls, with the same weights in Go's toolchain, from each kind of input and from mixed kinds.
// Each input has 50 samples of each call.
func TestPGOOfEachInput(t *testing.T) {
	const file, folder = "/usr/bin/shop", "example.com/shop/cmd/shop"
	_, p := mergePGO(t, goProgram(t, file, "aaaaaaaa1", folder, 50))
	want := takenByGo(t, write(t, p))
	require.Len(t, want, 61)
	one, two := goOTLP(file, folder, 20, true), goOTLP("/usr/bin/shop-2", folder, 30, true)
	for name, prepare := range map[string]func(t *testing.T, dir string) []string{
		"a result's folder": func(t *testing.T, dir string) []string {
			exported(t, "otlp-json", filepath.Join(dir, samplesFile), one, two)
			require.NoError(t, receiver.WritePprof(dir, []*collectorpb.ExportProfilesServiceRequest{one, two}, nil))
			require.NoError(t, runInfo{Target: "shop", Seconds: 10}.write(dir))
			return []string{dir}
		},
		"a result's pprof file": func(t *testing.T, dir string) []string {
			require.NoError(t, receiver.WritePprof(dir, []*collectorpb.ExportProfilesServiceRequest{one, two}, nil))
			return []string{filepath.Join(dir, receiver.PprofFile)}
		},
		"OTLP in JSON with a repeated request": func(t *testing.T, dir string) []string {
			exported(t, "otlp-json", filepath.Join(dir, "a.json"), one, two, one)
			exported(t, "otlp-json", filepath.Join(dir, "b.json"), two)
			return []string{filepath.Join(dir, "a.json"), filepath.Join(dir, "b.json")}
		},
		"OTLP in protobuf with lengths": func(t *testing.T, dir string) []string {
			exported(t, "otlp-proto", filepath.Join(dir, "a.pb"), one, two)
			return []string{filepath.Join(dir, "a.pb")}
		},
		"a file exporter's folder of JSON with a rotated file": func(t *testing.T, dir string) []string {
			exported(t, "otlp-json", filepath.Join(dir, "profiles.jsonl"), one)
			exported(t, "otlp-json", filepath.Join(dir, "profiles-20261127T070000.000000000.jsonl"), two)
			return []string{dir}
		},
		"a file exporter's folder of protobuf": func(t *testing.T, dir string) []string {
			exported(t, "otlp-proto", filepath.Join(dir, "profiles.pb"), one)
			exported(t, "otlp-proto", filepath.Join(dir, "profiles-20261127T070000.000000000.pb"), two)
			return []string{dir}
		},
		"a file exporter's folder of pprof": func(t *testing.T, dir string) []string {
			exported(t, "pprof", filepath.Join(dir, "cpu"), one, two)
			return []string{dir}
		},
		"pprof and OTLP in one folder": func(t *testing.T, dir string) []string {
			exported(t, "pprof", filepath.Join(dir, "cpu"), one)
			exported(t, "otlp-proto", filepath.Join(dir, "profiles.pb"), two)
			return []string{dir}
		},
		"another profiler's pprof, a pprof folder and OTLP": func(t *testing.T, dir string) []string {
			exported(t, "pprof", filepath.Join(dir, "cpu"), goOTLP(file, folder, 10, true))
			other := filepath.Join(t.TempDir(), "b.json")
			exported(t, "otlp-json", other, goOTLP("/usr/bin/shop-2", folder, 15, false))
			return []string{goProgram(t, file, "aaaaaaaa1", folder, 25), dir, other}
		},
	} {
		t.Run(name, func(t *testing.T) {
			said, p := mergePGO(t, prepare(t, t.TempDir())...)
			require.Contains(t, said, "default.pgo: 3000 samples (30.0 s of CPU time) of shop")
			require.NotContains(t, said, "left out")
			require.Equal(t, want, takenByGo(t, write(t, p)))
		})
	}
}

// TestGoReadsEachFile requires that Go's toolchain reads the command's and the file exporter's pprof files as they are, and gets the
// same calls and weights as from the merged file. A file with the names of compat_names has no period, and so weights in samples.
func TestGoReadsEachFile(t *testing.T) {
	const file, folder = "/usr/bin/shop", "example.com/shop/cmd/shop"
	r := goOTLP(file, folder, 50, false)
	dir := t.TempDir()
	exported(t, "otlp-json", filepath.Join(dir, "a.json"), r)
	_, merged := mergePGO(t, filepath.Join(dir, "a.json"))
	want := takenByGo(t, write(t, merged))
	require.Len(t, want, 61)
	require.NoError(t, receiver.WritePprof(dir, []*collectorpb.ExportProfilesServiceRequest{r}, nil))
	exported(t, "pprof", filepath.Join(dir, "cpu"), r)
	weights := func(file string) map[pgoCall]int64 {
		calls, sum := takenByGo(t, file), int64(0)
		for _, w := range calls {
			sum += w
		}
		for c := range calls { // Go reads the first type that it knows: samples, and CPU time of the merged file
			calls[c] = calls[c] * 60 * 50 * 2 * 1e7 / sum
		}
		return calls
	}
	for _, name := range []string{receiver.PprofFile, "cpu-0.pb.gz"} {
		require.Equal(t, want, weights(filepath.Join(dir, name)), name)
	}

	d := dictionary{r.Dictionary}
	profile := r.ResourceProfiles[0].ScopeProfiles[0].Profiles[0]
	profile.Period, profile.PeriodType = 1, &profilespb.ValueType{TypeStrindex: d.str("process_cpu"), UnitStrindex: d.str("count")}
	exported(t, "pprof", filepath.Join(dir, "compat"), r)
	compat := filepath.Join(dir, "compat-0.pb.gz")
	require.Equal(t, want, weights(compat))
	require.ErrorContains(t, runPGO([]string{"-o", filepath.Join(dir, "b.pgo"), compat}, io.Discard), "use profiles of --gadget cpu, from an exporter without compat_names")
	said, _ := mergePGO(t, compat, filepath.Join(dir, "a.json"))
	require.Contains(t, said, "default.pgo: 3000 samples (30.0 s of CPU time) of shop")
	require.Contains(t, said, ", from 1 profile\n")
}

// TestPGOWithoutMain requires that builds in whose samples the main package is missing belong to the program with the same file
// name, if there is one such program.
func TestPGOWithoutMain(t *testing.T) {
	library := func(p *pprof.Profile) {
		for _, f := range p.Function {
			f.Name = strings.Replace(f.Name, "main.", "example.com/geometry.", 1)
		}
	}
	const shop, till = "example.com/shop/cmd/server", "example.com/till/cmd/server"
	for _, build := range []string{"00000000", "zzzzzzzz"} { // sorted before and after the other builds
		without := goProgram(t, "/srv/server", build, "example.com/geometry", 5, library)
		withMain := goProgram(t, "/usr/bin/server", "aaaaaaaa1", shop, 20)
		said, _ := mergePGO(t, without, withMain)
		require.Contains(t, said, "1500 samples (15.0 s of CPU time) of server ("+shop+"), 2 builds, from 2 profiles\n")
		for _, program := range []string{shop, "server", "example.com/shop"} {
			said, _ = mergePGO(t, without, withMain, "--program", program)
			require.Contains(t, said, ": 1500 samples (", program)
		}
		said, _ = mergePGO(t, without, goProgram(t, "/opt/server", "bbbbbbbb1", "example.com/geometry", 5, library))
		require.Contains(t, said, "600 samples (6.0 s of CPU time) of server, 2 builds, from 2 profiles\n", "no build has a main package")

		// With two programs of this name, it could belong to either.
		inputs := []string{without, withMain, goProgram(t, "/usr/bin/server", "bbbbbbbb1", till, 30)}
		err := runPGO(inputs, io.Discard)
		require.ErrorContains(t, err, "the inputs have 3 Go programs: choose one with --program:\n  server ("+till+"), build bbbbbbbb1")
		require.ErrorContains(t, err, "\n  server, build "+build)
		for program, samples := range map[string]string{shop: "1200", till: "1800", build: "300", "server": "3300"} {
			said, _ = mergePGO(t, append(inputs, "--program", program)...)
			require.Contains(t, said, ": "+samples+" samples (", program)
		}

		err = runPGO([]string{without, goProgram(t, "/usr/bin/shopd", "aaaaaaaa1", shop, 20)}, io.Discard)
		require.ErrorContains(t, err, "the inputs have 2 Go programs", "the files' names differ")
	}
}

// Many runs of one build, which are merged early, must still share their stacks with another build.
func TestPGOOfManyRuns(t *testing.T) {
	one, two := goProgram(t, "/usr/bin/shop-1.2", "aaaaaaaa1", "example.com/shop", 1), goProgram(t, "/usr/bin/shop-1.3", "bbbbbbbb1", "example.com/shop", 1)
	said, p := mergePGO(t, append(slices.Repeat([]string{one}, 150), two)...)
	require.Contains(t, said, "2 builds, from 151 profiles\n")
	require.Len(t, p.Sample, 60)
	require.Equal(t, []int64{151 * 1e7, 151}, p.Sample[0].Value)
}

// The output warns about too few samples.
func TestPGOTooFew(t *testing.T) {
	said, _ := mergePGO(t, goProgram(t, "/usr/bin/shop", "", "example.com/shop", 1))
	require.Contains(t, said, ": not enough, at least 90 % is required\n  sample for longer, or add runs from more hosts\n")
}

func TestPGOOfSeveralPrograms(t *testing.T) {
	shop, till := goProgram(t, "/usr/bin/server", "aaaaaaaa1", "example.com/shop/cmd/server", 20), goProgram(t, "/usr/bin/server", "bbbbbbbb1", "example.com/till/cmd/server", 30)
	inputs := []string{shop, till}
	err := runPGO(inputs, os.Stdout)
	require.ErrorContains(t, err, "the inputs have 2 Go programs: choose one with --program:\n  server (example.com/till/cmd/server), build bbbbbbbb1 1800 samples\n  server (example.com/shop")
	for program, samples := range map[string]string{
		"example.com/shop": "1200 samples", "example.com/till/cmd/server": "1800 samples", "bbbbbbbb": "1800 samples", "server": "3000 samples",
	} {
		said, _ := mergePGO(t, append(inputs, "--program", program)...)
		require.Contains(t, said, ": "+samples+" (", program)
		require.Equal(t, samples != "3000 samples", strings.Contains(said, "left out:"), program)
	}
	require.ErrorContains(t, runPGO(append(inputs, "--program", "example.com/sho"), os.Stdout), "--program example.com/sho: the inputs do not contain this Go program; they contain:\n  server")
}

// TestPGOOfLargeNumbers requires that the sums of a hostile profile's values do not overflow.
func TestPGOOfLargeNumbers(t *testing.T) {
	said, _ := mergePGO(t, goProgram(t, "/usr/bin/shop", "", "example.com/shop", 1, func(p *pprof.Profile) {
		for _, s := range p.Sample {
			s.Value[1] = 3 << 61
		}
	}))
	require.Regexp(t, `\(\d{7,}\.\d s of CPU time\)`, said)
}

// TestPGOOfCounts requires that a profile with only numbers of samples is used, with the time of its period.
func TestPGOOfCounts(t *testing.T) {
	said, _ := mergePGO(t, goProgram(t, "/usr/bin/shop", "", "example.com/shop", 20, func(p *pprof.Profile) {
		p.SampleType = p.SampleType[:1]
		for _, s := range p.Sample {
			s.Value = s.Value[:1]
		}
	}))
	require.Contains(t, said, "1200 samples (12.0 s of CPU time) of shop ")
}

func TestPGOMistakes(t *testing.T) {
	noStart := goProgram(t, "/usr/bin/shop", "", "example.com/shop", 1, func(p *pprof.Profile) {
		for _, f := range p.Function {
			f.StartLine = 0
		}
	})
	waits := goProgram(t, "/usr/bin/shop", "", "example.com/shop", 1, func(p *pprof.Profile) {
		p.SampleType[0].Type, p.SampleType[1].Type, p.PeriodType.Type = "off_cpu", "delay", "off_cpu"
	})
	for want, args := range map[string][]string{
		"takes at least one input":              nil,
		"no such file":                          {filepath.Join(t.TempDir(), "none")},
		"build it with Go 1.20 or later":        {noStart},
		"the inputs have no CPU time":           {waits},
		"did you mean --program?":               {"--programm", "a", noStart},
		"unknown format: must be OTLP profiles": {"pgo_test.go"},
		"name another file with -o":             {"-o", filepath.Join(t.TempDir(), "none", "a"), goProgram(t, "/usr/bin/shop", "", "example.com/shop", 1)},
		"there are no profiles in ":             {t.TempDir()},
	} {
		require.ErrorContains(t, runPGO(args, os.Stdout), want)
	}
}
