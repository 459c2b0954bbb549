//go:build e2e

package hostile

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/deaf"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

const (
	// durationEnv names the variable with the time for which all attackers run at once.
	durationEnv = "HOSTILE_DURATION"
	// groupLimit is the memory limit of the cgroup of ig and its processes, in bytes.
	groupLimit = 512 << 20
	// deafTime is the longest time for which a file system that does not answer can block the unwinder.
	deafTime = 90 * time.Second
	// Samples around a restart, from beforeRestart until afterRestart, are not judged.
	beforeRestart, afterRestart = 5 * time.Second, 20 * time.Second
	// few is the allowed number of wrong samples, if it is more than one in a hundred. Restarts can leave little time between
	// them.
	few = 5
)

// group is a cgroup (version 1 or 2) with a memory limit and a share of CPU time, like a service's or a pod's. Everything else
// that this test starts also has one group.
type group struct {
	dir  string
	cpu  string // the same folder, or one in another hierarchy
	peak string // the file with its peak memory
}

func newGroup(t *testing.T, limit int) group {
	t.Helper()
	name := fmt.Sprintf("hostile-%d", os.Getpid())
	g := group{dir: filepath.Join("/sys/fs/cgroup", name), peak: "memory.peak"}
	file, root := "memory.max", "/sys/fs/cgroup"
	g.cpu = g.dir
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		g.dir, g.peak = filepath.Join("/sys/fs/cgroup/memory", name), "memory.max_usage_in_bytes"
		file, root = "memory.limit_in_bytes", "/sys/fs/cgroup/cpu"
		g.cpu = filepath.Join(root, name)
	} else {
		_ = os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+cpu"), 0) // without it, ig has no share of its own
	}
	others := filepath.Join(root, name+"-others")
	for _, dir := range slices.Compact([]string{g.dir, g.cpu, others}) {
		require.NoError(t, os.Mkdir(dir, 0o755), "creating a control group")
		t.Cleanup(func() {
			require.Eventually(t, func() bool { return os.Remove(dir) == nil }, time.Minute, 100*time.Millisecond)
		})
	}
	join(t, others, os.Getpid())
	t.Cleanup(func() { join(t, root, os.Getpid()) })
	require.NoError(t, os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.Itoa(limit)), 0))
	return g
}

func (g group) add(t *testing.T, pid int) {
	for _, dir := range slices.Compact([]string{g.dir, g.cpu}) {
		join(t, dir, pid)
	}
}

func join(t *testing.T, dir string, pid int) {
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
}

// peaks adds the peak memory of each program in the group, in bytes: "ig", "unwinder", "unwinder -read".
func (g group) peaks(into map[string]int) {
	pids, _ := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	for _, pid := range strings.Fields(string(pids)) {
		args, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		status, _ := os.ReadFile("/proc/" + pid + "/status")
		name, rest, _ := strings.Cut(string(args), "\x00")
		if name = filepath.Base(name); strings.HasPrefix(rest, "-read") {
			name += " -read"
		}
		if m := peakLine.FindSubmatch(status); m != nil {
			kb, _ := strconv.Atoi(string(m[1]))
			into[name] = max(into[name], kb<<10)
		}
	}
}

