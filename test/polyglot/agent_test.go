//go:build e2e

package polyglot

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// tracefs runs a command with a mounted tracefs, which ig mounts itself.
const tracefs = `mountpoint -q /sys/kernel/tracing || mount -t tracefs nodev /sys/kernel/tracing; exec "$@"`

// startAgent starts the eBPF profiler's own agent, which samples the whole machine.
func startAgent(t *testing.T, hz string, flags ...string) *gadgetRun {
	t.Helper()
	run, dir := newRun(t)
	prlimit := filepath.Join(dir, "prlimit")
	igtest.Output(t, "gcc", "-O1", "-Wall", "-o", prlimit, "../agent/prlimit.c")
	args := []string{
		"unshare", "--mount", "sh", "-c", tracefs, "sh", prlimit,
		igtest.Built(t, igtest.Bin, "ebpf-profiler"), "-collection-agent", run.receiver.Addr(), "-disable-tls",
		"-samples-per-second", hz,
	}
	run.start(append(args, flags...))
	return run
}

// TestAgentTruth shows the results of the eBPF profiler's own agent for the same programs.
func TestAgentTruth(t *testing.T) {
	judgeRun(t, "agent", startAgent(t, frequency, "-reporter-interval", "2s"), buildLoads(t, measured()))
}

var (
	agentWindow   = flag.Duration("agent-window", time.Minute, "how long TestAgentCost measures")
	agentProfiles = flag.String("agent-profiles", "", "folder for profiles of the profilers' own processes, after they were measured")
)

// keepProfile writes a CPU profile of a process.
func keepProfile(t *testing.T, dir string, pid int) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), igtest.Built(t, igtest.Bin, "profile"), "--pid", strconv.Itoa(pid), "--gadget", "cpu", "--gadgets", os.Getenv("E2E_GADGETS"), "--seconds", "20", "-o", dir, "--", "--frequency", "997").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s:\n%s", dir, out)
}

// cost is the cost of a profiler.
type cost struct {
	start                time.Duration // until the first request
	samples, bytes       int64
	user, system, kernel float64 // seconds of CPU time; kernel is that of eBPF programs, in the processes that they interrupt
	resident, maps       int64   // bytes
}

// usage returns the CPU time of processes and of their children, in seconds of user and of kernel time.
func usage(t *testing.T, pids ...int) (user, system float64) {
	t.Helper()
	for _, pid := range pids {
		stat, ok := procfs.Stat("/proc", uint32(pid), 14, 15)
		require.True(t, ok, "process %d has exited", pid)
		user, system = user+float64(stat[0])/100, system+float64(stat[1])/100
	}
	return user, system
}

// bpf adds up the information of processes' file descriptors: the memory of maps, each once, and the time of programs.
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

// contender is a profiler that is measured.
type contender struct {
	name  string
	start func() *gadgetRun
	run   *gadgetRun
	pids  []int
	last  cost
	sum   cost // of all passes
}

// begin starts it and waits for its first samples.
func (c *contender) begin(t *testing.T) {
	t.Helper()
	c.run = c.start()
	require.True(t, c.run.wait("the first samples", patience, func() bool { return c.run.receiver.Stats().Samples > 0 }))
	c.sum.start = max(c.sum.start, time.Since(c.run.started))
	c.pids = []int{c.run.cmd.Process.Pid}
	if pid := c.run.unwinderPID(); pid != 0 {
		c.pids = append(c.pids, pid)
	}
}

// look reads the cost so far, and adds the difference to the last reading.
func (c *contender) look(t *testing.T, first bool) {
	t.Helper()
	var now cost
	now.user, now.system = usage(t, c.pids...)
	now.maps, now.kernel = bpf(t, c.pids...)
	now.bytes, now.samples = c.run.receiver.Stats().Bytes, igtest.Total(c.run.receiver.Samples())
	for _, pid := range c.pids {
		now.resident += igtest.Resident(pid)
	}
	if !first {
		c.sum.user, c.sum.system, c.sum.kernel = c.sum.user+now.user-c.last.user, c.sum.system+now.system-c.last.system, c.sum.kernel+now.kernel-c.last.kernel
		c.sum.bytes, c.sum.samples = c.sum.bytes+now.bytes-c.last.bytes, c.sum.samples+now.samples-c.last.samples
		c.sum.resident, c.sum.maps = max(c.sum.resident, now.resident), max(c.sum.maps, now.maps)
	}
	c.last = now
}

