//go:build e2e

// Package profile runs the command profile on programs with known profiles, through the real kernel.
package profile

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// command returns a command that runs the built program profile.
func command(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return igrun.Command(ctx, igtest.Built(t, igtest.Bin, "profile"), args...)
}

// run returns a command's output. It fails unless the command succeeds or fails as expected.
func run(t *testing.T, succeeds bool, args ...string) string {
	t.Helper()
	output, err := command(t.Context(), t, args...).CombinedOutput()
	t.Logf("profile %s\n%s", strings.Join(args, " "), output)
	if succeeds {
		require.NoError(t, err)
	} else {
		require.Error(t, err)
	}
	return string(output)
}

// runUntil interrupts a run once its folder contains enough samples, and returns the output.
func runUntil(t *testing.T, dir string, enough func([]receiver.Sample) bool, args ...string) string {
	t.Helper()
	cmd := command(t.Context(), t, append(args, "--seconds", "600", "-o", dir)...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Wait() // ended by the test
		if t.Failed() {
			t.Logf("profile said:\n%s", said.String())
		}
	})
	size := -1
	require.Eventually(t, func() bool {
		written, _ := os.ReadFile(filepath.Join(dir, "profiles.jsonl")) // it may not be there yet
		written = written[:bytes.LastIndexByte(written, '\n')+1]
		if len(written) == size { // resolving takes CPU time
			return false
		}
		size = len(written)
		requests, err := receiver.ReadJSONLines(bytes.NewReader(written))
		if err != nil {
			return false
		}
		return enough(receiver.ResolveAll(requests))
	}, 4*time.Minute, 200*time.Millisecond, "not enough has come")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.NoError(t, cmd.Wait(), said.String())
	t.Logf("%s", said.String())
	return said.String()
}

// start runs a program with known shares, and returns its PID.
func start(t *testing.T, name string) (loads.Load, string) {
	t.Helper()
	process, err := loads.Run(t.Context(), name, t.TempDir(), loads.DefaultLimit)
	require.NoError(t, err)
	t.Cleanup(func() { process.Stop() })
	return process.Load, fmt.Sprint(process.PID)
}

// self returns a function's own share in the table, in percent. If the function is missing, it returns 0.
func self(t *testing.T, table, function string) (percent float64) {
	t.Helper()
	m := regexp.MustCompile(`(?m)^ *([0-9.]+)%(?: ±\d+)? +[0-9.]+% +[0-9.]+ +\d+  .*` + regexp.QuoteMeta(function) + `(\(.*\))?( .*)?$`).FindStringSubmatch(table)
	if m == nil {
		return 0
	}
	_, err := fmt.Sscan(m[1], &percent)
	require.NoError(t, err)
	return percent
}

// TestOwnService requires that the tables of C, Go and Python programs list functions in the order of their shares.
func TestOwnService(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, gadget string }{{"c-fp", "cpu"}, {"go", "cpu"}, {"python", "cpu"}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			load, pid := start(t, tc.name)
			dir := filepath.Join(t.TempDir(), "result")
			// With this many samples, a share of 50 % certainly ranks above a share of 30 %.
			table := runUntil(t, dir, func(samples []receiver.Sample) bool {
				n := int64(0)
				for _, s := range samples {
					if slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool {
						return loads.Is(f.Name, load.Shares[0].Function) || loads.Is(f.Name, load.Shares[1].Function)
					}) {
						n += s.Total()
					}
				}
				return n > 400
			}, "--pid", pid, "--gadget", tc.gadget)
			require.Len(t, load.Shares, 3)
			first, second := self(t, table, load.Shares[0].Function), self(t, table, load.Shares[1].Function)
			require.Greater(t, first, second)
			require.Positive(t, second)
			for _, file := range []string{"flamegraph.html", "profiles.jsonl", "run.json", "profile.pb.gz"} {
				require.FileExists(t, filepath.Join(dir, file))
			}
		})
	}
}

