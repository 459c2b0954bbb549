//go:build e2e

package polyglot

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// waitingUser is whom the programs run as: only they are looked at, or the budget of stacks goes to whatever else waits on this machine.
const waitingUser = 54321

var waitingFunctions = []string{"heavy", "light", "rest"}

// account is what a program says of itself.
type account struct {
	at    int64 // nanoseconds since 1970
	spent [3]int64
}

// startWaiting builds and starts a program, and returns its PID and the file that it writes its accounts to.
func startWaiting(t *testing.T, w waiting) (pid int, accounts string) {
	t.Helper()
	dir := t.TempDir()
	in := func(args []string) *exec.Cmd {
		full := make([]string, len(args))
		for i, a := range args {
			full[i] = strings.ReplaceAll(a, "{}", dir)
		}
		cmd := exec.CommandContext(t.Context(), full[0], full[1:]...)
		cmd.Dir = "testdata/waits"
		return cmd
	}
	if w.build != nil {
		out, err := in(w.build).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	accounts = filepath.Join(dir, "accounts")
	f, err := os.Create(accounts)
	require.NoError(t, err)
	defer f.Close()
	cmd := in(w.command)
	cmd.Stdout, cmd.Stderr = f, os.Stderr
	for _, d := range []string{dir, filepath.Dir(dir)} {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: waitingUser, Gid: waitingUser}}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid, accounts
}

// between returns for how long a program has waited in its three functions from one time to another.
func between(t *testing.T, accounts string, from, to time.Time) (spent [3]int64) {
	t.Helper()
	f, err := os.Open(accounts)
	require.NoError(t, err)
	defer f.Close()
	var first, last account
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var a account
		if n, _ := fmt.Sscan(lines.Text(), &a.at, &a.spent[0], &a.spent[1], &a.spent[2]); n < 4 || a.at > to.UnixNano() {
			break
		}
		if a.at <= from.UnixNano() || first.at == 0 {
			first = a
		}
		last = a
	}
	for i := range spent {
		spent[i] = last.spent[i] - first.spent[i]
	}
	return spent
}

// TestWaits has programs in several languages wait under profile_offcpu: their stacks are whole and named, and the time is what the
// programs have measured themselves.
func TestWaits(t *testing.T) {
	gadget := igtest.Import(t, "profile_offcpu")
	pids, accounts := map[string]int{}, map[string]string{}
	for _, w := range waitingPrograms {
		pids[w.name], accounts[w.name] = startWaiting(t, w)
	}
	run := startRun(t, gadget, "--unwind=whole", fmt.Sprintf("--uid=%d", waitingUser))
	require.True(t, run.wait("the first waits", 3*time.Minute, func() bool { return run.counted(pids["c"], time.Time{}) > 0 }), "nothing arrives")
	// The files of the programs are read when they are first met. What is drawn of a program in this time has an error of 2 %.
	from := time.Now().Add(8 * time.Second)
	time.Sleep(time.Until(from.Add(90 * time.Second)))
	samples := ofProcess(run.stop())
	t.Logf("%s", run.log.String())

	for _, w := range waitingPrograms {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pids[w.name]))
		require.NoError(t, err)
		judge, err := newJudge(&loads.Program{Load: loads.Load{Name: w.name, Entry: w.entry, FrameType: w.frames}}, exe)
		require.NoError(t, err)
		var begin, end time.Time
		var all, whole, named int64
		found := map[string]int64{}
		for _, s := range samples[pids[w.name]] {
			if s.Start.Before(from) || s.Attributes["off_cpu.reason"] != "sleeping" {
				continue
			}
			if begin.IsZero() || s.Start.Before(begin) {
				begin = s.Start
			}
			if s.End.After(end) {
				end = s.End
			}
			has := func(function string) bool {
				return slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return loads.Is(f.Name, function) })
			}
			// Threads of runtimes wait, too, and not for the program.
			if w.name == "java" || w.name == "node" {
				if !has("work") {
					continue
				}
			}
			all += s.Total()
			if judge.complete(s.Stack) {
				whole += s.Total()
			}
			for _, f := range waitingFunctions {
				if has(f) && has("work") {
					named += s.Total()
					found[f] += s.Total()
				}
			}
		}
		if !assert.NotZero(t, all, "%s: no waits", w.name) {
			continue
		}
		truth := between(t, accounts[w.name], begin, end)
		sum := truth[0] + truth[1] + truth[2]
		share := func(n int64) float64 { return 100 * float64(n) / float64(max(all, 1)) }
		t.Logf("%-6s whole %5.1f %%, named %5.1f %%, value %5.1f %% of %v; 60/30/10: %.1f/%.1f/%.1f", w.name, share(whole), share(named),
			100*float64(named)/float64(max(sum, 1)), time.Duration(sum), share(found["heavy"]), share(found["light"]), share(found["rest"]))
		assert.GreaterOrEqual(t, share(whole), 95.0, "%s: whole", w.name)
		assert.GreaterOrEqual(t, share(named), 93.0, "%s: named", w.name)
		for i, f := range waitingFunctions {
			assert.InDelta(t, 100*float64(truth[i])/float64(max(sum, 1)), 100*float64(found[f])/float64(max(named, 1)), 3, "%s: share of %s", w.name, f)
		}
		assert.InEpsilon(t, sum, named, 0.05, "%s: value against the program's own account", w.name)
	}
}
