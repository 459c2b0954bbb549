//go:build e2e

package memory

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
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
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

var (
	costFlag  = flag.Bool("cost", false, "measure what profile_alloc costs, and write it into README.md")
	costRound = flag.Int("cost-rounds", 5, "how often each way is measured")
)

// spent is what some work took.
type spent struct{ wall, cpu time.Duration }

// work is a program that does the same work each time, as often as its input says.
type work struct {
	name    string
	command []string
	calls   float64 // allocations in each repetition, as heaptrack counts them
	input   func(repetitions int) string
	read    func(output string) (spent, error)
	// warm and long are how many repetitions go before those that are measured, and how many these are where stretches
	// decide what it costs; short ones are enough where every call costs the same.
	warm, long, short int
	// For servers: flags that choose them, ways that they cannot be watched in, and what has them work, instead of their input.
	choose  []string
	without []string
	serve   func(t *testing.T, server *exec.Cmd, repetitions int) spent
}

// way is a way to watch a program.
type way struct {
	name string
	env  []string
	wrap []string // goes before the command
	ig   []string // flags; nil: without ig
	long bool
	base string // the way that it is compared with
	// image is of another gadget than profile_alloc, and attached is what its log says then. With discard its rows go nowhere.
	image, attached string
	discard         bool
}

const libraries = "/usr/lib/x86_64-linux-gnu/"

// endless has the probes cost what they want.
const endless = "--max-cost=1000"

func ways(dir string) []way {
	return []way{
		{name: "alone"},
		{name: "profile_alloc", ig: []string{}, long: true, base: "alone"},
		{name: "profile_alloc, never paused", ig: []string{endless}, base: "alone"},
		{name: "profile_alloc --live", ig: []string{"--live", endless}, base: "alone"},
		{name: "heaptrack 1.4", wrap: []string{"heaptrack", "-o", dir + "/heaptrack"}, base: "alone"},
		{name: "jemalloc 5.3", env: []string{"LD_PRELOAD=" + libraries + "libjemalloc.so.2"}},
		{name: "jemalloc 5.3, prof:true,lg_prof_sample:19", env: []string{"LD_PRELOAD=" + libraries + "libjemalloc.so.2", "MALLOC_CONF=prof:true,lg_prof_sample:19"}, base: "jemalloc 5.3"},
		{name: "gperftools 2.10", env: []string{"LD_PRELOAD=" + libraries + "libtcmalloc.so.4"}},
		{name: "gperftools 2.10, TCMALLOC_SAMPLE_PARAMETER=524288", env: []string{"LD_PRELOAD=" + libraries + "libtcmalloc.so.4", "TCMALLOC_SAMPLE_PARAMETER=524288"}, base: "gperftools 2.10"},
		{name: "gperftools 2.10, HEAPPROFILE", env: []string{"LD_PRELOAD=" + libraries + "libtcmalloc.so.4", "HEAPPROFILE=" + dir + "/heap"}, base: "gperftools 2.10"},
	}
}

// clocks is what the program pairs says, between what a tool says.
var clocks = regexp.MustCompile(`(?m)^\d+ \d+$`)

func compilePairs(t *testing.T, program string) {
	t.Helper()
	igtest.Output(t, "gcc", "-O2", "-fomit-frame-pointer", "-Wall", "-Werror", "-o", program, source("pairs.c"))
}

// pairs is a program of a million allocations a second.
func pairs(t *testing.T) work {
	t.Helper()
	program, ok := igtest.Prebuilt("pairs")
	if !ok {
		program = filepath.Join(t.TempDir(), "pairs")
		compilePairs(t, program)
	}
	w := work{
		name: "a million `malloc` and `free` a second", calls: 1e5, warm: 30, long: 200, short: 10,
		input: func(n int) string { return fmt.Sprintln(n * 1e5) },
		read: func(output string) (s spent, err error) {
			found := clocks.FindAllStringSubmatch(output, -1)
			if len(found) == 0 {
				return s, fmt.Errorf("no times in %q", output)
			}
			_, err = fmt.Sscan(found[len(found)-1][0], &s.wall, &s.cpu)
			return s, err
		},
	}
	// As much between two of them as makes it a million a second.
	rounds := 500.0
	for range 5 {
		w.command = []string{program, strconv.Itoa(int(rounds))}
		rounds *= 0.1 / w.run(t, way{}, 10).cpu.Seconds()
	}
	return w
}

