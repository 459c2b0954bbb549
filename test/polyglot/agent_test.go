//go:build e2e

package polyglot

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// tracefs runs a command with the file system that tracepoints are found in. ig mounts it by itself.
const tracefs = `mountpoint -q /sys/kernel/tracing || mount -t tracefs nodev /sys/kernel/tracing; exec "$@"`

// startAgent starts the eBPF profiler's own agent, which samples everything on the machine.
func startAgent(t *testing.T, hz string, flags ...string) *gadgetRun {
	t.Helper()
	run, dir := newRun(t)
	args := []string{
		"unshare", "--mount", "sh", "-c", tracefs, "sh",
		built(t, "E2E_BIN", "ebpf-profiler"), "-collection-agent", run.receiver.Addr(), "-disable-tls",
		"-samples-per-second", hz,
	}
	run.start(dir, append(args, flags...))
	return run
}

// TestAgentTruth shows what the eBPF profiler's own agent finds of the same programs.
func TestAgentTruth(t *testing.T) {
	judgeRun(t, "agent", startAgent(t, frequency, "-reporter-interval", "2s"), buildLoads(t, measured()))
}

var (
	agentWindow   = flag.Duration("agent-window", time.Minute, "how long TestAgentCost measures each profiler")
	agentRounds   = flag.Int("agent-rounds", 2, "how often TestAgentCost measures each profiler")
	agentProfiles = flag.String("agent-profiles", "", "folder for profiles of the profilers' own processes, after they were measured")
)

// keepProfile writes what a process burns CPU time in.
func keepProfile(t *testing.T, dir string, pid int) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), built(t, "E2E_BIN", "profile"), "--pid", strconv.Itoa(pid), "--gadget", "cpu", "--seconds", "20", "-o", dir, "--", "--frequency", "997").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s:\n%s", dir, out)
}

// cost is what a profiler takes.
type cost struct {
	name                 string
	start                time.Duration // to the first request
	samples, bytes       int64
	user, system, kernel float64 // seconds of CPU time, kernel that of eBPF programs in whoever they interrupt
	resident, maps       int64   // bytes
	seconds              float64
}

// usage is the CPU time of a process and of the children that it has, in seconds of user and of kernel.
func usage(t *testing.T, pids ...int) (user, system float64) {
	t.Helper()
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(t, err)
		_, tail, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(tail)
		u, err := strconv.ParseFloat(fields[11], 64)
		require.NoError(t, err)
		s, err := strconv.ParseFloat(fields[12], 64)
		require.NoError(t, err)
		user, system = user+u/100, system+s/100
	}
	return user, system
}

// bpf adds up what the file descriptors of processes say: the memory of maps, each once, and the time of programs.
func bpf(t *testing.T, pids ...int) (maps int64, seconds float64) {
	t.Helper()
	seen := map[string]bool{}
	for _, pid := range pids {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			info := map[string]string{}
			for line := range strings.Lines(string(text)) {
				key, value, _ := strings.Cut(line, ":")
				info[key] = strings.TrimSpace(value)
			}
			number := func(key string) float64 {
				n, _ := strconv.ParseFloat(strings.Fields(info[key] + " 0")[0], 64)
				return n
			}
			if id := info["map_id"]; id != "" && info["map_type"] != "" && !seen["m"+id] {
				seen["m"+id] = true
				maps += int64(number("memlock"))
			}
			if id := info["prog_id"]; id != "" && info["prog_type"] != "" && info["link_type"] == "" && !seen["p"+id] {
				seen["p"+id] = true
				seconds += number("run_time_ns") / 1e9
			}
		}
	}
	return maps, seconds
}

// measure runs a profiler for a while and tells what it takes once it has started.
func measure(t *testing.T, name string, r *gadgetRun, window time.Duration) cost {
	t.Helper()
	c := cost{name: name}
	require.True(t, r.wait("the first samples", 3*time.Minute, func() bool { return r.receiver.Stats().Samples > 0 }))
	c.start = time.Since(r.started)
	pids := []int{r.cmd.Process.Pid}
	if pid := r.unwinderPID(); pid != 0 {
		pids = append(pids, pid)
	}
	time.Sleep(3 * time.Second)
	began, before := time.Now(), r.receiver.Stats()
	samples := total(r.receiver.Samples())
	user, system := usage(t, pids...)
	_, kernel := bpf(t, pids...)
	time.Sleep(window)
	user1, system1 := usage(t, pids...)
	maps, kernel1 := bpf(t, pids...)
	c.seconds = time.Since(began).Seconds()
	c.user, c.system, c.kernel, c.maps = user1-user, system1-system, kernel1-kernel, maps
	for _, pid := range pids {
		c.resident += resident(pid)
	}
	c.bytes, c.samples = r.receiver.Stats().Bytes-before.Bytes, total(r.receiver.Samples())-samples
	if *agentProfiles != "" {
		for _, pid := range pids {
			keepProfile(t, fmt.Sprintf("%s/%s-%d", *agentProfiles, strings.ReplaceAll(name, " ", "-"), pid), pid)
		}
	}
	r.stop()
	t.Logf("%s: %+v", name, c)
	return c
}

// TestAgentCost runs profile_polyglot, without names of native functions and with them, and the eBPF profiler's own agent in turn on
// the same programs, at the same frequency, with the same languages, and writes what each takes.
func TestAgentCost(t *testing.T) {
	const hz = "49"
	require.NoError(t, os.WriteFile("/proc/sys/kernel/bpf_stats_enabled", []byte("1"), 0))
	t.Cleanup(func() { _ = os.WriteFile("/proc/sys/kernel/bpf_stats_enabled", []byte("0"), 0) })
	for _, p := range buildLoads(t, find(t, "python", "java", "c")) {
		r, err := p.Start(t.Context(), loads.DefaultLimit)
		require.NoError(t, err)
		t.Cleanup(func() { r.Stop() })
	}
	polyglot := image(t, "profile_polyglot")
	flags := []string{"--frequency=" + hz, "--format-stacks=false", "--otel-profiles-interval=5s"}
	var costs []cost
	for range *agentRounds {
		costs = append(costs,
			measure(t, "the agent", startAgent(t, hz), *agentWindow),
			measure(t, "profile_polyglot without names of native functions", startRun(t, polyglot, append(flags, "--native-names=false")...), *agentWindow),
			measure(t, "profile_polyglot", startRun(t, polyglot, flags...), *agentWindow))
	}
	var b strings.Builder
	b.WriteString("| | samples | CPU of its processes, user, ms per 1,000 samples | kernel | eBPF programs | resident memory | eBPF maps | to the first request | bytes a sample |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range costs {
		per := func(seconds float64) float64 { return seconds * 1e6 / float64(max(c.samples, 1)) }
		fmt.Fprintf(&b, "| %s | %d | %.0f | %.0f | %.0f | %d MiB | %d MiB | %.1f s | %.0f |\n", c.name, c.samples,
			per(c.user), per(c.system), per(c.kernel), c.resident>>20, c.maps>>20, c.start.Seconds(), float64(c.bytes)/float64(max(c.samples, 1)))
		require.Positive(t, c.samples)
	}
	t.Logf("\n%s", b.String())
	if doc := os.Getenv("POLYGLOT_DOC"); doc != "" {
		writeTable(t, doc, "agent table", strings.Replace(header(t, hz), "make test-polyglot", "make test-agent", 1)+b.String())
	}
}
