//go:build e2e

package polyglot

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// accountable is a program that does something in three functions, 60, 30 and 10 % of it, and says itself how much. Its only argument is how
// many rounds it makes.
type accountable struct {
	name    string
	entry   string   // the language's outermost function
	frames  string   // the type of the language's frames
	build   []string // {} is the folder of what is built
	command []string
	named   float64 // the least share that has to be named, in percent
	// mixed: the runtime does the same, and not for the program.
	mixed bool
}

var waitingPrograms = []accountable{
	{"c", "main", "native", []string{"gcc", "-O2", "-fomit-frame-pointer", "-o", "{}/wait-c", "wait.c"}, []string{"{}/wait-c"}, 93, false},
	{"c++", "main", "native", []string{"g++", "-O2", "-fomit-frame-pointer", "-o", "{}/wait-cpp", "wait.cpp"}, []string{"{}/wait-cpp"}, 93, false},
	{"rust", "main", "native", []string{"rustc", "-Copt-level=2", "-o", "{}/wait-rust", "wait.rs"}, []string{"{}/wait-rust"}, 93, false},
	{"python", "<module>", "cpython", nil, []string{"/usr/bin/python3", "wait.py"}, 93, false},
	{"php", "<top-level>", "php", nil, []string{"php", "wait.php"}, 93, false},
	{"node", "<anonymous>", "v8js", nil, []string{"node", "wait.js"}, 93, true},
	{"java", "main", "jvm", []string{"javac", "-d", "{}", "Wait.java"}, []string{"java", "-cp", "{}", "Wait"}, 93, true},
}

var touchingPrograms = []accountable{
	{"c", "main", "native", []string{"gcc", "-O2", "-fomit-frame-pointer", "-o", "{}/touch-c", "touch.c"}, []string{"{}/touch-c"}, 93, false},
	{"c++", "main", "native", []string{"g++", "-O2", "-fomit-frame-pointer", "-o", "{}/touch-cpp", "touch.cpp"}, []string{"{}/touch-cpp"}, 93, false},
	{"rust", "main", "native", []string{"rustc", "-Copt-level=2", "-o", "{}/touch-rust", "touch.rs"}, []string{"{}/touch-rust"}, 93, false},
	{"python", "<module>", "cpython", nil, []string{"/usr/bin/python3", "touch.py"}, 93, false},
	{"node", "<anonymous>", "v8js", nil, []string{"node", "touch.js"}, 93, true},
	{"java", "main", "jvm", []string{"javac", "-nowarn", "-d", "{}", "Touch.java"}, []string{"java", "-cp", "{}", "Touch"}, 88, true},
}

// accountableUser is whom the programs run as: only they are looked at, or the budget of stacks goes to whatever else runs on this machine.
const accountableUser = 54321

var accountableFunctions = []string{"heavy", "light", "rest"}

// accounting is an accountable program that runs.
type accounting struct {
	pid   int
	judge *judge
	said  *igtest.Buffer
	ended chan error
}

// buildIn builds a program whose sources are in a folder, and returns its command.
func (a accountable) buildIn(t *testing.T, folder string) []string {
	t.Helper()
	dir := t.TempDir()
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
		cmd.Dir = folder
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return in(a.command)
}

// startIn starts a program for a number of rounds.
func (a accountable) startIn(t *testing.T, folder string, command []string, rounds int) *accounting {
	t.Helper()
	r := &accounting{said: &igtest.Buffer{}, ended: make(chan error, 1)}
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], strconv.Itoa(rounds))...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, r.said, os.Stderr
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

// end waits for a program's end, and returns what it says of its three functions.
func (r *accounting) end(t *testing.T) (own [3]int64, sum int64) {
	t.Helper()
	err := <-r.ended
	r.ended <- err
	require.NoError(t, err)
	_, err = fmt.Sscan(r.said.String(), &own[0], &own[1], &own[2])
	require.NoError(t, err, "%s", r.said)
	return own, own[0] + own[1] + own[2]
}

func through(s receiver.Sample, function string) bool {
	return slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return loads.Is(f.Name, function) })
}

