//go:build e2e

// Package docs runs the shell commands of the documentation unchanged.
//
// A block of ```sh is run in bash from the top of the repository, as root, with a Collector on this machine's standard ports. A
// command that does not end by itself is interrupted. Other blocks have a mark after their language that gives the reason, and
// their own test:
//
//	```sh cluster      needs Kubernetes: test/k8s runs it from the page
//	```sh elsewhere    needs another machine or the internet: TestElsewhere makes one
//	```sh long         takes too long for CI
//	```sh tested       another test runs it with the necessary files
//	```sh unrun        no test runs it, and the page says so
package docs

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
)

// runFor is how long a command that does not end by itself works before it is interrupted.
const runFor = 4 * time.Second

// stages are the commands that are separate CI stages.
func stages(t *testing.T, top string) []string {
	t.Helper()
	table, err := os.ReadFile(filepath.Join(top, ".ci/stages"))
	require.NoError(t, err)
	var found []string
	for _, m := range regexp.MustCompile(`(?m)^\S+ +(?:first|second|beside) +\S+ +(?:make|[.]ci/built) (.+)$`).FindAllStringSubmatch(string(table), -1) {
		for _, target := range strings.Fields(m[1]) {
			found = append(found, "make "+target)
		}
	}
	require.Contains(t, found, "make test")
	return found
}

// commands returns a block's lines without comments. It returns CI stages separately.
func (b block) commands(stages []string) (text string, left []string) {
	var lines []string
	for line := range strings.Lines(b.text) {
		command, _, _ := strings.Cut(line, " #")
		if command = strings.TrimSpace(command); slices.Contains(stages, command) {
			left = append(left, command)
			continue
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, ""), left
}

func TestCommands(t *testing.T) {
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	ci := stages(t, top)
	all := pages(t)
	env := prepare(t, top)
	ran := 0
	for _, b := range all {
		if b.mark != "" {
			t.Logf("not here, %s: %s", b.mark, b)
			continue
		}
		text, left := b.commands(ci)
		for _, command := range left {
			t.Logf("a stage of CI: %s: %s", b, command)
		}
		if strings.TrimSpace(regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(text, "")) == "" {
			continue
		}
		ran++
		t.Run(b.String(), func(t *testing.T) { env.run(t, b, text) })
	}
	require.Greater(t, ran, 5)
}

// environment is where commands are run.
type environment struct {
	top    string
	prefix []string
	vars   []string
}

// mounted is a script that mounts, in its own mount namespace, file systems that distributions mount at boot and sandboxes do not.
const mounted = `
mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug
mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
exec "$@"`

// prepare creates the environment that the pages assume. It consists of ig in the PATH, sudo, a Collector on the standard ports
// with the distribution's name, and a busy Python program.
func prepare(t *testing.T, top string) *environment {
	t.Helper()
	return prepareIn(t, top, startAround)
}

// prepareIn is like prepare, but with other programs.
func prepareIn(t *testing.T, top string, around func(t *testing.T, dir, bin string)) *environment {
	t.Helper()
	dir := t.TempDir()
	prefix := append([]string{"unshare", "--mount", "sh", "-ec", mounted, "sh"}, igrun.Prefix()...)
	bin := filepath.Join(top, "build/bin")
	if from := os.Getenv("E2E_BIN"); from != "" {
		bin = from
	}
	// Everything here already runs as root. Variables and a command follow sudo.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sudo"), []byte("#!/bin/sh\nexec env \"$@\"\n"), 0o755))
	around(t, dir, bin)
	return &environment{top: top, prefix: prefix, vars: append(os.Environ(), "PATH="+dir+":"+bin+":"+os.Getenv("PATH"))}
}

// startAround starts the Collector and the program.
func startAround(t *testing.T, dir, bin string) {
	t.Helper()
	collector := filepath.Join(dir, "otelcol-contrib")
	require.NoError(t, os.Link(filepath.Join(bin, "collector"), collector))
	config := filepath.Join(dir, "collector.yaml")
	require.NoError(t, os.WriteFile(config, []byte(`
receivers: {otlp: {protocols: {grpc: {endpoint: "127.0.0.1:4317"}, http: {endpoint: "127.0.0.1:4318"}}}}
exporters: {nop: {}}
service:
  telemetry: {metrics: {level: none}, logs: {level: warn}}
  pipelines: {profiles: {receivers: [otlp], exporters: [nop]}}
`), 0o600))
	if conn, err := net.Dial("tcp", "127.0.0.1:4317"); err == nil {
		require.Failf(t, "port 4317 is taken", "another program listens at %s: end it first", conn.RemoteAddr())
	}
	start(t, exec.Command(collector, "--config", config, "--feature-gates=service.profilesSupport"))

	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:4317")
		return err == nil && conn.Close() == nil
	}, time.Minute, 100*time.Millisecond, "the Collector does not listen")

	program := filepath.Join(dir, "shop.py")
	require.NoError(t, os.WriteFile(program, []byte(`
import time
def work():
    for i in range(20000): pass
while True:
    work()
    time.sleep(0.001)
`), 0o600))
	start(t, exec.Command("python3", program))
}