// TestAgentCost runs three profilers at the same time: the eBPF profiler's own agent, and profile_cpu with and without names of
// native functions. So they all sample the same programs on the same machine, with the same frequency and languages. It writes the
// cost of each. A second pass reverses the order, because the first one in an interrupt finds the CPU's caches cold.
func TestAgentCost(t *testing.T) {
	const hz = "49"
	require.NoError(t, os.WriteFile("/proc/sys/kernel/bpf_stats_enabled", []byte("1"), 0))
	t.Cleanup(func() { _ = os.WriteFile("/proc/sys/kernel/bpf_stats_enabled", []byte("0"), 0) })
	startLoads(t, find(t, "python", "java", "c"))
	cpu := igtest.Import(t, "profile_cpu")
	flags := []string{"--unwind=whole", "--frequency=" + hz, "--format-stacks=false", "--otel-profiles-interval=5s"}
	three := []*contender{
		{name: "the agent", start: func() *gadgetRun { return startAgent(t, hz) }},
		{name: "profile_cpu, no names of native functions", start: func() *gadgetRun { return startRun(t, cpu, append(flags, "--native-names=false")...) }},
		{name: "profile_cpu", start: func() *gadgetRun { return startRun(t, cpu, flags...) }},
	}
	order := slices.Clone(three)
	for pass := range 2 {
		for _, c := range order {
			c.begin(t)
		}
		time.Sleep(15 * time.Second) // until the last one has read the same files as the first
		for _, c := range order {
			c.look(t, true)
		}
		time.Sleep(*agentWindow)
		for _, c := range order {
			c.look(t, false)
		}
		for _, c := range order {
			for i, pid := range c.pids {
				if *agentProfiles != "" && pass == 0 {
					keepProfile(t, fmt.Sprintf("%s/%s-%d", *agentProfiles, strings.ReplaceAll(c.name, " ", "-"), i), pid)
				}
			}
		}
		for _, c := range order {
			c.run.stop()
		}
		slices.Reverse(order)
	}
	var b strings.Builder
	b.WriteString("| profiler | samples | user CPU time of its processes, ms per 1,000 samples | kernel CPU time of its processes, ms per 1,000 samples | CPU time of eBPF programs, ms per 1,000 samples | resident memory | eBPF maps | time to the first request | bytes per sample |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, contender := range three {
		c := contender.sum
		require.Positive(t, c.samples)
		per := func(seconds float64) float64 { return seconds * 1e6 / float64(c.samples) }
		fmt.Fprintf(&b, "| %s | %d | %.0f | %.0f | %.1f | %d MiB | %d MiB | %.1f s | %.0f |\n", contender.name, c.samples,
			per(c.user), per(c.system), per(c.kernel), c.resident>>20, c.maps>>20, c.start.Seconds(), float64(c.bytes)/float64(c.samples))
	}
	agent, bare, named := three[0].sum, three[1].sum, three[2].sum
	ratio := func(a, b float64) float64 { return a / b * float64(agent.samples) }
	n, m := float64(bare.samples), float64(named.samples)
	load, err := os.ReadFile("/proc/loadavg")
	require.NoError(t, err)
	fmt.Fprintf(&b, "\nWithout names of native functions, profile_cpu used %.2f times the agent's user CPU time per sample. With these names, it used %.2f times the agent's user CPU time per sample. For user and kernel time together, the ratios are %.2f and %.2f. For eBPF programs, the ratios are %.2f and %.2f. The machine's load was %s.\n",
		ratio(bare.user, agent.user)/n, ratio(named.user, agent.user)/m,
		ratio(bare.user+bare.system, agent.user+agent.system)/n, ratio(named.user+named.system, agent.user+agent.system)/m,
		ratio(bare.kernel, agent.kernel)/n, ratio(named.kernel, agent.kernel)/m, strings.Fields(string(load))[0])
	t.Logf("\n%s", b.String())
	if doc := os.Getenv("POLYGLOT_DOC"); doc != "" {
		writeTable(t, doc, "agent table", strings.Replace(header(t, hz), "make test-languages", "make test-agent", 1)+b.String())
	}
}
