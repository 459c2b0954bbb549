//go:build e2e

package polyglot

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

const (
	minSamples = 1000
	frequency  = "499"
	longest    = 100 * time.Second
)

// limits are the known limits of upstream, which this test does not require of these programs.
var limits = map[string]limit{
	"perl":          {why: "subs declared by name have none where the unwinder looks", named: true, shares: true},
	"beam-stripped": noErlang, "beam-map": noErlang,
	"dotnet": {why: "the unwinder has no lines of .NET, and the assembly in place of the file", lines: true},
	"beam":   nativeErlang, "beam-fp": frameErlang,
}

type limit struct {
	why                            string
	named, complete, shares, lines bool
	least                          float64 // least percentage of complete and named samples, if it is not 95
}

var (
	noErlang = limit{
		why:   "Debian's Erlang has no symbol table, by which the unwinder finds generated code",
		named: true, complete: true, shares: true,
	}
	nativeErlang = limit{why: "Erlang's own native code runs on another stack, from which the unwinder does not come back", least: 80}
	frameErlang  = limit{
		why:   "the same, and the unwinder looks once, when it first sees a process, whether that has frame pointers: there may be none yet",
		least: 80, complete: true,
	}
)

func measured() []loads.Load {
	var which []loads.Load
	for _, l := range loads.Known() {
		if l.Name != "node-perf" {
			which = append(which, l)
		}
	}
	return which
}

// atOnce is how many programs run at a time: enough to keep CPUs busy, few enough to leave the machine usable.
const atOnce = 3

// These are profile_cpu's ways to take stacks.
const (
	wholeStacks   = "--unwind=whole"
	framePointers = "--unwind=frame-pointers"
)

// profile runs profile_cpu until it has enough samples of each program, and judges these.
func profile(t *testing.T, programs []*loads.Program, unwind string) []verdict {
	t.Helper()
	r := startRun(t, igtest.Import(t, "profile_cpu"), unwind, "--frequency="+frequency)
	verdicts := judgeRun(t, unwind, r, programs)
	require.Empty(t, r.receiver.Findings(), "rules of the protocol are broken")
	if unwind == wholeStacks {
		require.NoError(t, readClosingLines(t, r.log.String()).Check(igtest.Total(r.receiver.Samples())))
	}
	return verdicts
}

// judgeRun runs programs, some at a time, until a running profiler has enough samples of each. It ends the profiler, and judges the
// samples.
func judgeRun(t *testing.T, name string, r *gadgetRun, programs []*loads.Program) []verdict {
	t.Helper()
	require.True(t, r.wait("the first samples", patience, func() bool { return r.receiver.Stats().Samples > 0 }))
	type ran struct {
		pid   int
		ready time.Time
		judge *judge
	}
	var all []ran
	for group := range slices.Chunk(programs, atOnce) {
		var running []*loads.Process
		from := len(all)
		for _, p := range group {
			process, err := p.Start(t.Context(), loads.DefaultLimit)
			require.NoError(t, err)
			t.Cleanup(func() { process.Stop() })
			executable, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", process.PID))
			require.NoError(t, err, "%s is gone", p.Name)
			j, err := newJudge(p, executable)
			require.NoError(t, err)
			running, all = append(running, process), append(all, ran{process.PID, time.Now(), j})
		}
		r.wait("enough samples", longest, func() bool {
			for _, p := range all[from:] {
				if r.counted(p.pid, p.ready) < minSamples*11/10 {
					return false
				}
			}
			return true
		})
		for i, process := range running {
			fmt.Fprintf(os.Stderr, "%s: %d samples of %s after %.0f s\n", name, r.counted(process.PID, all[from+i].ready), process.Name, time.Since(r.started).Seconds())
			process.Stop()
		}
	}
	samples := r.stop()
	t.Logf("%s: %d samples of all processes in %.0f s", name, igtest.Total(samples), time.Since(r.started).Seconds())
	by := ofProcess(samples)
	var verdicts []verdict
	for i, p := range all {
		v := p.judge.judge(since(by[p.pid], p.ready))
		t.Logf("%s: %-14s %5d samples, complete %5.1f %%, named %5.1f %%, of those with file and line %5.1f %%, with all callers %5.1f %%, shares %s; not complete ends in %v",
			name, programs[i].Name, v.samples, percent(v.complete, v.samples), percent(v.named, v.samples), percent(v.placed, v.named), percent(v.chained, v.samples), v.shares(), most(v.outermost))
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// since returns the samples of intervals that began at a time or later.
func since(samples []receiver.Sample, at time.Time) []receiver.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool { return s.Start.Before(at) })
}

// buildLoads builds programs into a folder of the test's.
func buildLoads(t *testing.T, which []loads.Load) []*loads.Program {
	t.Helper()
	var programs []*loads.Program
	dir := t.TempDir()
	for _, l := range which {
		p, err := l.Build(t.Context(), dir)
		require.NoError(t, err)
		programs = append(programs, p)
	}
	return programs
}

