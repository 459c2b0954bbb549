//go:build e2e

package polyglot

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// accountable is a program that does 60, 30 and 10 % of its work in three functions, and reports how much. Its only argument is the
// number of rounds.
type accountable struct {
	name    string
	entry   string   // the language's outermost function
	frames  string   // the type of the language's frames
	build   []string // {} is the output folder
	command []string
	call    string  // the kind of system call in which it waits
	named   float64 // the least named share in percent, if it is not 93
	// mixed: the runtime does the same on its own behalf.
	mixed bool
	// nameless: the unwinder finds no names of the language's functions.
	nameless bool

	folder string // where it was built, and runs
}

var waitingPrograms = []accountable{
	{name: "C", entry: "main", frames: "native", build: []string{"gcc", "-O2", "-fomit-frame-pointer", "-o", "{}/wait-c", "wait.c"}, command: []string{"{}/wait-c"}, call: "sleep"},
	{name: "C++", entry: "main", frames: "native", build: []string{"g++", "-O2", "-fomit-frame-pointer", "-o", "{}/wait-cpp", "wait.cpp"}, command: []string{"{}/wait-cpp"}, call: "sleep"},
	{name: "Rust", entry: "main", frames: "native", build: []string{"rustc", "-Copt-level=2", "-o", "{}/wait-rust", "wait.rs"}, command: []string{"{}/wait-rust"}, call: "sleep"},
	{name: "Go", entry: "main", frames: "go", build: []string{"go", "build", "-o", "{}/wait-go", "wait.go"}, command: []string{"{}/wait-go"}, call: "sleep", mixed: true},
	{name: "Python", entry: "<module>", frames: "cpython", command: []string{"/usr/bin/python3", "wait.py"}, call: "sleep"},
	{name: "PHP", entry: "<top-level>", frames: "php", command: []string{"php", "wait.php"}, call: "sleep"},
	{name: "Ruby", entry: "<main>", frames: "ruby", command: []string{"ruby", "wait.rb"}, call: "poll"},
	{name: "Perl", entry: "<top-level>", frames: "perl", command: []string{"/usr/bin/perl", "wait.pl"}, call: "sleep", nameless: true},
	{name: "Node.js", entry: "<anonymous>", frames: "v8js", command: []string{"node", "wait.js"}, call: "futex", mixed: true},
	{name: "Java", entry: "main", frames: "jvm", build: []string{"javac", "-d", "{}", "Wait.java"}, command: []string{"java", "-cp", "{}", "Wait"}, call: "futex", mixed: true},
}

var touchingPrograms = []accountable{
	{name: "C", entry: "main", frames: "native", build: []string{"gcc", "-O2", "-fomit-frame-pointer", "-o", "{}/touch-c", "touch.c"}, command: []string{"{}/touch-c"}},
	{name: "C++", entry: "main", frames: "native", build: []string{"g++", "-O2", "-fomit-frame-pointer", "-o", "{}/touch-cpp", "touch.cpp"}, command: []string{"{}/touch-cpp"}},
	{name: "Rust", entry: "main", frames: "native", build: []string{"rustc", "-Copt-level=2", "-o", "{}/touch-rust", "touch.rs"}, command: []string{"{}/touch-rust"}},
	{name: "Go", entry: "main", frames: "go", build: []string{"go", "build", "-o", "{}/touch-go", "touch.go"}, command: []string{"{}/touch-go"}, mixed: true},
	{name: "Python", entry: "<module>", frames: "cpython", command: []string{"/usr/bin/python3", "touch.py"}},
	{name: "PHP", entry: "<top-level>", frames: "php", command: []string{"php", "touch.php"}},
	{name: "Ruby", entry: "<main>", frames: "ruby", command: []string{"ruby", "touch.rb"}},
	{name: "Perl", entry: "<top-level>", frames: "perl", command: []string{"/usr/bin/perl", "touch.pl"}, nameless: true},
	{name: "Node.js", entry: "<anonymous>", frames: "v8js", command: []string{"node", "touch.js"}, mixed: true},
	{name: "Java", entry: "main", frames: "jvm", build: []string{"javac", "-nowarn", "-d", "{}", "Touch.java"}, command: []string{"java", "-cp", "{}", "Touch"}, named: 88, mixed: true},
}

