//go:build e2e

package names

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// Bars, in percent.
const (
	barFile        = 98.0
	barFileCompile = 95.0
	barNames       = 98.0
)

// measured are the loads, and what the user frames of each must have. comms are the processes of those that
// start others without pause.
var measured = []struct {
	load  string
	comms []string
	names bool // 98 % have a name
	file  float64
}{
	{"c-fp", nil, true, barFile},
	{"c-lib", nil, true, barFile},
	{"c-lib-stripped", nil, false, barFile},
	{"cpp", nil, true, barFile},
	{"rust", nil, true, barFile},
	{"go", nil, true, barFile},
	{"go-stripped", nil, true, barFile},
	{"go-pie", nil, true, barFile},
	{"python-work", nil, false, barFile},
	{"perl-work", nil, false, barFile},
	{"bash", nil, false, barFile},
	{"xz", []string{"xz"}, false, barFile},
	{"openssl", []string{"openssl"}, false, barFile},
	{"sqlite3", []string{"sqlite3"}, false, barFile},
	{"node-perf", nil, false, barFile},
	{"compile", []string{"cc1", "as", "gcc", "x86_64-linux-gn"}, false, barFileCompile},
}

// Of each load minSamples of user code are taken, unless the machine is too busy for that, and then more until there are
// enough distinct addresses or hardly new ones. All that were seen are compared.
const (
	minSamples   = 200
	fewSamples   = 50
	minAddresses = 2000
	longest      = 45 * time.Second
	frequency    = 499
	window       = 10 * time.Second // the default
)

// built returns the path of what make has built.
func built(t *testing.T, variable, name string) string {
	t.Helper()
	dir := os.Getenv(variable)
	require.NotEmpty(t, dir, "%s is not set: run make test-names", variable)
	path := filepath.Join(dir, name)
	require.FileExists(t, path)
	return path
}

// run is "ig run profile_cpu" under way, into a receiver.
type run struct {
	receiver *receiver.Receiver
	log      *os.File
	read     int // requests
	process  *os.Process
	state    func() *os.ProcessState
	cancel   context.CancelFunc
	ended    chan error
}

// startRun starts the ig that make has built and returns when something has arrived.
func startRun(t *testing.T) *run {
	t.Helper()
	r := startIG(t, built(t, "E2E_BIN", "ig"), built(t, "E2E_GADGETS", "profile_cpu.tar"), frequency, window)
	r.awaitFirst(t)
	return r
}

func (r *run) awaitFirst(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return len(r.receiver.Requests()) > 0 }, 2*time.Minute, 100*time.Millisecond, "nothing arrives")
}

// startIG starts an ig with the gadget of an archive.
func startIG(t *testing.T, ig, gadget string, frequency int, interval time.Duration) *run {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), ig, "image", "import", gadget).CombinedOutput()
	require.NoError(t, err, "%s", out)
	image := regexp.MustCompile(`profile_cpu:[\w.-]+`).Find(out)
	require.NotNil(t, image, "%s", out)
	r := &run{ended: make(chan error, 1)}
	r.receiver, err = receiver.Start(receiver.Options{MaxBytes: 1 << 30, MaxMessageSize: 64 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.receiver.Close()) })
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
operator:
  otel-profiles:
    exporters:
      truth:
        exporter: otlp-grpc
        endpoint: %q
        insecure: true
        attributes: ["process.pid=sample"]
        max_values_per_attribute: 0
