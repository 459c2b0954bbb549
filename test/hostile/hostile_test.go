//go:build e2e

package hostile

import (
	"bytes"
	"fmt"
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
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

const (
	// nobody is the unprivileged user.
	nobody = 65534
	// most is the highest memory that ig can use, in bytes.
	most = 512 << 20
)

// folder returns a folder with files that every user can run.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostile")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// compile compiles a program of testdata into a folder.
func compile(t *testing.T, dir, source string, flags ...string) string {
	t.Helper()
	return igtest.CompileInto(t, dir, filepath.Join("testdata", source), "gcc", append([]string{"-g", "-O1", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"}, flags...)...)
}

// start starts a program as a user, until the test ends.
func start(t *testing.T, uid uint32, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		_ = os.Remove(fmt.Sprintf("/tmp/perf-%d.map", cmd.Process.Pid))
	})
	return cmd
}

// copied copies a program.
func copied(t *testing.T, from, to string) string {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, b, 0o755))
	return to
}

// run is a run of a gadget with a receiver.
type run struct {
	*igtest.Run
	t    *testing.T
	rcv  *receiver.Receiver
	peak int // bytes
}

func startRun(t *testing.T, gadget string, flags ...string) *run {
	t.Helper()
	rcv := igtest.Receiver(t)
	return &run{Run: igtest.Start(t, igtest.Import(t, gadget), append(igtest.ExportTo(rcv), flags...)...), t: t, rcv: rcv}
}

var peakLine = regexp.MustCompile(`VmHWM:\s+(\d+)`)

// until waits for ready, and fails if ig uses several times the allowed memory.
func (r *run) until(what string, ready func() bool) {
	r.t.Helper()
	r.Wait(what, func() bool {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.PID))
		if m := peakLine.FindSubmatch(status); m != nil {
			kb, _ := strconv.Atoi(string(m[1]))
			r.peak = kb << 10
		}
		require.Less(r.t, r.peak, 5*most, "ig's memory, while waiting for %s", what)
		return ready()
	})
}

func (r *run) stop() []receiver.Sample {
	r.t.Helper()
	r.Stop()
	require.Empty(r.t, r.rcv.Findings())
	return r.rcv.Samples()
}

// of returns the samples of an executable.
func of(samples []receiver.Sample, path string) []receiver.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool { return s.Resource["process.executable.path"] != path })
}

