//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// program burns CPU time: 60 % in heavy, 30 % in light and 10 % in rest. The function work calls all three.
type program struct {
	thread                   string
	heavy, light, rest, work string
	// restInKernel says that rest spends its time in the kernel.
	restInKernel bool
}

var burners = []program{
	{"burn-go", "main.heavy", "main.light", "main.rest", "main.work", false},
	{"burn", "c_heavy", "c_light", "c_kernel", "c_work", true},
}

// enoughCPU is the CPU time of programs, which is enough for 400 samples at 49 samples a second.
const enoughCPU = 8 * time.Second

// requireShare compares a part of n samples with the truth, both in percent. It allows five standard errors, and a point for the
// program's other work.
func requireShare(t *testing.T, want, part float64, n int64, name string) {
	t.Helper()
	t.Logf("%s: %.1f%% of %d samples (true: %.0f%%)", name, part, n, want)
	require.InDelta(t, want, part, 1+5*math.Sqrt(want*(100-want)/float64(n)), name)
}

// TestCPU compares shares and CPU time with two programs' own values, with stacks as text and as IDs. Inspektor Gadget's own
// gadget sees only the second program, because its stack maps stay full after a busy run.
func TestCPU(t *testing.T) {
	igtest.NeedRoot(t)
	upstream, err := igtest.BuildUpstream(t, "profile_cpu")
	require.NoError(t, err)
	ours := igtest.Import(t, "profile_cpu")
	paths := []string{compileGo(t, "./burn", "burn-go"), compileC(t, "testdata/burn.c")}
	hertz, sees := []int64{99, 99, 49}, [][]int{{0, 1}, {0, 1}, {1}}
	sessions := []*session{
		begin(t, ours, "--frequency=99"), begin(t, ours, "--frequency=99", asIDs),
		begin(t, upstream, "--collect-ustack", "--comm="+burners[1].thread),
	}
	seesAll(t, paths[0], burners[0].work, sessions[:2]...)
	seesAll(t, paths[1], burners[1].work, sessions...)
	var running []*igtest.Program
	for _, path := range paths {
		running = append(running, start(t, path))
	}
	sessions[0].Wait("the programs' CPU time", func() bool {
		return !slices.ContainsFunc(running, func(p *igtest.Program) bool { return igtest.CPUTime(t, p.PID) < enoughCPU })
	})
	var cpu []time.Duration
	for _, p := range running {
		p.Stop()
		cpu = append(cpu, p.CPU())
	}
	for i, s := range sessions {
		r := s.stop("samples")
		for _, j := range sees[i] {
			r.requireShares(t, burners[j], running[j].PID, 1_000_000_000/hertz[i], cpu[j])
		}
	}
}

// TestExec: a program that executes another program at the same addresses gets the other program's stacks and names.
func TestExec(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	// Go's linker gives all programs the same address, so the addresses of the first program are also known for the second.
	launcher, program := compileGo(t, "./launch", "launch-go"), compileGo(t, "./burn", burners[0].thread)
	image := igtest.Import(t, "profile_cpu")
	p := start(t, launcher, program)
	flags := []string{"--frequency=99", "--pid=" + strconv.Itoa(p.PID)}
	sessions := []*session{begin(t, image, flags...), begin(t, image, append(flags, "--unwind=frame-pointers")...)}
	of := func(samples []receiver.Sample, thread string) []receiver.Sample {
		return slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool { return s.Attributes["thread.name"] != thread })
	}
	for _, s := range sessions {
		s.until("a sample of the first program", func(samples []receiver.Sample) bool { return len(igtest.Through(samples, "main.prepare")) > 0 })
	}
	p.Next()
	for _, s := range sessions {
		s.until("samples of the second program", func(samples []receiver.Sample) bool { return igtest.Total(of(samples, burners[0].thread)) > 200 })
	}
	p.Stop()
	for _, s := range sessions {
		samples := of(s.stop("samples").samples, burners[0].thread)
		all, named := igtest.Total(samples), igtest.Total(igtest.Through(samples, burners[0].work))
		t.Logf("%d of %d samples are in %s", named, all, burners[0].work)
		// If the unwinder used the mappings of the first program, no sample would be in work. A few samples are older than main, or
		// than the second program's mappings.
		require.Greater(t, 5*named, 4*all)
	}
}

