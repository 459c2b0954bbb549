//go:build e2e

package memory

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// The functions allocate 60, 30 and 10 percent of the bytes. Each constant is how much a function's bytes can differ: four
// standard errors. Most allocations of the first function are always sampled. The others are sampled at random, about 3,000 and
// 1,000 times.
const (
	share60 = 0.05
	share30 = 0.08
	share10 = 0.13
)

// requireTruth compares the profiled bytes, calls and shares with the program's own counts.
func (r *run) requireTruth(t *testing.T, within map[string]float64) {
	t.Helper()
	var all, own int64
	for function, truth := range r.truth {
		own += truth.Sum
		all += igtest.Total(through(r.samples, "alloc_space", function))
	}
	require.InEpsilon(t, own, all, 0.05, "all bytes")
	for function, truth := range r.truth {
		bytes, calls := igtest.Total(through(r.samples, "alloc_space", function)), igtest.Total(through(r.samples, "alloc_objects", function))
		t.Logf("%s: %d bytes in %d allocations; its own %d in %d: %+.2f %%; share %.2f %%, its own %.2f %%", function, bytes, calls, truth.Sum, truth.Calls,
			100*(float64(bytes)/float64(truth.Sum)-1), 100*float64(bytes)/float64(all), 100*float64(truth.Sum)/float64(own))
		require.InEpsilon(t, truth.Sum, bytes, within[function], function)
		require.InEpsilon(t, truth.Calls, calls, 2*within[function], function)
		require.InDelta(t, 100*float64(truth.Sum)/float64(own), 100*float64(bytes)/float64(all), 3, function)
	}
}

var cShares = map[string]float64{"allocate_large": share60, "allocate_middle": share30, "leak_some": share10}

// TestWithoutMain profiles a process whose first thread exits. The probes were attached to this thread.
func TestWithoutMain(t *testing.T) {
	t.Parallel()
	program := compile(t, "gcc", "-O2", "-fomit-frame-pointer", "-pthread", "-DWITHOUT_MAIN", source("allocate.c"))
	r := watch(t, plan{program: program, pause: 1000, flags: watched})
	r.requireTruth(t, cShares)
	leaks := through(r.samples, "alloc_space", "leak_some")
	below := slices.DeleteFunc(slices.Clone(leaks), func(s receiver.Sample) bool { return igtest.Depth(s, "round_of_work") != 2 })
	require.Greater(t, 100*igtest.Total(below), 99*igtest.Total(leaks))
}

// TestExec calls execve in a process with memory in use. The new program makes no allocations that count.
func TestExec(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	rcv := igtest.Receiver(t)
	c := start(t, plan{program: compile(t, "gcc", "-O2", source("exec.c"))})
	ig := profile(t, rcv, "the first probes are attached", "--pid="+strconv.Itoa(c.PID), "--live")
	// Sometimes, libc's own allocations are sampled as well.
	own := func(s receiver.Sample) bool { return len(s.Stack) > 1 && s.Stack[1].Name == "main" }
	allOwn := func() int64 {
		return igtest.InUse(slices.DeleteFunc(rcv.Samples(), func(s receiver.Sample) bool { return !own(s) }), "inuse_space", "main")
	}
	c.Next()
	require.Equal(t, "allocated\n", c.Lines(1))
	require.Eventually(t, func() bool { return allOwn() == 64<<20 }, time.Minute, 500*time.Millisecond, "some of the allocated memory is not in use")
	c.Next()
	require.Eventually(t, func() bool {
		comm, err := os.ReadFile("/proc/" + strconv.Itoa(c.PID) + "/comm")
		return err == nil && string(comm) == "sleep\n"
	}, time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		before := len(rcv.Samples())
		time.Sleep(3 * time.Second) // a state is sent every two
		return !slices.ContainsFunc(rcv.Samples()[before:], func(s receiver.Sample) bool { return own(s) && s.Total() > 0 })
	}, time.Minute, time.Millisecond, "the replaced program has memory in use")
	ig.Stop()
	require.Regexp(t, `64 of processes that exited or called execve`, ig.Log.String())
}

// TestFork requires that --include-children includes a process that a chosen process has forked, and that does not call execve.
func TestFork(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	rcv := igtest.Receiver(t)
	c := start(t, plan{program: compile(t, "gcc", "-O2", source("fork.c"))})
	ig := profile(t, rcv, "the first probes are attached", "--pid="+strconv.Itoa(c.PID), "--include-children")
	c.Next()
	require.Eventually(t, func() bool { return igtest.Total(through(rcv.Samples(), "alloc_space", "allocate_in_child")) > 0 }, time.Minute, 100*time.Millisecond)
	ig.Stop()
}

// requireEntry requires that stacks reach the program's entry. Until the unwinder knows a new file, a few stacks are cut or
// follow frame pointers.
func requireEntry(t *testing.T, samples []receiver.Sample, entry string) {
	t.Helper()
	requireReaches(t, samples, entry, 99)
}