// TestWaits: of programs that wait in several languages, profile_offcpu has whole and named stacks, and the time that they measure. A round takes
// 0.15 seconds. It has so few waits that a CPU's budget of stacks has room for nearly all of them.
func TestWaits(t *testing.T) {
	sleeping := func(s receiver.Sample) bool { return s.Attributes["off_cpu.reason"] == "sleeping" }
	arrived := testAccounts(t, "profile_offcpu", "testdata/waits", waitingPrograms, 400, sleeping)
	for name, samples := range arrived {
		calls := map[string]int64{}
		for _, s := range samples {
			if sleeping(s) && through(s, "heavy") {
				calls[s.Attributes["off_cpu.syscall"]] += s.Total()
			}
		}
		call := "sleep"
		if name == "node" || name == "java" {
			call = "futex"
		}
		assert.Len(t, calls, 1, "%s", name)
		assert.NotZero(t, calls[call], "%s: %v", name, calls)
	}
}

// TestFaults: of programs that touch fresh memory, profile_pagefault has whole and named stacks, and as many faults as they touch pages. So
// many rounds take a minute and more: of one program some thousand faults are drawn in that, and sums vary by little more than 1 %.
func TestFaults(t *testing.T) {
	testAccounts(t, "profile_pagefault", "testdata/faults", touchingPrograms, 1000,
		func(s receiver.Sample) bool { return s.Attributes["page_fault.access"] == "write" })
}

// testAccounts compares what a gadget says of programs with what they say themselves. kind says which samples have to be whole and named. It
// returns the samples by program.
func testAccounts(t *testing.T, gadget, folder string, programs []accountable, rounds int, kind func(receiver.Sample) bool) map[string][]receiver.Sample {
	run := startRun(t, igtest.Import(t, gadget), "--unwind=whole", fmt.Sprintf("--uid=%d", accountableUser))
	// The unwinder reads the files of a program when it first meets it. So others of the same files run before those that count.
	commands, before := map[string][]string{}, map[int]bool{}
	for _, p := range programs {
		commands[p.name] = p.buildIn(t, folder)
		before[p.startIn(t, folder, commands[p.name], 10*rounds).pid] = true
	}
	known := func() bool {
		named := 0
		for pid, samples := range ofProcess(run.receiver.Samples()) {
			if before[pid] && slices.ContainsFunc(samples, func(s receiver.Sample) bool { return through(s, "work") }) {
				named++
			}
		}
		return named == len(before)
	}
	require.True(t, run.wait("the first stacks", time.Minute, known), "not all programs have arrived with their names")
	for pid := range before {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	running := map[string]*accounting{}
	for _, p := range programs {
		running[p.name] = p.startIn(t, folder, commands[p.name], rounds)
	}
	own, sums := map[string][3]int64{}, map[string]int64{}
	for name, r := range running {
		own[name], sums[name] = r.end(t)
	}
	samples := ofProcess(run.stop())
	t.Logf("%s", run.log)

	arrived := map[string][]receiver.Sample{}
	for _, p := range programs {
		arrived[p.name] = samples[running[p.name].pid]
		var all, whole, named, value int64
		found, elsewhere := map[string]int64{}, map[string]int64{}
		for _, s := range samples[running[p.name].pid] {
			n, counts := s.Total(), kind(s) && (!p.mixed || through(s, "work"))
			in := slices.IndexFunc(accountableFunctions, func(f string) bool { return through(s, f) && through(s, "work") })
			if in >= 0 {
				value += n
				found[accountableFunctions[in]] += n
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
		t.Logf("%-6s whole %5.1f %%, named %5.1f %%, value %5.1f %% of %d; 60/30/10: %.1f/%.1f/%.1f", p.name, percent(whole, all), percent(named, all),
			percent(value, sum), sum, percent(found["heavy"], value), percent(found["light"], value), percent(found["rest"], value))
		assert.GreaterOrEqual(t, percent(whole, all), 95.0, "%s: whole", p.name)
		assert.GreaterOrEqual(t, percent(named, all), p.named, "%s: named; elsewhere %v", p.name, elsewhere)
		for i, f := range accountableFunctions {
			assert.InDelta(t, percent(truth[i], sum), percent(found[f], value), 3, "%s: share of %s", p.name, f)
		}
		assert.InEpsilon(t, sum, value, 0.05, "%s: value against the program's own account", p.name)
	}
	return arrived
}