// requireShares checks a program's profile.
func (r *run) requireShares(t *testing.T, p program, pid int, period int64, cpu time.Duration) {
	t.Helper()
	samples := of(r.samples, pid)
	require.NotEmpty(t, samples, "no samples of %s", p.thread)
	at := map[string]int64{}
	var all, inKernel int64
	sampled, unknown := 0.0, int64(0)
	for _, s := range samples {
		// For some seconds, the program can have the service of the test process, because it was forked from it.
		// On a busy machine, the operator can also send a row before it knows the program.
		require.Contains(t, []string{p.thread, filepath.Base(os.Args[0]), "host"}, s.Service, "the executable")
		if s.Service != p.thread {
			unknown += s.Total()
		}
		require.Equal(t, p.thread, s.Attributes["thread.name"])
		require.Equal(t, receiver.Type{Type: "samples", Unit: "count", PeriodType: "cpu", PeriodUnit: "nanoseconds", Period: period}, receiver.TypeOf(s))
		seconds, ok := s.Seconds()
		require.True(t, ok)
		sampled += seconds
		work := igtest.Depth(s, p.work)
		if work < 1 {
			continue
		}
		all += s.Total()
		callee := s.Stack[work-1]
		at[callee.Name] += s.Total()
		requireOrder(t, s, work)
		if callee.Name == p.rest && s.Stack[0].Type == "kernel" {
			inKernel += s.Total()
		}
	}
	require.Less(t, 2*unknown, igtest.Total(samples), "most samples have %s as their service", p.thread)
	if p.restInKernel { // except while entering and leaving it
		require.Greater(t, 5*inKernel, 4*at[p.rest], p.rest)
	}
	require.Positive(t, all, "%s is in no stack of %s", p.work, p.thread)
	for _, want := range []struct {
		function string
		percent  float64
	}{{p.heavy, 60}, {p.light, 30}, {p.rest, 10}} {
		requireShare(t, want.percent, 100*float64(at[want.function])/float64(all), all, want.function)
	}
	t.Logf("%s: %.2f s of CPU time sampled, %.2f s used", p.thread, sampled, cpu.Seconds())
	require.InEpsilon(t, cpu.Seconds(), sampled, 0.25)
}

// requireOrder checks that the kernel's frames come before the program's.
func requireOrder(t *testing.T, s receiver.Sample, work int) {
	t.Helper()
	require.NotEqual(t, "kernel", s.Stack[work].Type)
	user := slices.IndexFunc(s.Stack, func(f receiver.Frame) bool { return f.Type != "kernel" })
	require.False(t, slices.ContainsFunc(s.Stack[user:], func(f receiver.Frame) bool { return f.Type == "kernel" }), "kernel frames between the program's: %v", s.Stack)
}

// TestStackChurn runs a program with far more stacks than the gadget remembers. Every stack must still exist when its row is read,
// which can be some seconds late. A gadget with too few rows must count each sample once.
func TestStackChurn(t *testing.T) {
	igtest.NeedRoot(t)
	const entries, frequency = 1024, 199
	churn := compileC(t, "testdata/churn.c")
	image := igtest.Import(t, "profile_cpu")
	flags := []string{
		"--pid=" + strconv.Itoa(start(t, churn).PID), fmt.Sprintf("--frequency=%d", frequency), "--unwind=frame-pointers", "--map-fetch-interval=200ms",
		fmt.Sprintf("--stack-entries=%d", entries), fmt.Sprintf("--kernel-stack-entries=%d", entries),
	}
	stacks := func(samples []receiver.Sample) int {
		found := map[string]bool{}
		for _, s := range samples {
			key := ""
			for _, f := range s.Stack {
				key += f.Label() + ";"
			}
			found[key] = true
		}
		return len(found)
	}
	sessions := []*session{begin(t, image, flags...), begin(t, image, append(flags, asIDs)...)}
	few := begin(t, image, append(flags, "--rows=16")...)
	for _, s := range sessions {
		s.until("stacks", func(samples []receiver.Sample) bool { return stacks(samples) > entries*5/4 })
	}
	for _, s := range sessions {
		r := s.stop("samples")
		require.Zero(t, r.accounts.NoStack)
		t.Logf("%d different stacks through a map of %d", stacks(r.samples), entries)
	}
	few.until("samples without a row", func(samples []receiver.Sample) bool {
		return igtest.Total(samples) > 10*frequency && len(rowsFull(samples)) > 3
	})
	r := few.stop("samples")
	t.Logf("%d samples in %v, %d of them without a row", igtest.Total(r.samples), length(r.samples), igtest.Total(rowsFull(r.samples)))
	require.Less(t, float64(igtest.Total(r.samples)), 1.1*frequency*length(r.samples).Seconds(), "the program has one thread")
}