// requireReaches requires that stacks with at least this percentage of the values reach the program's entry.
func requireReaches(t *testing.T, samples []receiver.Sample, entry string, percent int64) {
	t.Helper()
	whole := slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool { return s.Stack[len(s.Stack)-1].Name != entry })
	t.Logf("whole: %.2f %%", 100*float64(igtest.Total(whole))/float64(igtest.Total(samples)))
	require.Greater(t, 100*igtest.Total(whole), percent*igtest.Total(samples))
}

// TestLive compares memory in use with the programs' leaks. In C++, an allocator's operators have their own probes.
func TestLive(t *testing.T) {
	t.Parallel()
	shop := func(t *testing.T, flags ...string) string {
		return compile(t, "g++", append(flags, "-O2", "-fomit-frame-pointer", source("allocate.cpp"))...)
	}
	for name, tc := range map[string]struct {
		program string
		env     []string
		leaks   string
	}{
		"C++":               {shop(t), nil, "shop::leak()"},
		"C++ with jemalloc": {shop(t), []string{"LD_PRELOAD=libjemalloc.so.2"}, "shop::leak()"},
		"C++ with tcmalloc": {shop(t), []string{"LD_PRELOAD=libtcmalloc_minimal.so.4"}, "shop::leak()"},
		"C++, static":       {shop(t, "-static"), nil, "shop::leak()"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := watch(t, plan{program: tc.program, env: tc.env, pause: 1000, flags: append(slices.Clone(watched), "--live"), leaks: tc.leaks})
			for _, s := range r.samples {
				require.Contains(t, []string{"inuse_space", "inuse_objects"}, s.Type)
			}
			leaked := r.truth[tc.leaks]
			bytes, objects := igtest.InUse(r.samples, "inuse_space", tc.leaks), igtest.InUse(r.samples, "inuse_objects", tc.leaks)
			t.Logf("in use: %d bytes in %d objects; leaked %d in %d", bytes, objects, leaked.Sum, leaked.Calls)
			require.InEpsilon(t, leaked.Sum, bytes, share10)
			require.InEpsilon(t, leaked.Calls, objects, 2*share10)
			// Everything else is freed, so at most one other allocation is still in use.
			for function := range r.truth {
				if function != tc.leaks {
					require.Less(t, igtest.InUse(r.samples, "inuse_space", function), int64(20000), function)
				}
			}
		})
	}
}

// TestExceptions throws exceptions from allocators' operators that have probes.
func TestExceptions(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	program := compile(t, "g++", "-O2", source("throw.cpp"))
	static := compile(t, "g++", "-O2", "-static", source("throw.cpp"))
	for name, tc := range map[string]struct {
		program string
		env     []string
	}{
		"libstdc++": {program, nil}, "static": {static, nil},
		"jemalloc": {program, []string{"LD_PRELOAD=libjemalloc.so.2"}}, "tcmalloc": {program, []string{"LD_PRELOAD=libtcmalloc_minimal.so.4"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rcv := igtest.Receiver(t)
			c := start(t, plan{program: tc.program, env: tc.env})
			ig := profile(t, rcv, "the first probes are attached", append([]string{"--pid=" + strconv.Itoa(c.PID), "--live"}, watched...)...)
			time.Sleep(2 * time.Second) // for the probes of the other files
			c.Next()
			require.Equal(t, "caught 8 of 8\n", c.Lines(1))
			ig.Stop()
		})
	}
}

// TestCPlusPlus and TestRust require function names. The program's function must be the caller of the language's allocation
// function.
func TestCPlusPlus(t *testing.T) {
	t.Parallel()
	program := compile(t, "g++", "-O2", "-fomit-frame-pointer", "-Wall", "-Werror", source("allocate.cpp"))
	for name, env := range map[string][]string{
		"libstdc++": nil,
		"jemalloc":  {"LD_PRELOAD=libjemalloc.so.2"},
		"tcmalloc":  {"LD_PRELOAD=libtcmalloc_minimal.so.4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := watch(t, plan{program: program, env: env, pause: 1000, flags: watched})
			r.requireTruth(t, map[string]float64{"shop::Order::Order(unsigned long)": share60, "void shop::fill<double>(unsigned long)": share30, "shop::leak()": share10})
			for _, s := range through(r.samples, "alloc_space", "shop::leak()") {
				// In tcmalloc, new and new[] are the same function.
				require.Regexp(t, `^operator new(\[\])?\(unsigned long\)$`, s.Stack[slices.IndexFunc(s.Stack, func(f receiver.Frame) bool { return f.Name == "shop::leak()" })-1].Name)
			}
			requireEntry(t, through(r.samples, "alloc_space", "shop::leak()"), "_start")
		})
	}
}

func TestRust(t *testing.T) {
	t.Parallel()
	program := compile(t, "rustc", "-O", "--crate-name", "allocate", source("allocate.rs"))
	r := watch(t, plan{program: program, pause: 1000, flags: watched})
	r.requireTruth(t, map[string]float64{"allocate::read_orders": share60, "allocate::sort_orders": share30, "allocate::leak_orders": share10})
	requireEntry(t, through(r.samples, "alloc_space", "allocate::main"), "_start")
}