`, r.receiver.Addr()), 0o600))
	r.log, err = os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	args := append([]string{"--config", config, "run", string(image)}, igrun.GadgetFlags()...)
	args = append(args, "--otel-profiles-exporter=truth", "--otel-profiles-interval="+interval.String(), "--output=none", "--format-stacks=false", fmt.Sprintf("--frequency=%d", frequency))
	cmd := igrun.Command(ctx, ig, args...)
	cmd.Stdout, cmd.Stderr = r.log, r.log
	require.NoError(t, cmd.Start())
	r.process, r.state = cmd.Process, func() *os.ProcessState { return cmd.ProcessState }
	go func() { r.ended <- cmd.Wait() }()
	r.cancel = func() {
		cancel()
		<-r.ended
		r.ended <- nil
	}
	t.Cleanup(func() { r.cancel(); r.log.Close() })
	return r
}

// cpu is the CPU time of all of a run that has ended.
func (r *run) cpu() time.Duration { return r.state().UserTime() + r.state().SystemTime() }

func (r *run) said(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(r.log.Name())
	require.NoError(t, err)
	return string(text)
}

// more returns the samples that have arrived since the last call: all that runs on a machine is much.
func (r *run) more() (samples []receiver.Sample) {
	requests := r.receiver.Requests()
	for _, request := range requests[r.read:] {
		samples = append(samples, receiver.Resolve(request)...)
	}
	r.read = len(requests)
	return samples
}

// frames are distinct user frames with how often they were seen.
type frames map[receiver.Frame]int64

func userFrames(samples []receiver.Sample) frames {
	all := frames{}
	for _, s := range samples {
		for _, f := range s.Stack {
			if f.Type != "kernel" && !strings.HasPrefix(f.Name, "[incomplete") && !strings.HasPrefix(f.Name, "[truncated") && !strings.HasPrefix(f.Name, "[lost") {
				all[f] += s.Total()
			}
		}
	}
	return all
}

// of are the samples of a load.
func of(samples []receiver.Sample, pid int, comms []string) []receiver.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool {
		if comms == nil {
			return s.Attributes["process.pid"] != fmt.Sprint(pid)
		}
		return !slices.Contains(comms, s.Attributes["thread.name"])
	})
}

// addresses counts the distinct ones in files.
func addresses(samples []receiver.Sample) int {
	type place struct {
		file string
		addr uint64
	}
	all := map[place]bool{}
	for f := range userFrames(samples) {
		if f.Mapping != "" {
			all[place{f.Mapping, f.Address}] = true
		}
	}
	return len(all)
}

func count(samples []receiver.Sample) (n int64) {
	for _, s := range samples {
		if slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return f.Type != "kernel" }) {
			n += s.Total()
		}
	}
	return n
}

// verdict is what was found of a load.
type verdict struct {
	what                  string
	frames, named, file   int64
	rest                  map[string]int64
	checked, wrong, other int64 // distinct addresses with names
	tool                  int64 // frames that other tools have a name for
	missed                int64 // those of them that have none here
	stripped              int64 // frames in files without a symbol table that have no name
	wrongs                []string
}

func (v *verdict) percent(n int64) float64 { return 100 * float64(n) / float64(max(v.frames, 1)) }

// inBrackets is a name that stands for none.
func inBrackets(name string) bool {
	return strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]")
}

// known tells whether a frame has a name, and whether it has a file: as a mapping, or in brackets as its name.
func known(f receiver.Frame) (name, file bool) {
	return f.Name != "" && !inBrackets(f.Name), f.Mapping != "" || inBrackets(f.Name) && f.Name != "[unknown]" && f.Name != "[generated code]"
}

func judge(t *testing.T, what string, all frames) *verdict {
	t.Helper()
	v := &verdict{what: what, rest: map[string]int64{}}
	files := map[string][]uint64{}
	for f, n := range all {
		v.frames += n
		hasName, hasFile := known(f)
		switch {
		case hasName:
			v.named += n
		case hasFile:
			v.file += n
		default:
			v.rest[f.Name] += n
		}
		if f.Mapping != "" {
			require.NotZero(t, f.Address)
			files[f.Mapping] = append(files[f.Mapping], f.Address)
		}
	}
	for path, addrs := range files {
		slices.Sort(addrs)
		v.check(t, path, slices.Compact(addrs), all)
	}
	return v
}

// check compares all frames in a file with what other tools say of its addresses.
func (v *verdict) check(t *testing.T, path string, addrs []uint64, all frames) {
	t.Helper()
	table, err := readSymbols(t.Context(), path)
	require.NoError(t, err)
	ofGo := map[uint64]string{}
	if exec.CommandContext(t.Context(), "go", "version", path).Run() == nil {
		if ofGo, err = goNames(t.Context(), path, addrs); err != nil {
			t.Logf("%v", err)
		}
	}
	for f, n := range all {
		if f.Mapping != path {
			continue
		}
		want := table.at(f.Address)
		if name := ofGo[f.Address]; name != "" && name != "?" {
			want = append(want, name)
		}
		named := f.Name != "" && !inBrackets(f.Name)
		symbol := f.SystemName
		if symbol == "" {
			symbol = f.Name
		}
		if len(want) > 0 {
			v.tool += n
		}
		switch {
		case !named && len(want) > 0:
			v.missed += n
		case !named && !table.complete && len(ofGo) == 0:
			v.stripped += n
		case !named:
		case len(want) == 0:
			v.other++ // stubs, compressed tables and debug files, which nm does not read
		case slices.ContainsFunc(want, func(w string) bool { return w == plain(symbol) || w == symbol || strings.HasPrefix(w, "*ABS*+") }): // the last is a stub for a function that chooses
			v.checked++
		default:
			v.checked++
			v.wrong++
			v.wrongs = append(v.wrongs, fmt.Sprintf("%s %#x is %q, not one of %q", path, f.Address, symbol, want))
		}
	}
}

// TestNames is the table of test/names/README.md.
func TestNames(t *testing.T) {
	r := startRun(t)
	dir := t.TempDir()
	var verdicts []*verdict
	for _, m := range measured {
		load, err := loads.Find(m.load)
		require.NoError(t, err)
		program, err := load.Build(t.Context(), dir)
		require.NoError(t, err)
		process, err := program.Start(t.Context(), loads.DefaultLimit)
		require.NoError(t, err)
		var mine []receiver.Sample
		for start, before := time.Now(), 0; time.Since(start) < longest || count(mine) < fewSamples && time.Since(start) < 4*longest; {
			time.Sleep(5 * time.Second)
			mine = append(mine, of(r.more(), process.PID, m.comms)...)
			n := addresses(mine)
			if count(mine) >= minSamples && (n >= minAddresses || n < before+before/20+5) {
				break
			}
			before = n
		}
		// Judged while it runs: a program's file may go with it.
		v := judge(t, load.What, userFrames(mine))
		process.Stop()
		t.Logf("%-50s %5d samples: named %.2f %%, file only %.2f %%, rest %v; %d addresses checked, %d wrong, %d more; %d frames missed that nm names",
			v.what, count(mine), v.percent(v.named), v.percent(v.file), v.rest, v.checked, v.wrong, v.other, v.missed)
		verdicts = append(verdicts, v)
	}
	r.cancel()
	reasons := regexp.MustCompile(`\d+ user frames of distinct stacks: [^";]*`).FindString(r.said(t))
	t.Log(reasons)
	require.Empty(t, r.receiver.Findings(), "rules of the protocol are broken")
	write(t, verdicts, reasons)
	for i, v := range verdicts {
		require.Positive(t, v.frames, v.what)
		require.Empty(t, v.wrongs, v.what)
		require.GreaterOrEqual(t, v.percent(v.named+v.file), measured[i].file, "%s: name or file", v.what)
		if measured[i].names { // what runs in a library that its distribution has stripped counts by what it exports
			require.GreaterOrEqual(t, 100*float64(v.named)/float64(v.frames-v.stripped), barNames, "%s: names", v.what)
		}
		require.LessOrEqual(t, v.percent(v.missed), 2.0, "%s: frames without a name that other tools have one for", v.what)
	}
}