var timer = regexp.MustCompile(`Run Time: real (\S+) user (\S+) sys (\S+)`)

// sqlite has an in-memory database.
func sqlite(t *testing.T) work {
	t.Helper()
	text, err := os.ReadFile(source("work.sql"))
	require.NoError(t, err)
	return work{
		name: "sqlite3, a database in memory", calls: 5.87e5, warm: 40, long: 150, short: 1,
		command: []string{"sqlite3", ":memory:"},
		input:   func(n int) string { return ".timer on\n" + strings.Repeat(string(text), n) + ".print measured\n" },
		read: func(output string) (s spent, err error) {
			parts := strings.Split(output, "measured\n") // what goes before, what is measured, and the end
			if len(parts) != 3 {
				return s, fmt.Errorf("no times in %q", output)
			}
			for _, found := range timer.FindAllStringSubmatch(parts[1], -1) {
				var all [3]float64
				for i := range all {
					if all[i], err = strconv.ParseFloat(found[i+1], 64); err != nil {
						return s, err
					}
				}
				s.wall += time.Duration(all[0] * 1e9)
				s.cpu += time.Duration((all[1] + all[2]) * 1e9)
			}
			return s, nil
		},
	}
}

// begin starts the program. It waits for its input.
func (w work) begin(t *testing.T, how way) (cmd *exec.Cmd, in io.WriteCloser, out *bytes.Buffer) {
	t.Helper()
	argv := slices.Concat(how.wrap, w.command)
	cmd = exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), how.env...)
	out = &bytes.Buffer{}
	cmd.Stdout = out
	// The scheduler shares CPUs between sessions first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	prefer(t, cmd.Process.Pid)
	if w.serve != nil {
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	return cmd, in, out
}

// prefer has a process's session go before all others, where the scheduler shares CPUs between sessions first: with a part of a CPU,
// a program would become slower by more than by what is taken of a CPU.
func prefer(t *testing.T, pid int) {
	t.Helper()
	if !*costFlag {
		return
	}
	file := fmt.Sprintf("/proc/%d/autogroup", pid)
	before, err := os.ReadFile(file)
	if err != nil {
		return // the kernel has no such groups
	}
	require.NoError(t, os.WriteFile(file, []byte("-20"), 0))
	if pid == os.Getpid() {
		_, nice, _ := strings.Cut(strings.TrimSpace(string(before)), " nice ")
		t.Cleanup(func() { require.NoError(t, os.WriteFile(file, []byte(nice), 0)) })
	}
}

// end has the program work, and returns what it took for one repetition.
func (w work) end(t *testing.T, cmd *exec.Cmd, in io.WriteCloser, out *bytes.Buffer, warm, n int) spent {
	t.Helper()
	if w.serve != nil {
		w.serve(t, cmd, warm)
		s := w.serve(t, cmd, n)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait(), "%s", out)
		return spent{s.wall / time.Duration(n), s.cpu / time.Duration(n)}
	}
	_, err := io.WriteString(in, w.input(warm)+w.input(n))
	require.NoError(t, err)
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait(), "%s", out)
	s, err := w.read(out.String())
	require.NoError(t, err, "%s", out)
	return spent{s.wall / time.Duration(n), s.cpu / time.Duration(n)}
}

func (w work) run(t *testing.T, how way, n int) spent {
	t.Helper()
	cmd, in, out := w.begin(t, how)
	return w.end(t, cmd, in, out, 1, n)
}