// TestDefaultGadget requires that the default gadget can run on this machine.
func TestDefaultGadget(t *testing.T) {
	t.Parallel()
	_, pid := start(t, "c-fp")
	said := run(t, true, "--pid", pid, "--seconds", "10", "-o", filepath.Join(t.TempDir(), "result"))
	require.Contains(t, said, "with profile_cpu:")
	require.NotContains(t, said, "not available here")
}

// TestNothing requires that a run that matches nothing fails and reports the reason.
func TestNothing(t *testing.T) {
	t.Parallel()
	// The program is busy while the gadget starts, and is stopped afterwards.
	_, pid := start(t, "c-fp")
	dir := filepath.Join(t.TempDir(), "result")
	cmd := command(t.Context(), t, "--pid", pid, "--seconds", "2", "--gadget", "cpu", "-o", dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		t.Log(lines.Text())
		if strings.Contains(lines.Text(), "starting the gadget") {
			number, err := strconv.Atoi(pid)
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(number, syscall.SIGSTOP))
		}
	}
	require.Error(t, cmd.Wait())
	require.Contains(t, stderr.String(), "used no CPU time in 2 s: --gadget offcpu shows its waits")
	require.Contains(t, run(t, false, "--pid", "999999999", "-o", dir), "there is no process 999999999")
}

// TestInterrupt requires that the samples up to Ctrl-C are reported. It then compares and serves the result.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	_, pid := start(t, "c-fp")
	dir := filepath.Join(t.TempDir(), "result")
	said := runUntil(t, dir, func(samples []receiver.Sample) bool { return len(samples) > 0 }, "--pid", pid, "--gadget", "cpu")
	require.Contains(t, said, "stopped early")
	require.Contains(t, said, "SELF")

	page := filepath.Join(t.TempDir(), "difference.html")
	require.Contains(t, run(t, true, "diff", dir, dir, "-o", page), "no difference")
	require.FileExists(t, page)

	ctx, cancel := context.WithCancel(t.Context())
	server := command(ctx, t, "open", "--port", "0", dir)
	output, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	line := make([]byte, 200)
	n, err := output.Read(line)
	require.NoError(t, err)
	url := strings.Fields(string(line[:n]))[0]
	response, err := http.Get(url)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	cancel()
	_ = server.Wait() // interrupted
}

// igOf returns the PIDs of the ig processes that sample a process.
func igOf(t *testing.T, pid string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range files {
		args, err := os.ReadFile(file)
		if err == nil && strings.HasPrefix(string(args), filepath.Join(os.Getenv("E2E_BIN"), "ig")+"\x00") && strings.Contains(string(args), "\x00--pid="+pid+"\x00") {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

// TestGone requires that nothing keeps running, and that no result is lost, if the reader of the output or the terminal goes away.
// A killed profile can write nothing, but its ig must also end.
func TestGone(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		leave   func(*exec.Cmd, interface{ Close() error }) error
		seconds string
		written bool
	}{
		{"reader", func(_ *exec.Cmd, out interface{ Close() error }) error { return out.Close() }, "5", true},
		{"terminal", func(cmd *exec.Cmd, _ interface{ Close() error }) error { return cmd.Process.Signal(syscall.SIGHUP) }, "600", true},
		{"killed", func(cmd *exec.Cmd, _ interface{ Close() error }) error { return cmd.Process.Kill() }, "600", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, pid := start(t, "c-fp")
			dir := filepath.Join(t.TempDir(), "result")
			signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)         // otherwise, below nohup, the program inherits that SIGHUP is ignored
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // it must end before --seconds
			defer cancel()
			cmd := command(ctx, t, "--pid", pid, "--seconds", tc.seconds, "-o", dir)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			for lines := bufio.NewScanner(out); lines.Scan() && !sampling.MatchString(lines.Text()); { // until it samples
			}
			require.Len(t, igOf(t, pid), 1)
			require.NoError(t, tc.leave(cmd, out))
			_ = cmd.Wait()
			if tc.written {
				require.FileExists(t, filepath.Join(dir, "flamegraph.html"), stderr.String())
			}
			require.Eventually(t, func() bool { return len(igOf(t, pid)) == 0 }, time.Minute, 100*time.Millisecond)
		})
	}
}

var sampling = regexp.MustCompile(`… ([2-9]|\d\d+) of \d+ s`)
