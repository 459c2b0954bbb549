package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// testSoak profiles short-lived pods with always new stacks for a long time. It measures sizes and counts every minute, and
// checks that those in growing do not grow.
func testSoak(duration time.Duration) func(*testing.T, cluster) {
	return func(t *testing.T, c cluster) {
		begun := time.Now()
		c.kubectl(t, "gadget", "run", image, "-A", "--detach", "--name", "soak", "--otel-profiles-exporter=collector",
			"--otel-profiles-interval=10s", "--frequency=199", "--format-stacks=false")
		// The pods of the other steps use half of a small machine's CPU time.
		c.kubectl(t, "delete", "namespace", "shop", "--wait=false")
		c.apply(t, "soak.yaml")
		pid := c.daemonProcess(t)
		got := &follower{folder: filepath.Join(c.lab, "state", "collector")}
		every := max(min(duration/60, time.Minute), 5*time.Second)

		var points []point
		t.Logf("every %s:\n%s", every, pointHeader)
		for next := begun; time.Since(begun) < duration; {
			time.Sleep(5 * time.Second)
			require.NoError(t, got.read())
			// This deletes pods that have exited. Once per interval, the loop also deletes pods that a controller replaces.
			c.soakKubectl(t, "-n", "soak", "delete", "pods", "-l", "app=churn", "--field-selector=status.phase=Succeeded", "--wait=false")
			if time.Now().Before(next) {
				continue
			}
			c.soakKubectl(t, "-n", "soak", "delete", "pods", "-l", "app=replaced", "--wait=false")
			next = next.Add(every)
			p := c.point(t, pid, begun)
			p.pods, p.stacks = len(got.pods), len(got.stacks)
			points = append(points, p)
			t.Log(p)
		}
		c.kubectl(t, "delete", "namespace", "soak", "--wait=false")
		c.kubectl(t, "gadget", "delete", "soak")
		c.requireAccounted(t)
		require.Equal(t, pid, c.daemonProcess(t), "the daemon's process has changed")
		require.NoError(t, got.read())

		figures := c.figures(t)
		rows, lost := figures.rows(), figures.sum["ig_otel_profiles_rows_stack_lost_total"]
		t.Logf("%.0f s: %d pods with %d distinct stacks have arrived; %.0f rows read, %.0f dropped, %.0f with a stack lost in the kernel",
			time.Since(begun).Seconds(), len(got.pods), len(got.stacks), rows.read, rows.dropped, lost)
		t.Logf("the daemon's counters:\n%s", figures.text)
		require.Greater(t, len(got.pods), 6, "no pods have been replaced")
		require.Zero(t, lost)
		require.Zero(t, rows.dropped)
		require.Zero(t, got.noStack, "samples of the workload without its own frames, of %d", got.samples)
		if len(points) < 12 {
			return
		}
		t.Logf("medians\n%s", quarters(points))
		if duration < time.Hour {
			t.Logf("%s is too short to detect growth", duration)
			return
		}
		for _, g := range growing {
			before, after := g.medians(points)
			require.LessOrEqual(t, after, before+before/10+g.slack, "%s grows: median of the second quarter %d, of the last quarter %d",
				g.name, before, after)
		}
	}
}

// soakKubectl runs kubectl. It only logs a failure, because the next round repairs it.
func (c cluster) soakKubectl(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.try(ctx, append([]string{"kubectl"}, args...)...); err != nil {
		t.Log(err)
	}
}

// point holds the daemon's sizes and counts at one time.
type point struct {
	at, cpu                      time.Duration
	rss, heap, goroutines, files int64
	userStacks, kernelStacks     int64
	rows                         rowCounts
	lost, queue                  int64
	pods, stacks                 int // arrived so far
}

// These values must not grow by more than a tenth and the given variation. For later clients, Inspektor Gadget keeps the last
// 1,024 events of an instance without a client. There is one event a second, so memory grows for the first 17 minutes, and only
// later measurements count.
var growing = []growth{
	{"resident memory in bytes", 16 << 20, func(p point) int64 { return p.rss }},
	{"heap goal in bytes", 16 << 20, func(p point) int64 { return p.heap }},
	{"goroutines", 20, func(p point) int64 { return p.goroutines }},
	{"open files", 20, func(p point) int64 { return p.files }},
}

type growth struct {
	name  string
	slack int64
	of    func(point) int64
}

// medians returns the medians of the second and of the last quarter.
func (g growth) medians(points []point) (before, after int64) {
	n := len(points)
	return g.median(points[n/4 : n/2]), g.median(points[n-n/4:])
}

