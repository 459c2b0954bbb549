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
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// bars holds the requirements for a load's user frames.
type bars struct {
	names bool    // 98 % must have a name
	file  float64 // percent that must have a name or a file
	many  bool    // at least minAddresses distinct addresses must be compared
	// The measured shares must match the known shares of the functions. This does not apply to stripped files. It does not
	// apply to C++ either, because libstdc++ has no frame pointers, so callers are missing.
	shares bool
}

const (
	barFile        = 98.0
	barFileCompile = 95.0
	barNames       = 98.0
	minAddresses   = 2000
)

var compilers = []string{"cc1", "as", "gcc", "x86_64-linux-gn"}

// measured lists the loads. comms names the processes of loads that keep starting new processes.
var measured = []struct {
	load  string
	comms []string
	bars
}{
	{"c-fp", nil, bars{true, barFile, false, true}},
	{"c-lib", nil, bars{true, barFile, false, true}},
	{"c-lib-stripped", nil, bars{false, barFile, false, false}},
	{"cpp", nil, bars{true, barFile, false, false}},
	{"cpp-work", nil, bars{true, barFile, true, false}},
	{"rust", nil, bars{true, barFile, false, true}},
	{"rust-work", nil, bars{true, barFile, true, false}},
	{"go", nil, bars{true, barFile, false, true}},
	{"go-stripped", nil, bars{true, barFile, false, true}},
	{"go-pie", nil, bars{true, barFile, false, true}},
	{"go-work", nil, bars{true, barFile, true, false}},
	{"go-work-pie", nil, bars{true, barFile, true, false}},
	{"python-work", nil, bars{false, barFile, true, false}},
	{"perl-work", nil, bars{false, barFile, true, false}},
	{"bash", nil, bars{false, barFile, true, false}},
	{"xz", []string{"xz"}, bars{false, barFile, true, false}},
	{"openssl", []string{"openssl"}, bars{false, barFile, true, false}},
	{"sqlite3", []string{"sqlite3"}, bars{false, barFile, true, false}},
	{"node-perf", nil, bars{false, barFile, false, true}},
	{"node-work", nil, bars{false, barFile, true, false}},
	{"compile", compilers, bars{false, barFileCompile, true, false}},
}

// Each load runs until it has minSamples samples of user code, even on a busy machine. Then it continues until it has enough
// distinct addresses, or hardly any new ones. The test compares all sampled addresses.
const (
	minSamples = 500
	longest    = 4 * time.Minute
	frequency  = 1999
	window     = 10 * time.Second // the default
)

// run is a running "ig run profile_cpu" with its receiver.
type run struct {
	receiver *receiver.Receiver
	log      *os.File
	read     int // requests
	process  *os.Process
	state    func() *os.ProcessState
	cancel   context.CancelFunc
	ended    chan error
}

// startRun starts the built ig and returns after the first request has arrived.
func startRun(t *testing.T) *run {
	t.Helper()
	r := startIG(t, igtest.Built(t, igtest.Bin, "ig"), igtest.Built(t, igtest.Gadgets, "profile_cpu.tar"), frequency, window)
	r.awaitFirst(t)
	return r
}

func (r *run) awaitFirst(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return len(r.receiver.Requests()) > 0 }, 2*time.Minute, 100*time.Millisecond, "nothing arrives")
}

// startIG starts an ig with a gadget from an archive.
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
	r.log, err = os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	args := append([]string{"run", string(image), "--config=" + igtest.EverySample(t, r.receiver.Addr())}, igrun.GadgetFlags()...)
	args = append(args, "--otel-profiles-exporter=truth", "--otel-profiles-interval="+interval.String(), "--output=none", "--format-stacks=false", "--unwind=frame-pointers", fmt.Sprintf("--frequency=%d", frequency))
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

// cpu returns the total CPU time of a run that has ended.
func (r *run) cpu() time.Duration { return r.state().UserTime() + r.state().SystemTime() }

func (r *run) said(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(r.log.Name())
	require.NoError(t, err)
	return string(text)
}

// more returns the samples that have arrived since the last call. A whole machine has too many samples to keep.
func (r *run) more() (samples []receiver.Sample) {
	requests := r.receiver.Requests()
	samples = receiver.ResolveAll(requests[r.read:])
	r.read = len(requests)
	return samples
}

// frames maps distinct user frames to their numbers of samples.
type frames map[receiver.Frame]int64