// accountableUser is the programs' user. Only this user is profiled. Otherwise, other programs on this machine would use up the
// budget of stacks.
const accountableUser = 54321

var accountableFunctions = []string{"heavy", "light", "rest"}

// accounting is a running accountable program.
type accounting struct {
	pid   int
	judge *judge
	said  *igtest.Buffer
	ended chan error
}

// buildFrom builds a program in another folder than its sources, because its user is possibly not allowed to read the sources'
// folder.
func (a accountable) buildFrom(t *testing.T, sources string) accountable {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(sources)))
	for _, d := range []string{dir, filepath.Dir(dir)} {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	in := func(args []string) []string {
		full := make([]string, len(args))
		for i, a := range args {
			full[i] = strings.ReplaceAll(a, "{}", dir)
		}
		return full
	}
	if a.build != nil {
		build := in(a.build)
		cmd := exec.CommandContext(t.Context(), build[0], build[1:]...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	a.command, a.folder = in(a.command), dir
	return a
}

// start starts a built program for a number of rounds.
func (a accountable) start(t *testing.T, rounds int) *accounting {
	t.Helper()
	r := &accounting{said: &igtest.Buffer{}, ended: make(chan error, 1)}
	cmd := exec.CommandContext(t.Context(), a.command[0], append(slices.Clone(a.command[1:]), strconv.Itoa(rounds))...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = a.folder, r.said, os.Stderr
	// Allocators that return large blocks at once have fresh memory for each.
	cmd.Env = append(os.Environ(), "MALLOC_MMAP_THRESHOLD_=131072", "USE_ZEND_ALLOC=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: accountableUser, Gid: accountableUser}}
	require.NoError(t, cmd.Start())
	go func() { r.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-r.ended
	})
	r.pid = cmd.Process.Pid
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", r.pid))
	require.NoError(t, err)
	r.judge, err = newJudge(&loads.Program{Load: loads.Load{Name: a.name, Entry: a.entry, FrameType: a.frames}}, exe)
	require.NoError(t, err)
	return r
}

// end waits for a program's end, and returns its report on its three functions.
func (r *accounting) end(t *testing.T) (own [3]int64, sum int64) {
	t.Helper()
	err := <-r.ended
	r.ended <- err
	require.NoError(t, err)
	_, err = fmt.Sscan(r.said.String(), &own[0], &own[1], &own[2])
	require.NoError(t, err, "%s", r.said)
	return own, own[0] + own[1] + own[2]
}

// names reports whether a sample has the program's functions or, if these have no names, its entry.
func (a accountable) names(s receiver.Sample) bool {
	if a.nameless {
		return through(s, a.entry)
	}
	return through(s, "work")
}

func through(s receiver.Sample, function string) bool {
	return slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return loads.Is(f.Name, function) })
}

// TestWaits runs programs that wait, in several languages. profile_offcpu must have whole, named stacks, and the times that the
// programs measure. A round takes 0.3 seconds. It has few waits, so a CPU's budget of stacks covers nearly all of them.
func TestWaits(t *testing.T) {
	sleeping := func(s receiver.Sample) bool { return s.Attributes["off_cpu.reason"] == "sleeping" }
	arrived := testAccounts(t, "profile_offcpu", "waits", waitingPrograms, 200, sleeping)
	for _, p := range waitingPrograms {
		calls := map[string]int64{}
		for _, s := range arrived[p.name] {
			if sleeping(s) && (p.nameless || through(s, "heavy")) {
				calls[s.Attributes["off_cpu.syscall"]] += s.Total()
			}
		}
		assert.Len(t, calls, 1, "%s", p.name)
		assert.NotZero(t, calls[p.call], "%s: %v", p.name, calls)
	}
}

// TestFaults runs programs that touch new memory. profile_pagefault must have whole, named stacks, and one fault per touched
// page. So many rounds take a minute or more. Some thousand faults of each program are sampled, so sums vary by little more
// than 1 %.
func TestFaults(t *testing.T) {
	testAccounts(t, "profile_pagefault", "faults", touchingPrograms, 1500,
		func(s receiver.Sample) bool { return s.Attributes["page_fault.access"] == "write" })
}

// testAccounts compares a gadget's results with the programs' own reports. kind selects the samples that have to be whole and
// named. folder is a folder of testdata with the sources, and the name of the table in POLYGLOT_DOC. It returns the samples by
// program.
func testAccounts(t *testing.T, gadget, folder string, programs []accountable, rounds int, kind func(receiver.Sample) bool) map[string][]receiver.Sample {
	run := startRun(t, igtest.Import(t, gadget), "--unwind=whole", fmt.Sprintf("--uid=%d", accountableUser))
	// The unwinder reads a program's files when it first sees it. So other processes with the same files run before the
	// processes that count.
	programs, before := slices.Clone(programs), map[int]accountable{}
	for i, p := range programs {
		programs[i] = p.buildFrom(t, filepath.Join("testdata", folder))
		before[programs[i].start(t, 10*rounds).pid] = p
	}
	known := func() bool {
		named := 0
		for pid, samples := range ofProcess(run.receiver.Samples()) {
			if p, ok := before[pid]; ok && slices.ContainsFunc(samples, p.names) {
				named++
			}
		}
		return named == len(before)
	}
	require.True(t, run.wait("the first stacks", patience, known), "samples with names have not arrived from all programs")
	for pid := range before {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	running := map[string]*accounting{}
	for _, p := range programs {
		running[p.name] = p.start(t, rounds)
	}
	own, sums := map[string][3]int64{}, map[string]int64{}
	for name, r := range running {
		own[name], sums[name] = r.end(t)
	}
	samples := ofProcess(run.stop())
	t.Logf("%s", run.log)

	arrived := map[string][]receiver.Sample{}
	table := written(t) + ".\n\n| program | whole | named | sum | shares |\n|---|---|---|---|---|\n"
	for _, p := range programs {
		arrived[p.name] = samples[running[p.name].pid]
		var all, whole, named, value int64
		found, elsewhere := map[string]int64{}, map[string]int64{}
		for _, s := range samples[running[p.name].pid] {
			n, counts := s.Total(), kind(s) && (!p.mixed || through(s, "work"))
			in := slices.IndexFunc(accountableFunctions, func(f string) bool { return through(s, f) && through(s, "work") })
			switch {
			case in >= 0:
				value += n
				found[accountableFunctions[in]] += n
			case p.nameless && counts:
				value += n
			}
			if !counts {
				continue
			}
			all += n
			if running[p.name].judge.complete(s.Stack) {
				whole += n
			}
			if in >= 0 {
				named += n
			} else {
				elsewhere[innermost(userFrames(s.Stack))] += n
			}
		}
		if !assert.NotZero(t, all, "%s: nothing arrived", p.name) {
			continue
		}
		truth, sum := own[p.name], sums[p.name]
		names, shares := "", ""
		if !p.nameless {
			names = fmt.Sprintf("%.1f %%", percent(named, all))
			shares = fmt.Sprintf("%.1f / %.1f / %.1f", percent(found["heavy"], value), percent(found["light"], value), percent(found["rest"], value))
		}
		table += fmt.Sprintf("| %s | %.1f %% | %s | %.1f %% | %s |\n", p.name, percent(whole, all), names, percent(value, sum), shares)
		assert.GreaterOrEqual(t, percent(whole, all), 95.0, "%s: whole", p.name)
		assert.InEpsilon(t, sum, value, 0.05, "%s: value compared with the program's own", p.name)
		if p.nameless {
			continue
		}
		assert.GreaterOrEqual(t, percent(named, all), cmp.Or(p.named, 93), "%s: named; elsewhere %v", p.name, elsewhere)
		for i, f := range accountableFunctions {
			assert.InDelta(t, percent(truth[i], sum), percent(found[f], value), 3, "%s: share of %s", p.name, f)
		}
	}
	t.Logf("\n%s", table)
	if doc := os.Getenv("POLYGLOT_DOC"); doc != "" {
		writeTable(t, doc, folder+" table", table)
	}
	return arrived
}