// begun starts a program that warms up until it gets a line, and gadgets that watch only this program. It returns once each gadget
// has shown the warm-up. The gadgets then see the work from its beginning, with function names.
func begun(t *testing.T, program, warmUp, image string, flags []string, rounds int) (*igtest.Program, []*session) {
	t.Helper()
	p := start(t, program, strconv.Itoa(rounds))
	flags = append(flags, "--pid="+strconv.Itoa(p.PID))
	sessions := []*session{begin(t, image, flags...), begin(t, image, append(flags, asIDs)...)}
	for _, s := range sessions {
		s.until("a sample of "+warmUp, func(samples []receiver.Sample) bool { return len(igtest.Through(samples, warmUp)) > 0 })
	}
	p.Next()
	return p, sessions
}

// TestOffCPU compares a program's off-CPU time with the program's own measurement, for both ways to collect its stacks.
func TestOffCPU(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	waits, image := compileC(t, "../gadgets/testdata/waits.c"), igtest.Import(t, "profile_offcpu")
	for _, flag := range []string{"--unwind=frame-pointers", "--sched-exit=false"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			p, sessions := begun(t, waits, "wait_first", image, []string{flag, "--max-duration=10000000"}, 40)
			printed := p.Stop()
			var long, short int64
			_, err := fmt.Sscan(printed, &long, &short)
			require.NoError(t, err)
			for _, s := range sessions {
				r := s.stop("off_cpu_raw")
				requireWaits(t, r.samples, long, short)
				for _, row := range r.rows {
					if text, _ := row["kern_stack"].(string); text != "" {
						require.Regexp(t, `^(\[\d+\])?_*schedule`, text, "without the frames of the tracing")
					}
				}
			}
		})
	}
}

// TestOffCPURowsFull requires that a wait without its own row counts once, in a common row. No thread is off the CPU for longer
// than it exists.
func TestOffCPURowsFull(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	waits, image := compileC(t, "../gadgets/testdata/waits.c"), igtest.Import(t, "profile_offcpu")
	const threads = 4                           // at least two rows each
	name := "full-" + strconv.Itoa(os.Getpid()) // differs from those in concurrent tests
	for range threads {
		start(t, waits, "0", name)
	}
	s := begin(t, image, "--comm="+name, "--rows="+strconv.Itoa(threads), "--unwind=frame-pointers", "--map-fetch-interval=200ms")
	s.until("waits without a row", func(samples []receiver.Sample) bool {
		return igtest.Total(samples) > 6*threads*time.Second.Nanoseconds() && len(rowsFull(samples)) > 0
	})
	r := s.stop("off_cpu_raw")
	found, length := time.Duration(igtest.Total(r.samples)), length(r.samples)
	t.Logf("%v off the CPU, %v of it in no row of its own, in %v of %d threads", found, time.Duration(igtest.Total(rowsFull(r.samples))), length, threads)
	require.Less(t, found, threads*length*21/20)
}

// rowsFull returns the samples of the row that counts events without their own row.
func rowsFull(samples []receiver.Sample) []receiver.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool { return s.Attributes["thread.name"] != "[rows full]" })
}

// length returns the time from the first to the last profile.
func length(samples []receiver.Sample) time.Duration {
	begin := slices.MinFunc(samples, func(a, b receiver.Sample) int { return a.Start.Compare(b.Start) }).Start
	return slices.MaxFunc(samples, func(a, b receiver.Sample) int { return a.End.Compare(b.End) }).End.Sub(begin)
}