// start runs a program until the end of the test.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
}

// run runs the commands of a block. They must succeed.
func (e *environment) run(t *testing.T, b block, text string) {
	if tag := os.Getenv("GADGET_TAG"); tag != "" {
		// Another clone can build this project's images with another tag. Inspektor Gadget's images keep their tags.
		text = regexp.MustCompile(`(^|[\s/])(profile_[a-z]+):dev`).ReplaceAllString(text, "${1}${2}:"+tag)
	}
	t.Cleanup(func() {
		for _, pattern := range []string{"build/before", "build/after", "build/difference-before-after.html", "profile-[0-9]*-*-*"} {
			made, err := filepath.Glob(filepath.Join(e.top, pattern))
			require.NoError(t, err)
			for _, file := range made {
				require.NoError(t, os.RemoveAll(file))
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	argv := append(slices.Clone(e.prefix), "bash", "-euo", "pipefail", "-c", text)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = e.top, e.vars
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go interruptEndless(cmd.Process.Pid, ended)
	err := cmd.Wait()
	close(ended)
	t.Logf("%s\n%s", text, tail(output.String()))
	require.NoError(t, err)
}

// interruptEndless waits, and then interrupts the commands that run until Ctrl-C.
func interruptEndless(group int, ended <-chan struct{}) {
	since := map[int]time.Time{}
	for {
		select {
		case <-ended:
			return
		case <-time.After(time.Second):
		}
		for _, pid := range members(group) {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err != nil {
				continue
			}
			args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
			if !endless(args) || !started(pid, args) {
				continue
			}
			if since[pid].IsZero() {
				since[pid] = time.Now()
			}
			if time.Since(since[pid]) > runFor {
				_ = syscall.Kill(pid, syscall.SIGINT) // it may have ended
				since[pid] = time.Now()
			}
		}
	}
}

// endless reports whether a command runs until it is interrupted.
func endless(args []string) bool {
	if len(args) < 2 {
		return false
	}
	switch filepath.Base(args[0]) {
	case "ig":
		return slices.Contains(args, "run") && !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--timeout") })
	case "profile":
		return args[1] == "open"
	}
	return false
}

// started reports whether an endless command has begun its work. ig ends with an error if it is interrupted before its gadget
// is loaded. On a busy machine, loading takes longer than runFor. A loaded gadget has a program in the kernel. ig can have
// samplers and links earlier, to notice new processes.
func started(pid int, args []string) bool {
	if filepath.Base(args[0]) != "ig" {
		return true
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(files, func(file string) bool {
		to, _ := os.Readlink(file) // it may have been closed
		return strings.Contains(to, "bpf-prog")
	})
}

// members returns the processes of a group.
func members(group int) []int {
	output, err := exec.Command("pgrep", "-g", fmt.Sprint(group)).Output()
	if err != nil {
		return nil
	}
	var pids []int
	for field := range strings.FieldsSeq(string(output)) {
		var pid int
		if _, err := fmt.Sscan(field, &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
