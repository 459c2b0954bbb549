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

// waiting is a program whose main thread waits 60, 30 and 10 % of its time in three functions.
type waiting struct {
	name    string
	entry   string   // the language's outermost function
	frames  string   // the type of the language's frames
	build   []string // {} is the folder of what is built
	command []string
}

var waitingPrograms = []waiting{
	{"c", "main", "native", []string{"gcc", "-O2", "-fomit-frame-pointer", "-o", "{}/wait-c", "wait.c"}, []string{"{}/wait-c"}},
	{"c++", "main", "native", []string{"g++", "-O2", "-fomit-frame-pointer", "-o", "{}/wait-cpp", "wait.cpp"}, []string{"{}/wait-cpp"}},
	{"rust", "main", "native", []string{"rustc", "-Copt-level=2", "-o", "{}/wait-rust", "wait.rs"}, []string{"{}/wait-rust"}},
	{"python", "<module>", "cpython", nil, []string{"/usr/bin/python3", "wait.py"}},
	{"php", "<top-level>", "php", nil, []string{"php", "wait.php"}},
	{"node", "<anonymous>", "v8js", nil, []string{"node", "wait.js"}},
	{"java", "main", "jvm", []string{"javac", "-d", "{}", "Wait.java"}, []string{"java", "-cp", "{}", "Wait"}},
}

const waitsDir = "testdata/waits"

// waitingUser is whom the programs run as: only they are looked at, or the budget of stacks goes to whatever else waits on this machine.
const waitingUser = 54321

var waitingFunctions = []string{"heavy", "light", "rest"}

// waitRounds are of 0.15 seconds. A round has so few waits that a CPU's budget of stacks has room for nearly all of them: the
// sums vary by less than 1 %.
const waitRounds = 400

// waiter is a waiting program that runs.
type waiter struct {
	pid   int
	judge *judge
	said  *igtest.Buffer
	ended chan error
}

// buildWaiting builds a program, and returns its command.
func buildWaiting(t *testing.T, w waiting) []string {
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
	if w.build != nil {
		build := in(w.build)
		cmd := exec.CommandContext(t.Context(), build[0], build[1:]...)
		cmd.Dir = waitsDir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return in(w.command)
}

// startWaiting starts a program for a number of rounds.
func startWaiting(t *testing.T, w waiting, command []string, rounds int) *waiter {
	t.Helper()
	r := &waiter{said: &igtest.Buffer{}, ended: make(chan error, 1)}
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], strconv.Itoa(rounds))...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = waitsDir, r.said, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: waitingUser, Gid: waitingUser}}
	require.NoError(t, cmd.Start())
	go func() { r.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-r.ended
	})
	r.pid = cmd.Process.Pid
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", r.pid))
	require.NoError(t, err)
	r.judge, err = newJudge(&loads.Program{Load: loads.Load{Name: w.name, Entry: w.entry, FrameType: w.frames}}, exe)
	require.NoError(t, err)
	return r
}

// end waits for a program's end, and returns for how long it has waited in its three functions.
func (r *waiter) end(t *testing.T) (spent [3]int64, sum int64) {
	t.Helper()
	err := <-r.ended
	r.ended <- err
	require.NoError(t, err)
	_, err = fmt.Sscan(r.said.String(), &spent[0], &spent[1], &spent[2])
	require.NoError(t, err, "%s", r.said)
	return spent, spent[0] + spent[1] + spent[2]
}

func through(s receiver.Sample, function string) bool {
	return slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return loads.Is(f.Name, function) })
}

// TestWaits has programs in several languages wait under profile_offcpu: their stacks are whole and named, and the time is what the
// programs have measured themselves.
func TestWaits(t *testing.T) {
	gadget := igtest.Import(t, "profile_offcpu")
	run := startRun(t, gadget, "--unwind=whole", fmt.Sprintf("--uid=%d", waitingUser))
	// The unwinder reads the files of a program when it first meets it. So others of the same files run before those that are measured.
	commands, before := map[string][]string{}, map[int]bool{}
	for _, w := range waitingPrograms {
		commands[w.name] = buildWaiting(t, w)
		before[startWaiting(t, w, commands[w.name], 2*waitRounds).pid] = true
	}
	known := func() bool {
		named := map[int]bool{}
		for pid, samples := range ofProcess(run.receiver.Samples()) {
			if before[pid] && slices.ContainsFunc(samples, func(s receiver.Sample) bool { return through(s, "work") }) {
				named[pid] = true
			}
		}
		return len(named) == len(before)
	}
	require.True(t, run.wait("the first waits", time.Minute, known), "not all programs have arrived with their names")
	for pid := range before {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	running := map[string]*waiter{}
	for _, w := range waitingPrograms {
		running[w.name] = startWaiting(t, w, commands[w.name], waitRounds)
	}
	spent, sums := map[string][3]int64{}, map[string]int64{}
	for name, r := range running {
		spent[name], sums[name] = r.end(t)
	}
	samples := ofProcess(run.stop())
	t.Logf("%s", run.log)

	for _, w := range waitingPrograms {
		var all, whole, named, value int64
		found := map[string]int64{}
		for _, s := range samples[running[w.name].pid] {
			n := s.Total()
			for _, f := range waitingFunctions {
				if through(s, f) && through(s, "work") {
					value += n
					found[f] += n
					if s.Attributes["off_cpu.reason"] == "sleeping" {
						named += n
					}
				}
			}
			// Threads of runtimes wait, too, and not for the program.
			if s.Attributes["off_cpu.reason"] != "sleeping" || (w.name == "java" || w.name == "node") && !through(s, "work") {
				continue
			}
			all += n
			if running[w.name].judge.complete(s.Stack) {
				whole += n
			}
		}
		if !assert.NotZero(t, all, "%s: no waits", w.name) {
			continue
		}
		truth, sum := spent[w.name], sums[w.name]
		t.Logf("%-6s whole %5.1f %%, named %5.1f %%, value %5.1f %% of %v; 60/30/10: %.1f/%.1f/%.1f", w.name, percent(whole, all), percent(named, all),
			percent(value, sum), time.Duration(sum), percent(found["heavy"], value), percent(found["light"], value), percent(found["rest"], value))
		assert.GreaterOrEqual(t, percent(whole, all), 95.0, "%s: whole", w.name)
		assert.GreaterOrEqual(t, percent(named, all), 93.0, "%s: named", w.name)
		for i, f := range waitingFunctions {
			assert.InDelta(t, percent(truth[i], sum), percent(found[f], value), 3, "%s: share of %s", w.name, f)
		}
		assert.InEpsilon(t, sum, value, 0.05, "%s: value against the program's own account", w.name)
	}
}