func requireWaits(t *testing.T, samples []receiver.Sample, long, short int64) {
	t.Helper()
	for _, s := range append(igtest.Through(samples, "wait_long"), igtest.Through(samples, "wait_short")...) {
		require.Equal(t, receiver.Type{Type: "off_cpu", Unit: "nanoseconds", PeriodType: "off_cpu", PeriodUnit: "nanoseconds", Period: 1}, receiver.TypeOf(s))
		require.Contains(t, []string{"sleeping", "preempted"}, s.Attributes["off_cpu.reason"])
		require.Equal(t, "__schedule", s.Stack[0].Name, "the stack begins at the scheduler: %v", s.Stack)
		if igtest.Depth(s, "wait_long") >= 0 {
			require.True(t, igtest.Depth(s, "do_nanosleep") > 0 || s.Attributes["off_cpu.reason"] == "preempted", "%v", s.Stack)
			require.Negative(t, igtest.Depth(s, "wait_short"))
			if s.Attributes["off_cpu.reason"] == "sleeping" {
				require.Equal(t, "sleep", s.Attributes["off_cpu.syscall"])
			}
		}
	}
	for function, own := range map[string]int64{"wait_long": long, "wait_short": short} {
		found := igtest.Total(igtest.Through(samples, function))
		t.Logf("%s: %.3f s off the CPU, %.3f s by its own clock", function, float64(found)/1e9, float64(own)/1e9)
		require.InEpsilon(t, own, found, 0.05, function)
	}
}

// TestPageFaults runs a program that touches pages, both itself and through the kernel, and executes code. The gadget must count
// exactly these faults.
func TestPageFaults(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	const rounds = 100
	p, sessions := begun(t, compileC(t, "../gadgets/testdata/faults.c"), "touch_first", igtest.Import(t, "profile_pagefault"), []string{"--unwind=frame-pointers"}, rounds)
	p.Stop()
	for _, s := range sessions {
		samples := s.stop("faults").samples
		touched, filled, executed := int64(0), int64(0), int64(0)
		for _, s := range samples {
			require.Equal(t, receiver.Type{Type: "page_faults", Unit: "count", PeriodType: "page_faults", PeriodUnit: "count", Period: 1}, receiver.TypeOf(s))
			require.Contains(t, []string{"write", "read", "execute"}, s.Attributes["page_fault.access"], "%v", s.Stack)
			if igtest.Depth(s, "run_page") == 1 && s.Attributes["page_fault.access"] == "execute" {
				executed += s.Total()
			}
			// The first use of a function also causes a fault, which counts for its caller.
			if igtest.Depth(s, "touch_pages") < 0 && igtest.Depth(s, "fill_pages") < 0 || s.Attributes["page_fault.access"] != "write" {
				continue
			}
			switch {
			case s.Stack[0].Name == "touch_pages":
				touched += s.Total()
			case s.Stack[0].Type == "kernel":
				require.Positive(t, igtest.Depth(s, "fill_pages"), "the kernel fills, the program touches: %v", s.Stack)
				filled += s.Total()
			}
		}
		t.Logf("%d rounds: %d faults in touch_pages, %d in fill_pages, %d in run_page, %d in all", rounds, touched, filled, executed, igtest.Total(samples))
		require.EqualValues(t, 64*rounds, touched)
		require.EqualValues(t, 16*rounds, filled)
		require.EqualValues(t, rounds, executed)
	}
}

// TestDrawnPageFaults has so many faults that a CPU collects stacks for only some of them. These represent all faults.
func TestDrawnPageFaults(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	const rounds = 2000
	p, sessions := begun(t, compileC(t, "../gadgets/testdata/faults.c"), "touch_first", igtest.Import(t, "profile_pagefault"), []string{"--unwind=whole"}, rounds)
	p.Stop()
	usage, ok := p.ProcessState.SysUsage().(*syscall.Rusage)
	require.True(t, ok)
	for _, s := range sessions {
		found := igtest.Total(s.stop("faults").samples)
		t.Logf("%d faults in %d rounds and the warm-up; %d since the program's beginning", found, rounds, usage.Minflt)
		require.Greater(t, 10*found, int64(9*rounds*(64+16)))
		require.Less(t, 10*found, 11*usage.Minflt)
	}
}

// TestDrawnWaits has so many short waits that most are not sampled. The sampled waits represent all of them.
func TestDrawnWaits(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	const naps = 100_000
	p, sessions := begun(t, compileC(t, "testdata/naps.c"), "nap_first", igtest.Import(t, "profile_offcpu"), []string{
		"--unwind=whole", "--annotate=offcpu:profiles.value-field=switches,offcpu:profiles.type=switches,offcpu:profiles.unit=count",
	}, naps)
	p.Stop()
	usage, ok := p.ProcessState.SysUsage().(*syscall.Rusage)
	require.True(t, ok)
	for _, s := range sessions {
		found := igtest.Total(s.stop("switches").samples)
		t.Logf("%d waits in %d naps and the warm-up; %d since the program's beginning", found, naps, usage.Nvcsw+usage.Nivcsw)
		require.Greater(t, 10*found, int64(9*naps))
		require.Less(t, 10*found, 11*(usage.Nvcsw+usage.Nivcsw))
	}
}