// TestInterpreters requires the function names of programs that an interpreter runs.
func TestInterpreters(t *testing.T) {
	t.Parallel()
	// An interval waits for names for a quarter of its length. On a busy machine, the names of a large library take longer than a
	// quarter of two seconds.
	slow := append(slices.Clone(watched), "--otel-profiles-interval=10s")
	for _, tc := range []struct {
		name string
		env  []string
	}{
		{"py", nil},
		{"php", []string{"USE_ZEND_ALLOC=0"}}, // otherwise PHP's own allocator uses memory directly from the kernel
		{"rb", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := watch(t, plan{program: source("allocate." + tc.name), env: tc.env, pause: 1000, flags: slow})
			r.requireTruth(t, map[string]float64{"allocate_large": share60, "allocate_middle": share30, "leak_some": share10})
			requireReaches(t, through(r.samples, "alloc_space", "main"), "_start", 95)
		})
	}
}

// TestOtherLibraries profiles programs with a C library without unwind tables, and with a statically linked C library.
func TestOtherLibraries(t *testing.T) {
	t.Parallel()
	t.Run("musl", func(t *testing.T) {
		t.Parallel()
		r := watch(t, plan{program: compile(t, "musl-gcc", "-O2", "-fomit-frame-pointer", source("allocate.c")), pause: 1000, flags: watched})
		r.requireTruth(t, cShares)
		require.Greater(t, r.captured.Inner, int64(0), "posix_memalign calls aligned_alloc")
	})
	t.Run("static", func(t *testing.T) {
		t.Parallel()
		r := watch(t, plan{program: compile(t, "gcc", "-O2", "-fomit-frame-pointer", "-static", source("allocate.c")), pause: 1000, flags: watched})
		r.requireTruth(t, cShares)
	})
}

// TestStretches makes so many calls that the probes exceed their cost limit and are paused. Shares must stay correct, and
// samples must be marked.
func TestStretches(t *testing.T) {
	r := watch(t, plan{program: cProgram(t), seconds: 20, pause: 50, flags: []string{"--sample-bytes=65536"}})
	require.Contains(t, r.log, "they are attached only during random periods")
	attached := map[string]int64{}
	var all, own int64
	for _, s := range r.samples {
		if s.Type == "alloc_space" {
			attached[s.Attributes["alloc.attached"]] += s.Total()
		}
	}
	t.Logf("bytes: %v", attached)
	require.Greater(t, attached["stretches"], attached["always"])
	for function, truth := range r.truth {
		own += truth.Sum
		all += igtest.Total(through(r.samples, "alloc_space", function))
	}
	// A program that only allocates does less work while it is profiled. It never does more.
	require.Less(t, all, own*5/4)
	require.Greater(t, all, own/20)
	for function, truth := range r.truth {
		require.InDelta(t, 100*float64(truth.Sum)/float64(own), 100*float64(igtest.Total(through(r.samples, "alloc_space", function)))/float64(all), 6, function)
	}
}

// TestLater profiles a program that starts after the gadget and has its own allocator.
func TestLater(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	rcv := igtest.Receiver(t)
	// The program has this name from the start, because the gadget selects threads when they allocate.
	program := filepath.Join(t.TempDir(), "latecomer")
	require.NoError(t, os.Rename(compile(t, "gcc", "-O2", "-DNAME=\"latecomer\"", source("allocate.c")), program))
	ig := profile(t, rcv, "allocator: a probe makes a call", append([]string{"--comm=latecomer"}, watched...)...)
	c := start(t, plan{program: program, pause: 1000})
	ig.Says("the first probes are attached")
	truth := letWork(t, c)
	ig.Stop()
	r := run{truth: truth, samples: rcv.Samples()}
	r.requireTruth(t, map[string]float64{"allocate_large": 0.06, "allocate_middle": 0.12, "leak_some": 0.2})
}

// TestRefusals checks the errors of runs with too many processes or no process.
func TestRefusals(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	image := igtest.Import(t, "profile_alloc")
	for _, tc := range []struct {
		name  string
		flags []string
		want  string
	}{
		{"everything", nil, `the run covers the whole machine; .*--pid.*--everywhere`},
		{"no percentage", []string{"--pid=1", "--max-cost=0"}, `parameter "max-cost": got "0", expected a percentage`},
		{"no step", []string{"--pid=1", "--sample-bytes=0"}, `parameter "sample-bytes": got "0", expected a number from 1`},
		{"no allocator", []string{"--pid=" + strconv.Itoa(os.Getpid()), "--timeout=2"}, `nothing was recorded: none of the selected processes`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			out, _ := igtest.Command(t, image, tc.flags...).CombinedOutput()
			require.Regexp(t, regexp.MustCompile(tc.want), string(out))
		})
	}
}