func userFrames(samples []receiver.Sample) frames {
	all := frames{}
	for _, s := range samples {
		for i, f := range s.Stack {
			// An inlined function has the address of the function that contains it, and other tools only name the latter.
			if f.Mapping != "" && i+1 < len(s.Stack) {
				if caller := s.Stack[i+1]; caller.Mapping == f.Mapping && caller.Address == f.Address && caller.Name != f.Name {
					continue
				}
			}
			if f.Type != "kernel" && !strings.HasPrefix(f.Name, "[incomplete") && !strings.HasPrefix(f.Name, "[truncated") && !strings.HasPrefix(f.Name, "[lost") {
				all[f] += s.Total()
			}
		}
	}
	return all
}

// of returns the samples of a load.
func of(samples []receiver.Sample, pid int, comms []string) []receiver.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool {
		if comms == nil {
			return s.Attributes["process.pid"] != fmt.Sprint(pid)
		}
		return !slices.Contains(comms, s.Attributes["thread.name"])
	})
}

// addresses counts the distinct file addresses.
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

// TestNames writes the table of docs/develop/testing/names.md.
func TestNames(t *testing.T) {
	r := startRun(t)
	dir := t.TempDir()
	var verdicts []*verdict
	for _, m := range measured {
		if only := os.Getenv("NAMES_LOADS"); only != "" && !slices.Contains(strings.Split(only, ","), m.load) {
			continue
		}
		process, err := loads.Run(t.Context(), m.load, dir, loads.DefaultLimit)
		require.NoError(t, err)
		r.more() // of the time before
		var mine []receiver.Sample
		for start, before := time.Now(), 0; time.Since(start) < longest; {
			time.Sleep(5 * time.Second)
			mine = append(mine, of(r.more(), process.PID, m.comms)...)
			n := addresses(mine)
			if count(mine) >= minSamples && sharesOf(process.Load, m.shares, mine).enough() && (n >= minAddresses || !m.many && n < before+before/20+5) {
				break
			}
			before = n
		}
		// This comes before the load exits, because its file can then be deleted.
		v := judge(t, process.What, process.PID, userFrames(mine))
		v.bars, v.samples, v.shared = m.bars, count(mine), sharesOf(process.Load, m.shares, mine)
		process.Stop()
		t.Log(v)
		verdicts = append(verdicts, v)
	}
	r.cancel()
	reasons := regexp.MustCompile(`\d+ user frames in distinct stacks: [^";]*`).FindString(r.said(t))
	t.Log(reasons)
	require.Empty(t, r.receiver.Findings(), "rules of the protocol are broken")
	if len(verdicts) == len(measured) {
		write(t, verdicts, reasons)
	}
	for _, v := range verdicts {
		v.require(t)
	}
}

// The page has its table between these markers.
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
	version, _ := os.ReadFile("/proc/sys/kernel/osrelease") // an empty version is no error
	fmt.Fprintf(&b, "\n`make test-names` wrote this table on %s, on Linux %s, %s.\n\n", time.Now().UTC().Format("2006-01-02"), strings.TrimSpace(string(version)), runtime.GOARCH)
	b.WriteString("| program | user frames | named | named by other tools | name or file | unnamed, in files without a symbol table | neither name nor file, shown as | shares found of 60 / 30 / 10 % | distinct addresses | same name | no name anywhere | only we have a name | only others have a name | wrong name | code without a file: name in the perf map or the vdso / not |\n|" + strings.Repeat("---|", 15) + "\n")
	for _, v := range verdicts {
		var rest []string
		for name, n := range v.rest {
			rest = append(rest, fmt.Sprintf("%.2f %% `%s`", v.percent(n), name))
		}
		slices.Sort(rest)
		p := v.places
		generated := ""
		if v.generated.all() > 0 {
			generated = fmt.Sprintf("%d / %d", v.generated.same, v.generated.wrong)
		}
		fmt.Fprintf(&b, "| %s | %d | %.2f %% | %.2f %% | %.2f %% | %.2f %% | %s | %s | %d | %d | %d | %d | %d | %d | %s |\n", v.what, v.frames, v.percent(v.named),
			v.percent(v.tools), v.percent(v.named+v.file), v.percent(v.stripped), strings.Join(rest, ", "), v.shared, p.all(), p.same, p.none, p.more, p.missed, p.wrong, generated)
	}
	fmt.Fprintf(&b, "\nAll programs of the machine had %s.\n", reasons)
	igtest.WriteBetween(t, path, tableBegin, tableEnd, b.String())
}