// TestAlloc compares bytes, calls and memory in use with a program's own counts. Most allocations of the first function are
// always sampled. Allocations of the other functions are sampled at random.
func TestAlloc(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	p := start(t, compileAsShipped(t, "../memory/testdata/allocate.c"), "0", "1000", "5000")
	require.Equal(t, "ready\n", p.Lines(1))
	image := igtest.Import(t, "profile_alloc")
	flags := []string{"--pid=" + strconv.Itoa(p.PID), "--max-cost=1000", "--sample-bytes=4096"}
	sessions := []*session{begin(t, image, flags...), begin(t, image, append(flags, asIDs)...), begin(t, image, append(flags, "--live")...)}
	for _, s := range sessions {
		s.Says("the first probes are attached")
	}
	p.Next()
	own := igtest.ReadTruth(t, p.Lines(3))
	for _, s := range sessions[:2] {
		r := s.stop("calls", "bytes")
		bytes, calls := igtest.Typed(r.samples, "alloc_space"), igtest.Typed(r.samples, "alloc_objects")
		for function, n := range own {
			found, times := igtest.Total(igtest.Through(bytes, function)), igtest.Total(igtest.Through(calls, function))
			t.Logf("%s: %d bytes in %d allocations; its own %d in %d", function, found, times, n.Sum, n.Calls)
			within := allowedError(t, r, n.Sum)
			require.InEpsilon(t, n.Sum, found, within, function)
			require.InEpsilon(t, n.Calls, times, 2*within, function)
			var whole []receiver.Sample
			for _, s := range igtest.Through(bytes, function) {
				require.Equal(t, "bytes", s.PeriodUnit)
				require.Equal(t, "space", s.PeriodType)
				require.EqualValues(t, 4096, s.Period)
				require.Equal(t, "always", s.Attributes["alloc.attached"])
				require.Equal(t, 1, igtest.Depth(s, function), "%v", s.Stack)
				require.Regexp(t, `^(__libc_)?(malloc|calloc|realloc)$|posix_memalign`, s.Stack[0].Name, "%v", s.Stack)
				if igtest.Depth(s, "round_of_work") == 2 && s.Stack[len(s.Stack)-1].Name == "_start" {
					whole = append(whole, s)
				}
			}
			// A stack is truncated when the unwinder is too busy.
			require.Greater(t, 100*igtest.Total(whole), 95*found, "%s: whole stacks", function)
		}
		require.Positive(t, readCaptured(t, r).Inner, "realloc calls malloc")
	}
	leaked, live := own["leak_some"], sessions[2]
	live.until("the memory in use", func(samples []receiver.Sample) bool {
		return igtest.InUse(samples, "inuse_space", "leak_some") > leaked.Sum/2
	})
	r := live.stop() // a state replaces the previous one
	bytes, objects := igtest.InUse(r.samples, "inuse_space", "leak_some"), igtest.InUse(r.samples, "inuse_objects", "leak_some")
	t.Logf("in use: %d bytes in %d objects; leaked %d in %d", bytes, objects, leaked.Sum, leaked.Calls)
	within := allowedError(t, r, leaked.Sum)
	require.InEpsilon(t, leaked.Sum, bytes, within)
	require.InEpsilon(t, leaked.Calls, objects, 2*within)
	// All other memory is freed, except an allocation from around the start of the run. Another thread frees the last function's.
	for _, function := range []string{"allocate_large", "allocate_middle", "hand_over"} {
		require.Less(t, igtest.InUse(r.samples, "inuse_space", function), int64(20000), function)
	}
}