// The table in the doc is between these.
const (
	tableBegin = "<!-- names table: begin -->"
	tableEnd   = "<!-- names table: end -->"
)

func write(t *testing.T, verdicts []*verdict, reasons string) {
	t.Helper()
	path := os.Getenv("NAMES_DOC")
	if path == "" {
		return
	}
	var b strings.Builder
	version, _ := os.ReadFile("/proc/sys/kernel/osrelease") // as good as none
	fmt.Fprintf(&b, "%s\nWritten by `make test-names` on %s, Linux %s, %s.\n\n", tableBegin, time.Now().UTC().Format("2006-01-02"), strings.TrimSpace(string(version)), runtime.GOARCH)
	b.WriteString("| program | user frames | with a name | of these tables other tools name | name or file | neither, and what they are called | addresses compared: right / wrong | named where other tools know nothing | without a name, but other tools have one |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, v := range verdicts {
		var rest []string
		for name, n := range v.rest {
			rest = append(rest, fmt.Sprintf("%.2f %% `%s`", v.percent(n), name))
		}
		slices.Sort(rest)
		fmt.Fprintf(&b, "| %s | %d | %.1f %% | %.1f %% | %.1f %% | %s | %d / %d | %d | %.1f %% |\n", v.what, v.frames, v.percent(v.named), v.percent(v.tool), v.percent(v.named+v.file),
			strings.Join(rest, ", "), v.checked-v.wrong, v.wrong, v.other, v.percent(v.missed))
	}
	fmt.Fprintf(&b, "\nWhy, of all that ran meanwhile: %s.\n%s", reasons, tableEnd)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), tableBegin)
	require.True(t, ok, "%s has no %s", path, tableBegin)
	_, after, ok := strings.Cut(rest, tableEnd)
	require.True(t, ok, "%s has no %s", path, tableEnd)
	require.NoError(t, os.WriteFile(path, []byte(before+b.String()+after), 0o644))
}