// startAttackers starts all attackers as nobody, and file systems that do not answer ig once deafNow is true.
func startAttackers(t *testing.T, dir, attack string, deafNow *atomic.Bool) {
	mode := func(name string) { start(t, nobody, copied(t, attack, filepath.Join(dir, name)), name) }
	for name, write := range map[string]func(t *testing.T, program, to string){"twonames": twoNames, "nested": nested, "lying": lyingDebug, "manyfiles": manyFiles} {
		write(t, attack, filepath.Join(dir, name))
		start(t, nobody, filepath.Join(dir, name), "evil")
	}
	for _, name := range []string{"perfmap", "names", "stacks", "futex", "threads", "context"} {
		mode(name)
	}
	startLinks(t, dir, attack)
	// These are a FUSE file system and an overlay over it. Root mounts them, as fusermount does for a user.
	content, err := os.ReadFile(attack)
	require.NoError(t, err)
	below, over, work := filepath.Join(dir, "fuse"), filepath.Join(dir, "overlay"), filepath.Join(dir, "work")
	for _, d := range []string{below, over, work} {
		require.NoError(t, os.Mkdir(d, 0o755))
	}
	deaf.Mount(t, below, content, func(who string) bool { return deafNow.Load() && (who == "ig" || who == "unwinder") })
	require.NoError(t, unix.Mount("none", work, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(work, unix.MNT_DETACH) })
	require.NoError(t, os.Mkdir(work+"/upper", 0o755))
	require.NoError(t, os.Mkdir(work+"/work", 0o755))
	require.NoError(t, unix.Mount("none", over, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", below, work, work)))
	t.Cleanup(func() { _ = unix.Unmount(over, unix.MNT_DETACH) })
	for _, d := range []string{below, over} {
		start(t, nobody, filepath.Join(d, "deaf"), "evil")
	}
}

// startLinks starts two programs. One has no symbols, and its debug link leads to a pipe and to an endless file. The other has
// its own root folder, in which links in .build-id folders lead out of it and in circles.
func startLinks(t *testing.T, dir, attack string) {
	links := filepath.Join(dir, "links")
	require.NoError(t, os.MkdirAll(filepath.Join(links, ".debug"), 0o755))
	program, debug := filepath.Join(links, "links"), filepath.Join(links, "links.debug")
	igtest.Output(t, "objcopy", "--only-keep-debug", attack, debug)
	igtest.Output(t, "objcopy", "--strip-all", "--add-gnu-debuglink="+debug, attack, program)
	require.NoError(t, os.Remove(debug))
	require.NoError(t, os.Symlink("/dev/zero", debug))
	require.NoError(t, unix.Mkfifo(filepath.Join(links, ".debug", "links.debug"), 0o666))
	start(t, nobody, program, "evil")

	root := filepath.Join(dir, "root")
	ids := filepath.Join(root, "usr/lib/debug/.build-id")
	require.NoError(t, os.MkdirAll(filepath.Join(ids, "ab"), 0o755))
	require.NoError(t, os.Symlink("../../../../../../../../proc/kcore", filepath.Join(ids, "ab", "cdef0123.debug")))
	require.NoError(t, os.Symlink("cd", filepath.Join(ids, "cd")))
	for _, id := range []string{"abcdef0123", "cdef012345"} {
		static := compileTo(t, filepath.Join(root, id), "-static", "-s", "-Wl,--build-id=0x"+id)
		start(t, nobody, "unshare", "-Ur", "chroot", root, "/"+filepath.Base(static), "evil")
	}
}

// interval holds a program's samples in one exporter interval.
type interval struct{ all, right int64 }

var endedLine = regexp.MustCompile(`restarting the (unwinder|file reader)[^\n]*`)

// TestAllAtOnce runs all attackers at once, with ig in a cgroup of 512 MiB, for HOSTILE_DURATION. ig must survive, and other
// programs must keep their names, whole stacks and services.
func TestAllAtOnce(t *testing.T) {
	igtest.NeedRoot(t)
	duration, err := time.ParseDuration(cmp.Or(os.Getenv(durationEnv), "45s"))
	require.NoError(t, err)
	t.Setenv("INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_NAMES_SOURCE_LINES", "true")
	dir := folder(t)
	attack := compile(t, dir, "attack.c")
	g := newGroup(t, groupLimit)
	honest := func(name string) string {
		path := copied(t, attack, filepath.Join(dir, name))
		pid := start(t, 0, path, "good").Process.Pid
		require.NoError(t, syscall.Setpriority(syscall.PRIO_PROCESS, pid, -10)) // this program's CPU time is not under attack
		return path
	}
	first := honest("honest")
	var deafNow atomic.Bool
	r := startRun(t, "profile_cpu", "--frequency=99")
	g.add(t, r.PID)
	r.until("samples", func() bool { return right(of(r.rcv.Samples(), first), "honest").right > 50 })
	startAttackers(t, dir, attack, &deafNow)
	deafNow.Store(true)

	peaks := map[string]int{}
	var restarts []time.Time
	look := func() {
		g.peaks(peaks)
		for len(restarts) < len(endedLine.FindAll([]byte(r.Log.String()), -1)) {
			restarts = append(restarts, time.Now())
		}
	}
	// A file system that does not answer blocks the unwinder once. The unwinder is restarted without that process.
	started := time.Now()
	r.until("restart of the unwinder", func() bool {
		look()
		return bytes.Contains([]byte(r.Log.String()), []byte("restarting the unwinder")) || time.Since(started) > deafTime
	})
	blocked := time.Since(started)
	r.until("whole stacks again", func() bool {
		look()
		return right(of(r.rcv.NewestSamples(), first), "honest").right > 20
	})
	t.Logf("whole stacks again %v after the start of the attack; the unwinder was blocked for %v of that", time.Since(started).Round(time.Second), blocked.Round(time.Second))
	began, fresh := time.Now(), map[string]time.Time{}
	for end := began.Add(duration); time.Now().Before(end); {
		if n := len(fresh); time.Since(began) >= time.Duration(n)*duration/3 {
			fresh[honest(fmt.Sprintf("fresh%d", n))] = time.Now()
		}
		next := time.Now().Add(5 * time.Second)
		r.until("end of the attack", func() bool { look(); return time.Now().After(next) })
	}
	samples := r.stop()
	top, err := os.ReadFile(filepath.Join(g.dir, g.peak))
	require.NoError(t, err)
	t.Logf("peaks in bytes: %v, of the control group %s; %d restarts: %s", peaks, strings.TrimSpace(string(top)), len(restarts), endedLine.FindAll([]byte(r.Log.String()), -1))

	outside := slices.DeleteFunc(of(samples, first), func(s receiver.Sample) bool {
		return s.Start.Before(began) || slices.ContainsFunc(restarts, func(at time.Time) bool {
			return s.Start.Before(at.Add(afterRestart)) && s.End.After(at.Add(-beforeRestart))
		})
	})
	all, in := right(of(samples, first), "honest"), right(outside, "honest")
	t.Logf("%d of %d samples of the good program have names, whole stacks and its service; outside of restarts %d of %d", all.right, all.all, in.right, in.all)
	for path, at := range fresh {
		of := of(samples, path)
		named := slices.DeleteFunc(slices.Clone(of), func(s receiver.Sample) bool { return right([]receiver.Sample{s}, filepath.Base(path)).right == 0 })
		if len(named) == 0 {
			t.Logf("%s: none of %d samples is right", filepath.Base(path), right(of, "").all)
			logWrong(t, of, filepath.Base(path))
			continue
		}
		from := slices.MinFunc(named, func(a, b receiver.Sample) int { return a.Start.Compare(b.Start) }).Start
		t.Logf("%s: right after %v, %d of %d samples", filepath.Base(path), from.Sub(at).Round(time.Second), right(named, "").all, right(of, "").all)
	}
	logWrong(t, outside, "honest")
	require.NotContains(t, r.Log.String(), "panic")
	require.GreaterOrEqual(t, 100*all.right, 90*all.all, "with the restarts")
	require.LessOrEqual(t, in.all-in.right, max(in.all/100, few), "outside of restarts")
}

// right counts the samples, and the samples with the names and whole stack of good_work and with the service.
func right(samples []receiver.Sample, service string) (n interval) {
	for _, s := range samples {
		has := func(name string) bool {
			return slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return f.Name == name })
		}
		n.all += s.Total()
		if has("good_work") && has("main") && s.Service == service {
			n.right += s.Total()
		}
	}
	return n
}

// logWrong logs the stacks of wrong samples, the most frequent first.
func logWrong(t *testing.T, samples []receiver.Sample, service string) {
	stacks := map[string]int64{}
	for _, s := range samples {
		if n := right([]receiver.Sample{s}, service); n.right == 0 {
			labels := []string{s.Service}
			for _, f := range s.Stack {
				labels = append(labels, f.Label())
			}
			stacks[strings.Join(labels, " ")] += n.all
		}
	}
	wrong := slices.SortedFunc(maps.Keys(stacks), func(a, b string) int { return cmp.Compare(stacks[b], stacks[a]) })
	for _, stack := range wrong[:min(5, len(wrong))] {
		t.Logf("wrong: %d of %s", stacks[stack], stack)
	}
}

// compileTo compiles attack.c into a file.
func compileTo(t *testing.T, to string, flags ...string) string {
	t.Helper()
	igtest.Output(t, "gcc", append([]string{"-O1", "-fno-omit-frame-pointer", "-pthread", "-o", to, "testdata/attack.c"}, flags...)...)
	return to
}