// watchedCost is a run of a program under the gadget.
type watchedCost struct {
	spent
	ig    float64       // CPUs of ig
	igCPU time.Duration // what ig has used of them, for one repetition
	stats map[string]programStats
	log   string // of ig
	// untold are events that were lost and are not in the log.
	untold float64
}

// programStats are what the kernel has counted of eBPF programs of a name.
type programStats struct {
	runs uint64
	time time.Duration
}

func (w work) underIG(t *testing.T, how way, warm, n int) watchedCost {
	t.Helper()
	rcv, err := receiver.Start(receiver.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, rcv.Close()) }()
	cmd, in, out := w.begin(t, how)
	choose := w.choose
	if choose == nil {
		choose = []string{"--pid=" + strconv.Itoa(cmd.Process.Pid)}
	}
	flags := slices.Concat(choose, how.ig)
	image, attached := how.image, how.attached
	if image == "" {
		image, attached = igtest.Import(t, "profile_alloc"), "the first probes are there"
	}
	if !how.discard {
		flags = append(flags, exportTo(rcv)...)
	}
	ig := runIG(t, image, attached, flags...)
	began, used := time.Now(), settled(t, ig.cmd.Process.Pid)
	r := watchedCost{spent: w.end(t, cmd, in, out, warm, n)}
	r.igCPU = cpuOf(t, ig.cmd.Process.Pid) - used
	r.ig = r.igCPU.Seconds() / time.Since(began).Seconds()
	r.igCPU /= time.Duration(warm + n)
	r.stats = statsOf(t)
	if how.image != "" {
		r.untold = lostUntold(t)
	}
	ig.stop(t)
	r.log = ig.log.String()
	return r
}

// settled waits until a process that has started computes little, and returns what it has used of CPUs.
func settled(t *testing.T, pid int) time.Duration {
	t.Helper()
	for before := cpuOf(t, pid); ; {
		time.Sleep(time.Second) // files are read first
		now := cpuOf(t, pid)
		if now-before < time.Second/5 {
			return now
		}
		before = now
	}
}

// cpuOf returns what a process has used of CPUs.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	require.NoError(t, err)
	system, err := strconv.Atoi(fields[12])
	require.NoError(t, err)
	return time.Duration(user+system) * 10 * time.Millisecond // ticks of a hundredth of a second on all architectures here
}

// statsOf returns the counts of the gadget's programs.
func statsOf(t *testing.T) map[string]programStats {
	t.Helper()
	all := map[string]programStats{}
	for id := ebpf.ProgramID(0); ; {
		var err error
		if id, err = ebpf.ProgramGetNextID(id); err != nil {
			return all
		}
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it is gone
		}
		info, infoErr := p.Info()
		stats, err := p.Stats()
		_ = p.Close()
		if infoErr == nil && err == nil && strings.HasPrefix(info.Name, "ig_") && stats.RunCount > 0 {
			s := all[info.Name]
			all[info.Name] = programStats{s.runs + stats.RunCount, s.time + stats.Runtime}
		}
	}
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return (list[len(list)/2] + list[(len(list)-1)/2]) / 2
}

// ratio writes how many times as long something takes: percent more where that is little.
func ratio(v float64) string {
	if v < 2 {
		return fmt.Sprintf("%+.0f %%", 100*(v-1))
	}
	return fmt.Sprintf("%.1f times", v)
}

