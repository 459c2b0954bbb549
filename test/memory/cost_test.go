//go:build e2e

package memory

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

var (
	costFlag  = flag.Bool("cost", false, "measure what profile_alloc costs, and write it into docs/develop/testing/allocations.md")
	costRound = flag.Int("cost-rounds", 5, "how often each way is measured")
)

// watchedCost is a run of a program under the gadget.
type watchedCost struct {
	spent
	ig    float64       // CPUs that ig keeps busy
	igCPU time.Duration // ig's CPU time per repetition
	stats map[string]programStats
	log   string // of ig
	// untold counts lost events that are missing in the log.
	untold float64
}

// programStats holds the kernel's counts for all eBPF programs with the same name.
type programStats struct {
	runs uint64
	time time.Duration
}

func (w work) underIG(t *testing.T, how way, warm, n int) watchedCost {
	t.Helper()
	rcv := igtest.Receiver(t)
	cmd, in, out := w.begin(t, how)
	choose := w.choose
	if choose == nil {
		choose = []string{"--pid=" + strconv.Itoa(cmd.Process.Pid)}
	}
	flags := slices.Concat(choose, how.ig)
	image, attached := how.image, how.attached
	if image == "" {
		image, attached = igtest.Import(t, "profile_alloc"), "the first probes are attached"
	}
	if !how.discard {
		flags = append(flags, igtest.ExportTo(rcv)...)
	}
	ig := igtest.Start(t, image, flags...)
	ig.Says(attached)
	began, used := time.Now(), settled(t, ig.PID)
	r := watchedCost{spent: w.end(t, cmd, in, out, warm, n)}
	r.igCPU = igtest.CPUTime(t, ig.PID) - used
	r.ig = r.igCPU.Seconds() / time.Since(began).Seconds()
	r.igCPU /= time.Duration(warm + n)
	r.stats = statsOf(t)
	if how.image != "" {
		r.untold = lostUntold(t)
	}
	ig.Stop()
	r.log = ig.Log.String()
	return r
}

// settled waits until a new process uses little CPU time, and returns its CPU time up to then.
func settled(t *testing.T, pid int) time.Duration {
	t.Helper()
	for before := igtest.CPUTime(t, pid); ; {
		time.Sleep(time.Second) // it reads files first
		now := igtest.CPUTime(t, pid)
		if now-before < time.Second/5 {
			return now
		}
		before = now
	}
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
			continue // ended meanwhile
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

// ratio formats how much longer something takes, as a factor or, if small, as a percentage.
func ratio(v float64) string {
	if v < 2 {
		return fmt.Sprintf("%+.0f %%", 100*(v-1))
	}
	return fmt.Sprintf("%.1f times", v)
}

// TestCost measures the same work without a tool, with the gadget, and with other tools, in turn.
func TestCost(t *testing.T) {
	if !*costFlag {
		t.Skip("this takes half an hour: run make cost-memory")
	}
	igtest.NeedRoot(t)
	dir := t.TempDir()
	prefer(t, os.Getpid())
	var b strings.Builder
	fmt.Fprintf(&b, "\n`make cost-memory` wrote these tables on %s. The values are medians of %d rounds with one run of each tool.\n", time.Now().UTC().Format("2 January 2006"), *costRound)
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
		fmt.Fprintf(&b, "\n### %s\n\nWithout a tool, the program uses %.0f ns of CPU time per allocation.\n\n| tool | time | CPU time | loss in percent of one CPU | CPU time added per allocation | CPU time of `ig` |\n|---|---|---|---|---|---|\n",
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

// eachEvent measures the gadget's eBPF programs by the CPU time that the kernel counts for them.
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
	// This samples every allocation. There are few enough, so the gadget does not reduce the rate.
	w.command[1] = "400000"
	w.input = func(n int) string { return fmt.Sprintln(n * 100) }
	drawn := mean("--sample-bytes=1")
	return fmt.Sprintf(`
### The gadget's programs in the kernel

This table shows the time of the gadget's eBPF programs, measured with `+"`kernel.bpf_stats_enabled`"+`. The time does not include the trap.

| event | time |
|---|---|
| `+"`malloc`"+`, not sampled | %d ns |
| `+"`malloc`"+`, sampled, including its stack | %d ns |
| `+"`free`"+`, with `+"`--live`"+` | %d ns |
| the return of `+"`malloc`"+`, with `+"`--live`"+` | %d ns |
`, plain[0], drawn[0], live[1], live[2])
}

// writeCost replaces the text between two markers on the page.
func writeCost(t *testing.T, marker, text string) {
	t.Helper()
	if t.Failed() {
		return
	}
	path := cmp.Or(os.Getenv("COST_DOC"), "../../docs/develop/testing/allocations.md")
	igtest.WriteBetween(t, path, "<!-- begin "+marker+" -->\n", "<!-- end "+marker+" -->", text+"\n")
}