// most returns the three most frequent entries.
func most(counts map[string]int64) string {
	var b strings.Builder
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	for _, name := range names[:min(len(names), 3)] {
		fmt.Fprintf(&b, "%q %d  ", name, counts[name])
	}
	return b.String()
}

// TestTable profiles all programs in both ways, writes the table and checks the results of whole stacks.
func TestTable(t *testing.T) { testTable(t, measured(), "polyglot table", header(t, frequency)) }

// TestApart does the same for programs whose runtimes are not in the distribution.
func TestApart(t *testing.T) {
	testTable(t, loads.Apart(), "apart table", written(t)+", "+frequency+" Hz.\n\n")
}

func testTable(t *testing.T, which []loads.Load, marker, header string) {
	t.Helper()
	programs := buildLoads(t, which)
	whole := profile(t, programs, wholeStacks)
	frames := profile(t, programs, framePointers)
	table := render(frames, whole)
	t.Logf("\n%s", table)
	if doc := os.Getenv("POLYGLOT_DOC"); doc != "" {
		writeTable(t, doc, marker, header+table)
	}
	for _, v := range whole {
		limit := limits[v.load.Name]
		least := cmp.Or(limit.least, 95)
		require.GreaterOrEqual(t, v.samples, int64(minSamples), "%s: too few samples", v.load.Name)
		if !limit.complete {
			require.GreaterOrEqual(t, percent(v.complete, v.samples), least, "%s: complete; the others end in %s", v.load.Name, most(v.outermost))
		}
		if !limit.named && v.load.Naming != loads.Stripped {
			require.GreaterOrEqual(t, percent(v.named, v.samples), least, "%s: named; the others are in %s", v.load.Name, most(v.unnamed))
		}
		if !limit.named && !limit.lines && v.load.Naming == loads.Interpreter {
			require.GreaterOrEqual(t, percent(v.placed, v.named), 95.0, "%s: frames of its language with a file and a line", v.load.Name)
		}
		if !limit.shares {
			require.LessOrEqual(t, v.off(), 5.0, "%s: shares %s", v.load.Name, v.shares())
		}
	}
}

func render(frames, whole []verdict) string {
	var b strings.Builder
	b.WriteString("| program, 60 / 30 / 10 % in three functions | whole: samples | complete | named | all callers | shares found | frame pointers: samples | complete | named | all callers | shares found |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for i, v := range whole {
		fmt.Fprintf(&b, "| %s |", v.load.What)
		for _, v := range []verdict{v, frames[i]} {
			fmt.Fprintf(&b, " %d | %.0f %% | %.0f %% | %.0f %% | %s |", v.samples, percent(v.complete, v.samples), percent(v.named, v.samples), percent(v.chained, v.samples), v.shares())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// output returns a program's output for a table.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// written says when and where a table was written.
func written(t *testing.T) string {
	t.Helper()
	load, _, _ := strings.Cut(output(t, "cat", "/proc/loadavg"), " ")
	return fmt.Sprintf("`make test-languages` wrote this table on %s at commit %s, with kernel %s, %d CPUs, load %s",
		time.Now().UTC().Format("2006-01-02"), commit(t), output(t, "uname", "-r"), runtime.NumCPU(), load)
}

// header adds the versions of the programs.
func header(t *testing.T, hz string) string {
	t.Helper()
	run := func(name string, args ...string) string { return output(t, name, args...) }
	first := func(text string) string { line, _, _ := strings.Cut(text, "\n"); return strings.TrimSpace(line) }
	number := regexp.MustCompile(`\d+\.\d[\w.+~-]*`)
	version := func(name string, args ...string) string { return number.FindString(first(run(name, args...))) }
	return fmt.Sprintf("%s, %s Hz; Python %s, PHP %s, Perl %s, Ruby %s, Node %s, Java %s, gcc %s, rustc %s, %s.\n\n",
		written(t), hz,
		version("/usr/bin/python3", "--version"), version("/usr/bin/php", "--version"), number.FindString(run("/usr/bin/perl", "-e", "printf '%vd', $^V")),
		version("/usr/bin/ruby", "--version"), version("node", "--version"), version("java", "--version"), version("gcc", "-dumpfullversion"),
		version("rustc", "--version"), runtime.Version())
}

// commit returns the checked-out commit.
func commit(t *testing.T) string {
	t.Helper()
	return output(t, "git", "rev-parse", "--short", "HEAD")
}

// writeTable replaces the text between two markers of a document.
func writeTable(t *testing.T, path, marker, table string) {
	t.Helper()
	igtest.WriteBetween(t, path, "<!-- "+marker+": begin -->\n", "<!-- "+marker+": end -->", table)
}