// TestCost measures the same work alone, under the gadget and under other tools, in turns.
func TestCost(t *testing.T) {
	if !*costFlag {
		t.Skip("it takes half an hour: make cost-memory")
	}
	igtest.NeedRoot(t)
	dir := t.TempDir()
	prefer(t, os.Getpid())
	var b strings.Builder
	fmt.Fprintf(&b, "\nWritten by `make cost-memory` on %s: medians of %d rounds, in each of which every way came once.\n", time.Now().UTC().Format("2 January 2006"), *costRound)
	for _, w := range []work{pairs(t), sqlite(t), nginx(t)} {
		walls, cpus, igs := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
		for range *costRound {
			for _, how := range ways(dir) {
				if slices.Contains(w.without, how.name) {
					continue
				}
				var r watchedCost
				switch {
				case how.ig == nil:
					r.spent = w.run(t, how, w.short)
				case how.long:
					r = w.underIG(t, how, w.warm, w.long)
				default:
					r = w.underIG(t, how, 0, w.short)
				}
				t.Logf("%s, %s: wall %v, CPU %v, ig %.2f CPUs", w.name, how.name, r.wall, r.cpu, r.ig)
				walls[how.name] = append(walls[how.name], r.wall.Seconds())
				cpus[how.name] = append(cpus[how.name], r.cpu.Seconds())
				igs[how.name] = append(igs[how.name], 100*r.ig)
			}
		}
		fmt.Fprintf(&b, "\n### %s\n\nAlone it takes %.0f ns of CPU time for each allocation.\n\n| | time | CPU time | that is, of a CPU | an allocation takes more | CPU of `ig` |\n|---|---|---|---|---|---|\n",
			strings.ToUpper(w.name[:1])+w.name[1:], 1e9*median(cpus["alone"])/w.calls)
		for _, how := range ways(dir) {
			if how.base == "" || len(cpus[how.name]) == 0 {
				continue
			}
			ig := ""
			if how.ig != nil {
				ig = fmt.Sprintf("%.1f %%", median(igs[how.name]))
			}
			wall, cpu, alone := median(walls[how.name]), median(cpus[how.name]), median(cpus[how.base])
			fmt.Fprintf(&b, "| %s | %s | %s | %.1f %% | %.0f ns | %s |\n", how.name, ratio(wall/median(walls[how.base])), ratio(cpu/alone), 100*(cpu-alone)/wall, 1e9*(cpu-alone)/w.calls, ig)
		}
	}
	b.WriteString(eachEvent(t))
	t.Log(b.String())
	writeCost(t, "cost", b.String())
}

// eachEvent measures the gadget's programs themselves, as the kernel counts their time.
func eachEvent(t *testing.T) string {
	t.Helper()
	on, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	require.NoError(t, err)
	defer func() { require.NoError(t, on.Close()) }()
	w := pairs(t)
	mean := func(flags ...string) (out [3]time.Duration) {
		stats := w.underIG(t, way{ig: append([]string{endless}, flags...)}, 1, w.short).stats
		for i, name := range []string{"ig_size_first", "ig_address", "ig_returned"} {
			if s := stats[name]; s.runs > 0 {
				out[i] = s.time / time.Duration(s.runs)
			}
		}
		return out
	}
	plain, live := mean(), mean("--live")
	// Every allocation is drawn, and there are few enough for that to stay so.
	w.command[1] = "400000"
	w.input = func(n int) string { return fmt.Sprintln(n * 100) }
	drawn := mean("--sample-bytes=1")
	return fmt.Sprintf(`
### What a call takes within the kernel

The gadget's own programs, without the trap that leads to them: the kernel counts their time (`+"`kernel.bpf_stats_enabled`"+`).

| | |
|---|---|
| `+"`malloc`"+`, not drawn | %d ns |
| `+"`malloc`"+`, drawn: its stack is copied | %d ns |
| `+"`free`"+`, with `+"`--live`"+` | %d ns |
| the return of `+"`malloc`"+`, with `+"`--live`"+` | %d ns |
`, plain[0], drawn[0], live[1], live[2])
}

// writeCost writes a text into the page, between its markers.
func writeCost(t *testing.T, marker, text string) {
	t.Helper()
	if t.Failed() {
		return
	}
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	marked := regexp.MustCompile(`(?s)(<!-- begin ` + marker + ` -->\n).*?(<!-- end ` + marker + ` -->)`)
	require.True(t, marked.Match(page), "the page has no place for the figures")
	require.NoError(t, os.WriteFile("README.md", marked.ReplaceAll(page, []byte("${1}"+strings.ReplaceAll(text, "$", "$$")+"\n${2}")), 0o644))
}
