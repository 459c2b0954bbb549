//go:build e2e

package memory

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// vmRounds is the number of measurements of each way in the virtual machine.
const vmRounds = 3

// TestPrebuild builds the files for TestCostVM, which runs on a machine without a compiler. E2E_PREBUILD names the folder.
func TestPrebuild(t *testing.T) {
	dir := os.Getenv("E2E_PREBUILD")
	if dir == "" {
		t.Skip("E2E_PREBUILD is not set")
	}
	compilePairs(t, filepath.Join(dir, "pairs"))
	image, err := igtest.BuildUpstream(t, "trace_malloc")
	require.NoError(t, err)
	igtest.Output(t, igtest.Built(t, igtest.Bin, "ig"), "image", "export", image, filepath.Join(dir, "trace_malloc.tar"))
}

func vmWays(traceMalloc string) []way {
	upstream := way{base: "alone", image: traceMalloc, attached: "attaching uprobe"}
	with := func(name string, discard bool, flags ...string) way {
		w := upstream
		w.name, w.discard, w.ig = name, discard, append([]string{"--verbose"}, flags...)
		return w
	}
	return append(ways("")[:4],
		with("trace_malloc, discarded", true),
		with("trace_malloc --collect-ustack, discarded", true, "--collect-ustack"),
		with("trace_malloc --collect-ustack, exported", false, "--collect-ustack"))
}

var (
	lostLine  = regexp.MustCompile(`lost (\d+) samples`)
	readLine  = regexp.MustCompile(`: (\d+) rows read`)
	probeLine = regexp.MustCompile(`a probe makes a call (\S+) to (\S+) slower`)
)

// sum adds up the numbers in a log.
func sum(t *testing.T, line *regexp.Regexp, log string) (n float64) {
	t.Helper()
	for _, found := range line.FindAllStringSubmatch(log, -1) {
		v, err := strconv.ParseFloat(found[1], 64)
		require.NoError(t, err)
		n += v
	}
	return n
}

// lostUntold returns how many lost events ig has not reported yet. It reports them once a second.
func lostUntold(t *testing.T) (n float64) {
	t.Helper()
	for id := ebpf.MapID(0); ; {
		var err error
		if id, err = ebpf.MapGetNextID(id); err != nil {
			return n
		}
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue // ended meanwhile
		}
		if info, err := m.Info(); err == nil && strings.HasPrefix(info.Name, "events_lost") {
			var each []uint64
			require.NoError(t, m.Lookup(uint32(0), &each))
			for _, v := range each {
				n += float64(v)
			}
		}
		_ = m.Close()
	}
}

// systemCall returns the CPU time of a system call that does nothing.
func systemCall(t *testing.T) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := func() time.Duration {
		var at unix.Timespec
		require.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at))
		return time.Duration(at.Nano())
	}
	const calls = 1e6
	began := now()
	for range int(calls) {
		_, _, _ = syscall.RawSyscall(syscall.SYS_GETPPID, 0, 0, 0)
	}
	return (now() - began) / calls
}

// TestCostVM measures profile_alloc and Inspektor Gadget's trace_malloc. The latter needs a kernel with kprobes, which vm.sh of
// test/gadgets boots.
func TestCostVM(t *testing.T) {
	if os.Getenv("E2E_PREBUILT") == "" {
		t.Skip("this needs a virtual machine: run make cost-memory-vm")
	}
	traceMalloc, err := igtest.BuildUpstream(t, "trace_malloc")
	require.NoError(t, err)
	w := pairs(t)
	w.long = 100 // the machine's clock is steady
	list := vmWays(traceMalloc)
	cpus, igs, lost, calls := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}, []float64{}
	var probes [2][]float64
	for range vmRounds {
		calls = append(calls, systemCall(t).Seconds())
		for _, how := range list {
			var r watchedCost
			n := 5
			switch {
			case how.ig == nil:
				r.spent = w.run(t, how, n)
			case how.long:
				n = w.long
				r = w.underIG(t, how, w.warm, n)
			case how.image != "":
				n = 2 // this is the slowest way
				r = w.underIG(t, how, 0, n)
			default:
				r = w.underIG(t, how, 0, n)
			}
			cpus[how.name] = append(cpus[how.name], r.cpu.Seconds())
			igs[how.name] = append(igs[how.name], r.igCPU.Seconds())
			if found := probeLine.FindStringSubmatch(r.log); found != nil {
				for i := range probes {
					v, err := time.ParseDuration(found[i+1])
					require.NoError(t, err)
					probes[i] = append(probes[i], v.Seconds())
				}
			}
			t.Logf("%s: wall %v, CPU %v, ig %v", how.name, r.wall, r.cpu, r.igCPU)
			if how.image == "" {
				if how.ig != nil {
					readCaptured(t, r.log) // without loss
				}
				continue
			}
			events := 2 * float64(n) * w.calls
			missing := r.untold + sum(t, lostLine, r.log)
			t.Logf("%.0f events, %.0f lost, %.0f rows read", events, missing, sum(t, readLine, r.log))
			lost[how.name] = append(lost[how.name], missing/events)
		}
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	require.NoError(t, err)
	alone := median(cpus["alone"])
	var b strings.Builder
	fmt.Fprintf(&b, "\n`make cost-memory-vm` wrote this table on %s, on Linux %s. The values are medians of %d rounds with one run of each tool.\n", time.Now().UTC().Format("2 January 2006"), bytes.TrimSpace(release), vmRounds)
	fmt.Fprintf(&b, "Without a tool, the program uses %.0f ns of CPU time per allocation. A system call that does nothing (`getppid`) takes %.0f ns, and a probe takes %.0f to %.0f ns.\n",
		1e9*alone/w.calls, 1e9*median(calls), 1e9*median(probes[0]), 1e9*median(probes[1]))
	b.WriteString("\n| gadget | CPU time | added per allocation | CPU time of `ig` per allocation | events lost |\n|---|---|---|---|---|\n")
	for _, how := range list[1:] {
		share := "none"
		if how.image != "" {
			share = fmt.Sprintf("%.0f %%", 100*median(lost[how.name]))
		}
		cpu := median(cpus[how.name])
		fmt.Fprintf(&b, "| %s | %s | %.0f ns | %.0f ns | %s |\n", how.name, ratio(cpu/alone), 1e9*(cpu-alone)/w.calls, 1e9*median(igs[how.name])/w.calls, share)
	}
	t.Log(b.String())
	writeCost(t, "cost-vm", b.String())
}