func (g growth) median(points []point) int64 {
	var values []int64
	for _, p := range points {
		values = append(values, g.of(p))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func quarters(points []point) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tsecond quarter\tlast quarter")
	for _, g := range growing {
		before, after := g.medians(points)
		fmt.Fprintf(w, "%s\t%d\t%d\n", g.name, before, after)
	}
	_ = w.Flush()
	return b.String()
}

const pointHeader = "  time | RSS MiB | heap goal MiB | goroutines | files | user stacks | kernel stacks | CPU s | rows read | delivered | dropped | stack lost | queue kB | pods | distinct stacks"

func (p point) String() string {
	return fmt.Sprintf("%5.0f s | %5.1f | %5.1f | %d | %d | %d | %d | %.1f | %.0f | %.0f | %.0f | %d | %d | %d | %d", p.at.Seconds(),
		float64(p.rss)/(1<<20), float64(p.heap)/(1<<20), p.goroutines, p.files, p.userStacks, p.kernelStacks, p.cpu.Seconds(),
		p.rows.read, p.rows.delivered, p.rows.dropped, p.lost, p.queue/1000, p.pods, p.stacks)
}

func (c cluster) point(t *testing.T, pid int, begun time.Time) point {
	t.Helper()
	p := point{cpu: igtest.CPUTime(t, pid), rss: igtest.Resident(pid)}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	p.files = int64(len(files))
	stacks := stackEntries(t, pid)
	p.userStacks, p.kernelStacks = stacks["ig_ustack"], stacks["ig_kstack"]

	figures := c.figures(t)
	p.at, p.rows = time.Since(begun), figures.rows()
	p.lost = int64(figures.sum["ig_otel_profiles_rows_stack_lost_total"])
	p.queue = int64(figures.sum["ig_otel_profiles_exporter_queue_size_bytes"])
	p.heap = int64(figures.sum["go_memstats_next_gc_bytes"])
	p.goroutines = int64(figures.sum["go_goroutines"])
	return p
}

// stackEntries counts the entries of the process's eBPF maps, by map name.
func stackEntries(t *testing.T, pid int) map[string]int64 {
	t.Helper()
	sums := map[string]int64{}
	ids := programsAndMaps(t, pid).maps
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		m, err := ebpf.NewMapFromID(ebpf.MapID(id))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		require.NoError(t, err)
		if info, err := m.Info(); err == nil && strings.HasSuffix(info.Name, "stack") {
			sums[info.Name] += entries(m)
		}
		require.NoError(t, m.Close())
	}
	return sums
}

func entries(m *ebpf.Map) int64 {
	// If a key is deleted during the iteration, the kernel starts again from the first key. The map's size limits the count.
	var n int64
	key, next := make([]byte, m.KeySize()), make([]byte, m.KeySize())
	for err := m.NextKey(nil, next); err == nil && n < int64(m.MaxEntries()); err = m.NextKey(key, next) {
		n++
		key, next = next, key
	}
	return n
}

// follower reads the Collectors' files while they are written. So it misses nothing when a Collector begins a new file and
// removes an old one.
type follower struct {
	folder string
	name   string
	file   *os.File
	rest   []byte // of an unfinished line

	pods             map[string]bool
	stacks           map[uint64]bool
	samples, noStack int // of the workload
}

func (f *follower) read() error {
	for {
		if f.file == nil {
			// The current file has no time in its name.
			names, err := filepath.Glob(filepath.Join(f.folder, "*.jsonl"))
			if err != nil {
				return err
			}
			slices.SortFunc(names, func(a, b string) int { return len(a) - len(b) })
			if len(names) == 0 {
				return nil
			}
			f.name = names[0]
			if f.file, err = os.Open(f.name); err != nil {
				return err
			}
		}
		// This comes before the read, so that a rename during the read is noticed next time.
		current, err := os.Stat(f.name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := f.drain(); err != nil {
			return err
		}
		open, err := f.file.Stat()
		if err != nil {
			return err
		}
		if current == nil || os.SameFile(current, open) {
			return nil
		}
		if err := f.file.Close(); err != nil {
			return err
		}
		f.file = nil
	}
}

func (f *follower) drain() error {
	in := bufio.NewReaderSize(f.file, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		line = append(f.rest, line...)
		f.rest = nil
		if errors.Is(err, io.EOF) {
			f.rest = line
			return nil
		}
		if err != nil {
			return err
		}
		reqs, err := receiver.ReadJSONLines(bytes.NewReader(line))
		if err != nil {
			return err
		}
		for _, req := range reqs {
			for _, s := range receiver.Resolve(req) {
				f.add(s)
			}
		}
	}
}

func (f *follower) add(s receiver.Sample) {
	if s.Resource["k8s.namespace.name"] != "soak" {
		return
	}
	if f.pods == nil {
		f.pods, f.stacks = map[string]bool{}, map[uint64]bool{}
	}
	f.pods[s.Resource["k8s.pod.uid"]+s.Resource["k8s.pod.name"]] = true
	if !strings.HasPrefix(s.Attributes["thread.name"]+s.Attributes["process.executable.name"], "churn-") {
		return // the runtime's own work in the container
	}
	f.samples++
	h := fnv.New64a()
	_, _ = io.WriteString(h, s.Resource["k8s.pod.name"])
	for _, frame := range s.Stack {
		_, _ = io.WriteString(h, frame.Label()+";")
	}
	f.stacks[h.Sum64()] = true
	if len(s.Stack) == 0 || s.Stack[0].Name == "[no stack]" || s.Stack[0].Name == "[lost user stack]" {
		f.noStack++
	}
}