// TestLock compares waits for locks, in a program's own code and in the kernel, with the program's own measurement. A pool of idle
// threads must show no lock.
func TestLock(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	// With a step of 8 ms, the gadget sampled 650 to 850 waits a second. If other processes keep a CPU busy, all of them can be on
	// one CPU, where the unwinder collects up to 1,000 stacks a second.
	const sampleTime = 12000000
	const seconds = 16
	p := start(t, compileAsShipped(t, "../locks/testdata/locks.c"), strconv.Itoa(seconds))
	image := igtest.Import(t, "profile_lock")
	flags := []string{"--pid=" + strconv.Itoa(p.PID), "--sample-time=" + strconv.Itoa(sampleTime)}
	sessions := []*session{begin(t, image, flags...), begin(t, image, append(flags, asIDs, "--lock-address")...)}
	for _, s := range sessions {
		s.until("a wait of the warm-up", func(samples []receiver.Sample) bool { return len(igtest.Through(samples, "take_warmup")) > 0 })
	}
	p.Next()
	own := igtest.ReadTruth(t, p.Stop())
	requireForgotten(t, p.PID)
	shares := regexp.MustCompile(`(unwound|whose stack did not arrive) \((\d+\.\d) % of the nanoseconds\)`)
	for i, s := range sessions {
		r := s.stop("contentions", "delay_raw")
		// On a busy machine, the unwinder cannot collect or deliver some stacks. Their waits can have an unknown kind and no row.
		lost := 1.0
		for _, m := range shares.FindAllStringSubmatch(r.log, -1) {
			percent, err := strconv.ParseFloat(m[2], 64)
			require.NoError(t, err)
			lost += map[bool]float64{true: -percent, false: percent}[m[1] == "unwound"] / 100
		}
		require.Less(t, lost, 0.1)
		delays, contentions := igtest.Typed(r.samples, "delay"), igtest.Typed(r.samples, "contentions")
		for unit, samples := range map[string][]receiver.Sample{"nanoseconds": delays, "count": contentions} {
			for _, s := range samples { // as in Go's profiles of mutexes
				require.Equal(t, receiver.Type{Type: s.Type, Unit: unit, PeriodType: "contentions", PeriodUnit: "count", Period: 1}, receiver.TypeOf(s))
				require.NotEqual(t, "user_futex", s.Attributes["lock.kind"], "%v", s.Stack)
			}
		}
		addresses, locks := map[string]string{}, map[string]bool{}
		for _, l := range []struct {
			function, thread, calls, kind string
			within                        float64
		}{
			{"take_mutex", "mutex", "pthread_mutex_lock", "user_mutex", 0.15}, {"take_short_mutex", "short", "pthread_mutex_lock", "user_mutex", 0.15},
			{"read_table", "table", "pthread_rwlock_rdlock", "user_rwlock", 0.15}, {"write_table", "table", "pthread_rwlock_wrlock", "user_rwlock", 0.15},
			{"take_shared", "shared", "pthread_mutex_lock", "user_mutex", 0.15},
			// These waits are parts of system calls. The program's own time also has the other parts. On a busy machine, a thread can
			// lose its CPU there.
			{"count_pipe", "pipe", "ioctl", "kernel_mutex", 0.25},
			{"list_folder", "folder", "getdents64", "kernel_rwsem", 0.25}, {"change_folder", "folder", "fchmod", "kernel_rwsem", 0.25},
			// The name of libc's function for this kind of mutex depends on its version.
			{"take_pi_mutex", "pi", "", "user_pi_mutex", 0.15},
		} {
			found := igtest.Through(delays, l.function)
			t.Logf("%s: %.3f s; its own %.3f s in %d calls", l.function, float64(igtest.Total(found))/1e9, float64(own[l.function].Sum)/1e9, own[l.function].Calls)
			// On a busy machine, some stacks are collected with frame pointers. The program has none, so these stacks end below
			// its functions. A wait without a lock's function has an unknown kind and no row. l.within allows for that.
			missed := igtest.Total(slices.DeleteFunc(slices.Clone(delays), func(s receiver.Sample) bool {
				return s.Attributes["thread.name"] != l.thread || slices.ContainsFunc([]string{l.function, "read_table", "write_table", "fill_pipe", "list_folder", "change_folder"}, func(f string) bool { return igtest.Depth(s, f) >= 0 })
			}))
			t.Logf("%s: %.3f s in stacks by frame pointers", l.thread, float64(missed)/1e9)
			// The lost waits can be mostly of one kind. The share is of all waits, also those of idle threads.
			within := (max(l.within, allowedError(t, r, own[l.function].Sum)) + 3*lost) * float64(own[l.function].Sum)
			require.InDelta(t, own[l.function].Sum, igtest.Total(found)+missed/2, within+float64(missed)/2, l.function)
			require.Less(t, 2*missed, igtest.Total(found), l.function)
			require.Positive(t, igtest.Total(igtest.Through(contentions, l.function)))
			var cut, other int64 // other: kernel spinlocks taken on the way
			for _, s := range found {
				at := igtest.Depth(s, l.function)
				require.Positive(t, at, "%v", s.Stack)
				if outermost := s.Stack[len(s.Stack)-1].Name; strings.HasPrefix(outermost, "[") {
					cut += s.Total()
				}
				if kind := s.Attributes["lock.kind"]; kind != l.kind {
					require.Equal(t, "kernel", s.Stack[0].Type, "%s: %v", kind, s.Stack)
					other += s.Total()
					continue
				}
				// A libc with symbols has further names for this function.
				if l.calls != "" {
					require.Equal(t, l.calls, strings.TrimPrefix(strings.TrimLeft(s.Stack[at-1].Name, "_"), "GI_"), "%v", s.Stack)
				}
				file := ""
				if i == 1 && l.function == "take_shared" {
					file = "/memfd:shop lock (deleted)+0x100"
				}
				require.Equal(t, file, s.Attributes["lock.file"], l.function)
				address := s.Attributes["lock.address"]
				require.Regexp(t, map[bool]string{true: "^0x[0-9a-f]{16}$", false: "^$"}[i == 1], address, "%v", s.Attributes)
				if before, ok := addresses[l.function]; ok {
					require.Equal(t, before, address, l.function)
				}
				addresses[l.function], locks[address] = address, true
			}
			require.Less(t, 20*other, igtest.Total(found), l.function)
			require.Less(t, 20*cut, igtest.Total(found), "%s: stacks are only cut if the unwinder was too busy", l.function)
		}
		if i == 1 {
			require.Equal(t, addresses["read_table"], addresses["write_table"])
			require.Equal(t, addresses["list_folder"], addresses["change_folder"])
			require.Len(t, locks, 7, "%v", addresses)
		}
		for _, s := range append(igtest.Through(delays, "wait_for_job"), igtest.Through(delays, "wait_for_work")...) {
			kind := s.Attributes["lock.kind"]
			require.True(t, strings.HasPrefix(kind, "kernel_") || kind == "user_mutex" && igtest.Depth(s, "sem_wait") < 0, "an idle thread: %s: %v", kind, s.Stack)
		}
		others := readCaptured(t, r).Other
		require.Positive(t, others)
		require.Less(t, others, int64(seconds*500), "once known, the pool's thousand waits a second are not sampled")
	}
}