// TestFilesAndNames runs programs with files made to take memory, names that claim another identity, and names for terminals, all
// at once.
func TestFilesAndNames(t *testing.T) {
	igtest.NeedRoot(t)
	t.Setenv("INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_NAMES_SOURCE_LINES", "true")
	dir := folder(t)
	attack := compile(t, dir, "attack.c")
	bin := filepath.Join(dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	good, victim := copied(t, attack, filepath.Join(dir, "good")), copied(t, attack, filepath.Join(bin, "victim"))
	start(t, nobody, good, "good")
	start(t, 0, victim, "good")
	// These are the attackers.
	for name, write := range map[string]func(t *testing.T, program, to string){"twonames": twoNames, "nested": nested, "lying": lyingDebug} {
		write(t, attack, filepath.Join(dir, name))
		start(t, nobody, filepath.Join(dir, name), "evil")
	}
	start(t, nobody, copied(t, attack, filepath.Join(dir, "perfmap")), "perfmap")
	start(t, nobody, copied(t, attack, filepath.Join(dir, "names")), "names")
	start(t, nobody, "unshare", "-Urm", "sh", "-c", "mount -t tmpfs none "+bin+" && cp "+attack+" "+victim+" && exec "+victim+" evil")

	evil := regexp.MustCompile("evil.+name") // the name of a function in attack.c has control characters
	hasEvil := func(s receiver.Sample) bool {
		return slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return evil.MatchString(f.Name) })
	}
	r := startRun(t, "profile_cpu", "--frequency=99", "--unwind=frame-pointers")
	r.until("samples", func() bool {
		samples := r.rcv.Samples()
		for _, path := range []string{good, victim} {
			if igtest.Total(igtest.Through(of(samples, path), "good_work")) <= 200 {
				return false
			}
		}
		return slices.ContainsFunc(samples, hasEvil)
	})
	samples := r.stop()
	t.Logf("ig's peak memory: %d MiB", r.peak>>20)
	for _, name := range []string{"twonames", "nested", "lying", "perfmap", "names"} {
		require.NotEmpty(t, of(samples, filepath.Join(dir, name)), name)
	}

	t.Run("memory", func(t *testing.T) { require.Less(t, r.peak, most) })
	t.Run("others keep their names", func(t *testing.T) {
		for _, path := range []string{good, victim} {
			all := of(samples, path)
			// Files are read one after another, with pauses after expensive ones, so names come some seconds after the attackers'.
			named := igtest.Through(all, "good_work")
			require.NotEmpty(t, named)
			from := slices.MinFunc(named, func(a, b receiver.Sample) int { return a.Start.Compare(b.Start) }).Start
			since := slices.DeleteFunc(slices.Clone(all), func(s receiver.Sample) bool { return s.Start.Before(from) })
			t.Logf("%s: %d of %d samples arrived before its names", filepath.Base(path), igtest.Total(all)-igtest.Total(since), igtest.Total(all))
			require.GreaterOrEqual(t, 100*igtest.Total(igtest.Through(since, "good_work")), 99*igtest.Total(since))
		}
	})
	t.Run("a path of one's own mounts", func(t *testing.T) {
		require.Zero(t, igtest.Total(igtest.Through(of(samples, victim), "evil_work")))
		require.Positive(t, igtest.Total(igtest.Through(slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool {
			return s.Resource["process.executable.path"] != ""
		}), "evil_work")), "the attacker is seen")
	})
	t.Run("control characters", func(t *testing.T) {
		for _, s := range samples {
			texts := []string{s.Service}
			for _, m := range []map[string]string{s.Resource, s.Attributes} {
				for k, v := range m {
					texts = append(texts, k, v)
				}
			}
			for _, f := range s.Stack {
				texts = append(texts, f.Name, f.SystemName, f.File, f.Mapping)
			}
			for _, text := range texts {
				require.False(t, strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }), "%q", text)
			}
		}
	})
	require.NotContains(t, r.Log.String(), "panic")
	require.False(t, bytes.ContainsAny(r.Log.Bytes(), "\x1b\u202e"))
}

// TestLiveEnds requires that a run ends if a program makes it too expensive.
func TestLiveEnds(t *testing.T) {
	igtest.NeedRoot(t)
	attack := compile(t, folder(t), "attack.c")
	start(t, nobody, attack, "malloc")
	r := startRun(t, "profile_alloc", "--everywhere", "--live")
	select {
	case <-r.Ended:
	case <-time.After(igtest.Patience):
		require.Fail(t, "the run goes on")
	}
	r.Stop()
	require.Regexp(t, `stopping the run: the probes cost .*, which exceeds --max-cost=5 \(percent of a CPU\)`, r.Log.String())
}

// TestMallocWithoutPause runs a program that allocates without pause. A second program, which allocates 1,000 times a second,
// must keep its probes. Two programs share the limit of 5 % of a CPU. On slow machines, a call costs up to 20 µs, so 5,000 calls
// a second would need more than a half.
func TestMallocWithoutPause(t *testing.T) {
	igtest.NeedRoot(t)
	dir := folder(t)
	attack := compile(t, dir, "attack.c")
	good := copied(t, attack, filepath.Join(dir, "good"))
	start(t, nobody, good, "allocate")
	r := startRun(t, "profile_alloc", "--uid="+strconv.Itoa(nobody))    // on a machine with hundreds of processes, all of them would take minutes
	sums := func(samples []receiver.Sample, path string) (n [2]int64) { // bytes with probes always attached, and in stretches
		for _, s := range of(samples, path) {
			if s.Type == "alloc_space" {
				n[map[string]int{"always": 0, "stretches": 1}[s.Attributes["alloc.attached"]]] += s.Total()
			}
		}
		return n
	}
	r.until("allocations of the good program", func() bool { return sums(r.rcv.Samples(), good)[0] > 0 })
	start(t, nobody, attack, "malloc")
	r.until("stretches", func() bool { return sums(r.rcv.Samples(), attack)[1] > 0 })
	from := sums(r.rcv.Samples(), good)
	r.until("more of the good program", func() bool {
		n := sums(r.rcv.Samples(), good)
		return n[0]-from[0]+n[1]-from[1] > 80e6 // about five seconds
	})
	samples := r.stop()
	g, a := sums(samples, good), sums(samples, attack)
	t.Logf("bytes with permanent probes and in stretches: %d of the good program, %d of the other", g, a)
	require.Greater(t, g[0]-from[0], 9*(g[1]-from[1]))
	require.Greater(t, a[1], a[0])
}

