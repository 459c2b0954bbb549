//go:build e2e

package polyglot

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

var (
	soak  = flag.Duration("soak", 0, "how long TestSoak lets processes come and go; 0 leaves it out")
	kills = flag.Int("kills", 3, "how often TestKills kills the unwinder")
	every = flag.Duration("kill-every", 15*time.Second, "how long TestKills leaves it alone in between")
)

func readClosingLines(t *testing.T, log string) ClosingLines {
	t.Helper()
	b, err := ReadClosingLines(log)
	require.NoError(t, err, "%s", log)
	t.Logf("closing lines: %+v", b)
	return b
}

// unwinderPID returns the unwinder of a run, or 0 if there is none. Unwinders that read files have -read.
func (r *gadgetRun) unwinderPID() int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(r.t, err)
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if strings.Contains(string(command), "\x00-read\x00") {
			continue
		}
		head, tail, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(tail)
		if strings.HasSuffix(head, "(unwinder") && len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(r.cmd.Process.Pid) {
			pid, err := strconv.Atoi(strings.Fields(head)[0])
			require.NoError(r.t, err)
			return pid
		}
	}
	return 0
}

// comeAndGo is a loop of short programs in several languages. It pauses, so other processes also get CPU time.
const comeAndGo = `echo ready
while :; do
	/usr/bin/perl -e '$x += $_ * $_ for 1 .. 100000' &
	/usr/bin/python3 -c 'sum(i * i for i in range(100000))' &
	/bin/bash -c 'for ((i = 0; i < 3000; i++)); do :; done' &
	/usr/bin/php -r 'for ($i = 0; $i < 300000; $i++);' &
	gcc -O1 -c -x c -o /dev/null - <<-END
	#include <stdio.h>
	int main(void) { printf("%d", 1); return 0; }
	END
	wait
	sleep 1
done`

func startComeAndGo(t *testing.T, limit time.Duration) {
	t.Helper()
	p := &loads.Program{Load: loads.Load{Name: "come-and-go"}, Dir: t.TempDir(), Args: []string{"/bin/bash", "-c", comeAndGo}}
	r, err := p.Start(t.Context(), limit)
	require.NoError(t, err)
	t.Cleanup(func() { r.Stop() })
}

// TestSoak runs short-lived processes for -soak. The unwinder must not exit by itself, its memory and ig's memory must not
// grow, and all losses must be counted.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		t.Skip("-soak is the duration: run make soak-languages SOAK=1h")
	}
	startComeAndGo(t, 2**soak)
	r := startRun(t, igtest.Import(t, "profile_cpu"), "--unwind=whole")
	require.True(t, r.wait("the first samples", patience, func() bool { return r.receiver.Stats().Samples > 0 }))
	first := r.unwinderPID()
	require.NotZero(t, first)
	var igMemory, memory []int64
	for end := time.Now().Add(*soak); time.Now().Before(end); time.Sleep(5 * time.Second) {
		pid := r.unwinderPID()
		require.Equal(t, first, pid, "the unwinder has ended and was restarted")
		igMemory, memory = append(igMemory, igtest.Resident(r.cmd.Process.Pid)), append(memory, igtest.Resident(pid))
		if n := len(memory); n%60 == 0 {
			t.Logf("after %d min: unwinder %d MiB, ig %d MiB, %d samples received", n/12, memory[n-1]>>20, igMemory[n-1]>>20, igtest.Total(r.receiver.Samples()))
		}
	}
	dropped := r.receiver.Stats().Dropped
	delivered := igtest.Total(r.stop())
	require.Zero(t, dropped, "the receiver has dropped requests, so the counts cannot be checked")
	require.Empty(t, r.receiver.Findings())
	b := readClosingLines(t, r.log.String())
	require.Zero(t, b.Restarts)
	require.NoError(t, b.Check(delivered))
	requireLevel(t, "the unwinder's memory", memory)
	requireLevel(t, "ig's memory", igMemory)
}

// requireLevel compares the medians of the last and the second quarter.
func requireLevel(t *testing.T, what string, values []int64) {
	t.Helper()
	n := len(values)
	if n < 16 {
		t.Logf("%s: %d values are too few to detect growth", what, n)
		return
	}
	median := func(v []int64) int64 { v = slices.Sorted(slices.Values(v)); return v[len(v)/2] }
	early, late := median(values[n/4:n/2]), median(values[3*n/4:])
	t.Logf("%s: %d MiB in the second quarter, %d MiB in the last, at most %d MiB", what, early>>20, late>>20, slices.Max(values)>>20)
	require.LessOrEqual(t, late, early+early/5+8<<20, "%s grows", what)
}

// TestKills kills the unwinder repeatedly while it works. Each time, the run goes on, and losses are counted.
func TestKills(t *testing.T) {
	running := startLoads(t, find(t, "c-fp", "python"))
	r := startRun(t, igtest.Import(t, "profile_cpu"), "--unwind=whole", "--frequency=49")
	require.True(t, r.wait("the first samples", patience, func() bool { return r.receiver.Stats().Samples > 0 }))
	for i := range *kills {
		time.Sleep(*every)
		pid := r.unwinderPID()
		require.NotZero(t, pid)
		at := time.Now()
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		require.True(t, r.wait("a new unwinder", 3*time.Minute, func() bool { now := r.unwinderPID(); return now != 0 && now != pid }))
		require.True(t, r.wait("new samples", 3*time.Minute, func() bool {
			for _, s := range r.receiver.Samples() {
				if s.Start.After(at.Add(time.Second)) {
					return true
				}
			}
			return false
		}))
		t.Logf("kill %d: the backend had new samples %.1f s later", i+1, time.Since(at).Seconds())
	}
	samples := r.stop()
	b := readClosingLines(t, r.log.String())
	require.EqualValues(t, *kills, b.Restarts)
	require.NoError(t, b.Check(igtest.Total(samples)))
	t.Logf("%.1f s without the unwinder, %.1f s a kill; %d taken stacks were lost, and %d rows have none", b.Away, b.Away/float64(*kills), b.Crashed, b.Lost)
	for _, p := range running {
		require.Positive(t, igtest.Total(ofProcess(samples)[p.PID]), "no samples of %s", p.Name)
	}
}

func find(t *testing.T, names ...string) []loads.Load {
	t.Helper()
	var found []loads.Load
	for _, name := range names {
		l, err := loads.Find(name)
		require.NoError(t, err)
		found = append(found, l)
	}
	return found
}