// requireForgotten waits until no gadget's thread map has an entry for an exited thread. Such entries would fill the map.
func requireForgotten(t *testing.T, thread int) {
	t.Helper()
	maps := 0 // that were examined in one pass
	require.Eventually(t, func() bool {
		maps = 0
		for id, err := ebpf.MapGetNextID(0); err == nil; id, err = ebpf.MapGetNextID(id) {
			m, err := ebpf.NewMapFromID(id)
			if err != nil {
				continue // the map no longer exists
			}
			info, err := m.Info()
			found := false
			if err == nil && info.Name == "threads" && m.KeySize() == 4 {
				maps++
				value, err := m.LookupBytes(uint32(thread))
				found = err == nil && value != nil
			}
			_ = m.Close()
			if found {
				return false
			}
		}
		return true
	}, time.Minute, 100*time.Millisecond, "a gadget remembers the thread")
	require.Positive(t, maps, "no gadget has a map of this name and key")
}

// allowedError returns five standard errors of a sampled sum, relative to the true sum. On a busy machine, the step is raised.
func allowedError(t *testing.T, r *run, sum int64) float64 {
	t.Helper()
	m := regexp.MustCompile(`the sampling step was (?:\d+ to )?(\d+)`).FindStringSubmatch(r.log)
	require.NotNil(t, m, r.log)
	step, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	return 5 * math.Sqrt(step/float64(sum))
}

// readCaptured reads the closing line of the operator captures. Most events are not sampled, and nearly all samples have a stack.
func readCaptured(t *testing.T, r *run) igtest.Captured {
	t.Helper()
	c := igtest.ReadCaptured(t, r.log)
	require.Greater(t, c.Events, c.Sampled)
	require.Less(t, 100*c.Lost, c.Sampled)
	return c
}