var waitsLine = regexp.MustCompile(`\nvoluntary_ctxt_switches:\s+(\d+)`)

// TestStackFlood: threads or brief processes with distinct stacks fill most rows of a gadget, but programs of other users still get
// rows.
func TestStackFlood(t *testing.T) {
	igtest.NeedRoot(t)
	for _, tc := range []struct {
		mode string
		rows int
	}{{"stacks", 2048}, {"processes", 8192}} {
		t.Run(tc.mode, func(t *testing.T) { floodStacks(t, tc.mode, tc.rows) })
	}
}

func floodStacks(t *testing.T, mode string, rows int) {
	dir := folder(t)
	attack := compile(t, dir, "attack.c")
	r := startRun(t, "profile_offcpu", "--unwind=frame-pointers", "--rows="+strconv.Itoa(rows),
		"--comm=attack", // the machine's other programs may need all rows
		"--annotate=offcpu:profiles.value-field=switches,offcpu:profiles.type=switches,offcpu:profiles.unit=count")
	waits := func(samples []receiver.Sample) (n int64) {
		for _, s := range samples {
			if s.Attributes["off_cpu.reason"] != "preempted" {
				n += s.Total()
			}
		}
		return n
	}
	full := func() int64 {
		return waits(slices.DeleteFunc(r.rcv.Samples(), func(s receiver.Sample) bool { return s.Attributes["thread.name"] != "[rows full]" }))
	}
	start(t, nobody, attack, mode)
	r.until("full rows", func() bool { return full() > int64(rows) })
	type program struct {
		path string
		pid  int
	}
	var good []program
	for _, uid := range []uint32{0, nobody - 1} {
		to := filepath.Join(dir, strconv.Itoa(int(uid)))
		require.NoError(t, os.Mkdir(to, 0o755))
		path := copied(t, attack, filepath.Join(to, "attack")) // with the same thread name
		good = append(good, program{path, start(t, uid, path, "waits").Process.Pid})
	}
	waited := func(pid int) int64 {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		require.NoError(t, err)
		n, err := strconv.ParseInt(string(waitsLine.FindSubmatch(status)[1]), 10, 64)
		require.NoError(t, err)
		return n
	}
	r.until("waits of the good programs", func() bool { return waited(good[0].pid) > 10_000 && waited(good[1].pid) > 10_000 })
	var want []int64
	for _, p := range good {
		require.NoError(t, syscall.Kill(p.pid, syscall.SIGSTOP))
		want = append(want, waited(p.pid))
	}
	samples := r.stop()
	t.Logf("the attacker has %d waits with a row; %d waits have none", waits(of(samples, attack)), full())
	var got []int64
	for i, p := range good {
		got = append(got, waits(of(samples, p.path)))
		t.Logf("%s: %d of %d waits have a row", p.path, got[i], want[i])
	}
	for i := range good {
		if 100*got[i] < 99*want[i] {
			for _, s := range samples { // these rows can have the missing waits
				if path := s.Resource["process.executable.path"]; path != attack && path != good[i].path {
					t.Logf("%d waits: %v %v %v", s.Total(), s.Resource, s.Attributes, s.Stack)
				}
			}
		}
		require.GreaterOrEqual(t, 100*got[i], 99*want[i])
	}
}
