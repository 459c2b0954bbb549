package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gpprof "github.com/google/pprof/profile"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/flamepage"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/pprof"
)

func TestFlagsThatAreRefused(t *testing.T) {
	tests := []struct{ args, want string }{
		{"1234", `unexpected argument "1234": choose a program with --pid`},
		{"--pid 1 extra", `unexpected argument "extra"`},
		{"--pid 0", "--pid 0: must be a process ID"},
		{"--pid abc", "--pid abc: must be a process ID, or several, such as 12,34; for a name, use --comm"},
		{"--pid 1,,2", "--pid 1,,2: must be"},
		{"--children", "set --pid"},
		{"--gadget alloc --pid 1000001,1000002,1000003,1000004,1000005,1000006,1000007,1000008,1000009,1000010", "too many processes for --gadget alloc"},
		{"--gadget off-cpu", "--gadget off-cpu: there is no such gadget: did you mean offcpu?"},
		{"--gadget offcu", "did you mean offcpu?"},
		{"--gadget page_faults", "did you mean pagefault?"},
		{"--gadget locks", "did you mean lock?"},
		{"--gadget memory --pid 1", "did you mean alloc?"},
		{"--gadget nonsense", "must be alloc, cpu, lock, offcpu, pagefault, or a gadget's image"},
		{"--secnds 3", "unknown flag: --secnds: did you mean --seconds?"},
		{"--frequency 20000", "--frequency 20000: must be 1 to 10000"},
		{"--seconds 1.5s", "--seconds 1.5s: must be 1 to"},
		{"--seconds soon", "such as 90s or 2m"},
		{"--pid 1 --comm x", "cannot be used together"},
		{"--comm x --container y", "cannot be used together"},
		{"--comm a-name-that-is-too-long", `use "a-name-that-is-"`},
		{"--seconds 0", "--seconds 0: must be 1 to"},
		{"--rows 0", "--rows 0"},
		{"--nonsense", "unknown flag: --nonsense: flags for ig and its gadgets come last, after \"--\""},
		{"--gadget alloc -p 1 --live", "come last"},
		{"--sec 3", "did you mean --seconds?"},
		{"--gadget off", "did you mean offcpu?"},
		{"--gadget profile_cp", "did you mean cpu?"},
		{"--gadget alloc", "use --pid, --comm or --container"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			_, err := parseProfile(strings.Fields(tt.args))
			require.ErrorContains(t, err, tt.want)
		})
	}
	require.ErrorContains(t, run(context.Background(), []string{"dif", "a", "b"}), `unknown command "dif": did you mean diff?`)
	require.ErrorIs(t, run(context.Background(), []string{"chek", "a", "b"}), errCommand)
	require.ErrorContains(t, run(context.Background(), []string{"hist"}), "did you mean history?")
	require.ErrorIs(t, run(context.Background(), []string{"help", "diff"}), pflag.ErrHelp)
	var out bytes.Buffer
	require.ErrorContains(t, runDiff([]string{"--rws", "3"}, &out), "did you mean --rows?")
	require.ErrorContains(t, runDiff([]string{"a"}, &out), "two results, not 1")
	require.ErrorContains(t, runDiff([]string{"a", "b", "c"}, &out), "two results, not 3")
	require.ErrorContains(t, runDiff([]string{"a", "b", "--work", "1"}, &out), "--work must be two numbers")
	require.ErrorContains(t, runOpen(context.Background(), []string{"a", "b"}, &out), "takes one result, not 2")
	require.ErrorContains(t, runOpen(context.Background(), []string{t.TempDir()}, &out), "there are no profiles in")
	require.ErrorContains(t, runDemo(context.Background(), []string{"x"}, &out), `unexpected argument "x"`)
}

func TestFlagsForIG(t *testing.T) {
	o, err := parseProfile(strings.Fields("--pid 7 --seconds 3 -- --frequency=99"))
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, o.time)
	args := igArgs(o, gadget{image: "profile_cpu:dev", archive: "x.tar"}, "127.0.0.1:1")
	require.Subset(t, args, []string{"--pid=7", "--host", "--verify-image=false"})
	require.Equal(t, "--frequency=99", args[len(args)-1])

	o, err = parseProfile(strings.Fields("--pid 7,8,7 --seconds 2m --gadget profile_cpu"))
	require.NoError(t, err)
	require.Equal(t, 2*time.Minute, o.time)
	require.Equal(t, "cpu", o.gadget)
	require.Subset(t, igArgs(o, gadget{name: "profile_cpu"}, "x:1"), []string{"--pid=7", "--also-pids=8"})
	o, err = parseProfile(strings.Fields("--pid 7,8 --gadget trace_open"))
	require.NoError(t, err)
	require.Contains(t, igArgs(o, gadget{name: "trace_open"}, "x:1"), "--filter-expr=proc.pid in [7,8]")

	for image, want := range map[string]string{"trace_open": "trace_open", "registry.example/off-cpu:v1": "registry.example/off-cpu:v1", "profile_lock": "lock"} {
		o, err = parseProfile([]string{"--gadget", image})
		require.NoError(t, err)
		require.Equal(t, want, o.gadget)
	}

	o, err = parseProfile([]string{"--container", "shop"})
	require.NoError(t, err)
	args = igArgs(o, gadget{image: "trace_open:v0.55.0"}, "127.0.0.1:1")
	require.Contains(t, args, "--containername=shop")
	require.NotContains(t, args, "--host", "ig finds containers only without it")
	require.NotContains(t, args, "--verify-image=false", "somebody else's image is verified")
}

// TestFrequency requires that a short run samples more often than the gadget's default, if the gadget samples by time.
func TestFrequency(t *testing.T) {
	hertz := func(args, name string) (int, error) {
		o, err := parseProfile(strings.Fields(args))
		require.NoError(t, err)
		return o.hertz(gadget{name: name})
	}
	for _, tt := range []struct {
		args, gadget string
		want         int
	}{
		{"--seconds 10", "profile_cpu", shortFrequency},
		{"--seconds 600", "profile_cpu", 0},
		{"--seconds 600 --frequency 49", "profile_cpu", 49},
		{"--seconds 10", "profile_offcpu", 0},
		{"--seconds 10 -- --frequency=19", "profile_cpu", 0},
		{"--seconds 10 -- --verbose", "profile_cpu", shortFrequency},
		{"--frequency 200", "somebody_elses", 200},
	} {
		got, err := hertz(tt.args, tt.gadget)
		require.NoError(t, err)
		require.Equal(t, tt.want, got, tt.args)
	}
	_, err := hertz("--frequency 99", "profile_offcpu")
	require.ErrorContains(t, err, "profile_offcpu counts events")
	_, err = hertz("--frequency 99 -- --frequency 98", "profile_cpu")
	require.ErrorContains(t, err, "twice")
	require.Contains(t, igArgs(options{frequency: 99}, gadget{}, "x:1"), "--frequency=99")
}

func TestChildren(t *testing.T) {
	require.Equal(t, []int{7, 8, 11, 9, 12}, withChildren([]int{7, 8}, map[int]int{7: 1, 8: 1, 9: 8, 10: 1, 11: 7, 12: 9, 8000: 8000}))
	require.Equal(t, []int{5, 6}, withChildren([]int{5}, map[int]int{5: 6, 6: 5}), "PIDs are used again")
	require.Equal(t, os.Getppid(), parents()[os.Getpid()])
	o, err := parseProfile([]string{"--pid", fmt.Sprint(os.Getppid()), "--children"})
	require.NoError(t, err)
	require.Equal(t, []string{"--host", fmt.Sprintf("--pid=%d", os.Getppid()), "--include-children"}, o.target.igFlags())
	require.Zero(t, o.target.one(), "the table names the programs")
	require.Contains(t, o.target.String(), " and its child processes")
	for _, several := range []string{"", "alloc"} {
		o, err = parseProfile([]string{"--pid", fmt.Sprint(os.Getppid(), ",1"), "--children", "--gadget", several})
		require.NoError(t, err)
		o.settle()
		require.Equal(t, []string{"--host", fmt.Sprintf("--pid=%d", os.Getppid()), "--also-pids=1", "--include-children"}, o.target.igFlags())
		require.Contains(t, o.target.String(), " and their child processes")
	}
	// Other gadgets do not look for child processes.
	child := exec.CommandContext(t.Context(), "sleep", "60")
	require.NoError(t, child.Start())
	o, err = parseProfile([]string{"--pid", fmt.Sprint(os.Getppid()), "--children", "--gadget", "trace_open:latest"})
	require.NoError(t, err)
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	require.NoError(t, o.target.exists(nil), "children may exit at any time")
	o.settle()
	require.Contains(t, o.target.list, os.Getpid())
	require.Contains(t, o.target.igFlags()[1], "--filter-expr=proc.pid in [")
}

// TestCPUTime requires that a process's CPU time includes user and system time.
func TestCPUTime(t *testing.T) {
	used := func() (sum, system time.Duration) {
		var of syscall.Rusage
		require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &of))
		system = time.Duration(of.Stime.Nano())
		return time.Duration(of.Utime.Nano()) + system, system
	}
	before, system := used()
	for ; system < 100*time.Millisecond; before, system = used() {
		_, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
	}
	read := usageOf([]int{os.Getpid(), 1 << 30})
	require.Len(t, read.own, 1)
	got := read.own[os.Getpid()]
	after, _ := used()
	const rounding = 20 * time.Millisecond // one tick each for user and system time
	require.GreaterOrEqual(t, got, before-rounding)
	require.LessOrEqual(t, got, after+rounding)
}

// TestOthersBelow runs a shell whose child processes use the CPU time and are not sampled. The output must say how much time
// they used.
func TestOthersBelow(t *testing.T) {
	const work = `i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done`
	shell := exec.Command("sh", "-c", `read a; sh -c 'read a; sh -c "$0"; echo done; read a' "$0"; :`, work)
	in, err := shell.StdinPipe()
	require.NoError(t, err)
	out, err := shell.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, shell.Start())
	defer func() { require.NoError(t, errors.Join(in.Close(), shell.Process.Kill())); _ = shell.Wait() }()
	pid := shell.Process.Pid
	before := usageOf([]int{pid})
	fmt.Fprint(in, "\n\n")
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	own, below := usageOf([]int{pid}).since(before)
	require.Less(t, own, below)
	require.Greater(t, below, 50*time.Millisecond)

	own, below = usageOf(nil).since(before)
	require.Zero(t, own+below, "what has ended has no negative time")

	r := &result{opts: options{target: target{list: []int{pid}}, time: time.Second}, gadget: gadget{name: "profile_cpu"}, below: 2500 * time.Millisecond}
	const want = "child processes of --pid used 2.50 s of CPU time and are not shown: --children samples them"
	require.ErrorContains(t, r.nothing(), want)
	sample := []receiver.Sample{timed(50, receiver.Frame{Name: "fork", Type: "kernel"})}
	require.Len(t, r.remarks(sample), 1)
	require.Contains(t, r.remarks(sample)[0], want)
	r.opts.target.settled = true
	require.Contains(t, r.remarks(sample)[0], "child processes that started during the run used 2.50 s", "--children was already set")
	r.cpu = time.Minute
	require.Empty(t, r.remarks(sample), "little beside what was sampled")
}

func TestNoRuntime(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "x.sock")
	require.Contains(t, noRuntime([]string{socket}), "no container runtime listens on this machine")
	defer func(list []string) { runtimeSockets = list }(runtimeSockets)
	runtimeSockets = []string{socket}
	require.ErrorContains(t, target{container: "shop"}.exists(nil), "--container shop: no container runtime listens", "before a gadget is started")
	require.NoError(t, target{container: "shop"}.exists([]string{"--docker-socketpath=/run/other.sock"}))
	require.NoError(t, os.WriteFile(socket, nil, 0o600))
	require.Empty(t, noRuntime([]string{socket}))
	require.NoError(t, target{container: "shop"}.exists(nil))
}

func TestTargetThatIsNotThere(t *testing.T) {
	require.ErrorContains(t, target{list: []int{1 << 30}}.exists(nil), "there is no process 1073741824")
	require.NoError(t, target{list: []int{os.Getpid()}}.exists(nil))
	require.NoError(t, target{comm: "not-yet"}.exists(nil))

	threads, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	for _, thread := range threads {
		var id int
		_, err := fmt.Sscan(thread.Name(), &id)
		require.NoError(t, err)
		if id != os.Getpid() {
			require.ErrorContains(t, target{list: []int{id}}.exists(nil), fmt.Sprintf("%d is a thread of process %d", id, os.Getpid()))
		}
	}
	require.Equal(t, "a_b_.c-d", target{comm: "a/b\n.c-d"}.fileName())
	require.Equal(t, "azAZ09", target{container: "azAZ09"}.fileName())
	require.Equal(t, "7", target{list: []int{7, 8}}.fileName())
}

func TestWhyThereIsNothing(t *testing.T) {
	of := func(t target, gadget string) *result {
		r := &result{opts: options{target: t, time: 5 * time.Second}, run: runInfo{Seconds: 4}, log: "level=info msg=fine\nlevel=warning msg=\"no room\"\nlevel=warning msg=\"container-collection isn't available\"\n"}
		r.gadget.name = gadget
		return r
	}
	r := of(target{list: []int{os.Getpid()}}, "profile_cpu")
	require.ErrorContains(t, r.nothing(), "used no CPU time in 4 s: --gadget offcpu")
	require.ErrorContains(t, r.nothing(), "no room")
	require.NotContains(t, r.nothing().Error(), "container-collection")
	require.NotContains(t, r.nothing().Error(), "fine")
	r.cpu = 20 * time.Millisecond
	require.ErrorContains(t, r.nothing(), "0.02 s of CPU time in 4 s: sample for longer")
	r.gone = true
	require.ErrorContains(t, r.nothing(), "has exited")
	require.ErrorContains(t, of(target{comm: "nobody-has-this"}, "profile_cpu").nothing(), "no program or thread has the name")
	require.ErrorContains(t, of(target{container: "x"}, "profile_cpu").nothing(), "list-containers")
	require.ErrorContains(t, of(target{container: "x"}, "profile_cpu").nothing(), "container-collection")
	require.ErrorContains(t, of(target{}, "profile_cpu").nothing(), "idle")
	for _, who := range []target{{}, {list: []int{os.Getpid()}}, {comm: commOf(os.Getpid())}} {
		busy := of(who, "profile_pagefault")
		busy.cpu = time.Second
		require.ErrorContains(t, busy.nothing(), "no page fault occurred in 4 s")
		busy = of(who, "trace_open")
		busy.cpu = time.Second
		require.ErrorContains(t, busy.nothing(), "the gadget recorded no events")
	}
	require.ErrorContains(t, of(target{list: []int{os.Getpid()}}, "profile_offcpu").nothing(), "a wait counts when it ends")
	require.ErrorContains(t, of(target{comm: "nobody-has-this"}, "profile_lock").nothing(), "no program or thread has the name")
	r = of(target{comm: commOf(os.Getpid())}, "profile_lock")
	require.ErrorContains(t, r.nothing(), "no wait for a lock ended", "a program that uses the CPU need not wait for locks")
	r.log = "level=info msg=\"captures: 9 events, 9 sampled: 0 added to rows, 0 inner calls, 9 of other kinds, 0 not decoded\"\n"
	require.ErrorContains(t, r.nothing(), "9 waits in the system call futex belong to no recognized lock")
	require.NotContains(t, r.nothing().Error(), "no wait for a lock ended")
	r = of(target{list: []int{os.Getpid()}}, "profile_lock")
	require.ErrorContains(t, r.nothing(), "Go parks goroutines", "this test is a Go program")
	r.log = "level=info msg=\"captures: 9 of other kinds\"\n"
	require.ErrorContains(t, r.nothing(), "Go parks goroutines")
	require.ErrorContains(t, r.nothing(), "9 waits in the system call futex belong to no recognized lock")
	r = of(target{list: []int{os.Getpid()}}, "profile_alloc")
	require.ErrorContains(t, r.nothing(), "used no CPU time")
	r.cpu = time.Second
	require.ErrorContains(t, r.nothing(), "Go's objects come from Go's own runtime", "more samples would not show them")
	r = of(target{comm: commOf(os.Getpid())}, "profile_alloc")
	require.ErrorContains(t, r.nothing(), "none of its allocations was sampled")
	r.log = "level=info msg=\"captures: 90 events, 9 sampled: 9 added to rows, 0 inner calls\"\n"
	require.ErrorContains(t, r.nothing(), "9 of its allocations were sampled, and all of them were freed before the gadget read them: omit --live")
	r.early = true
	require.ErrorContains(t, r.nothing(), "of them were freed before")
	r.log += "level=error msg=\"allocator: stopping the run: too dear\"\n"
	require.ErrorContains(t, r.nothing(), "ig exited early: allocator: stopping the run: too dear")
}

// writeArchive writes an OCI archive that contains only an index.
func writeArchive(t *testing.T, file, index string) {
	t.Helper()
	f, err := os.Create(file)
	require.NoError(t, err)
	w := tar.NewWriter(f)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "./index.json", Mode: 0o600, Size: int64(len(index))}))
	_, err = io.WriteString(w, index)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, f.Close())
}

// The package installs this program and ig in /usr/lib/ig-otel-profiles.
func TestGadgetsOfThePackage(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"usr/lib/ig-otel-profiles", "usr/share/ig-otel-profiles/gadgets"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	require.Equal(t, filepath.Join(root, "usr/share/ig-otel-profiles/gadgets"), gadgetsOf(filepath.Join(root, "usr/lib/ig-otel-profiles")))
	require.Equal(t, filepath.Join(root, "usr/share/ig-otel-profiles/gadgets"), gadgetsOf(filepath.Join(root, "usr/bin")))
	require.Empty(t, gadgetsOf(root))
	require.Contains(t, asStarted(usage, "/usr/bin/ig-otel-profile"), "\n  sudo ig-otel-profile --pid 1234")
	require.Equal(t, usage, asStarted(usage, "build/bin/profile"))
	require.Equal(t, "not 1: ig-otel-profile diff BEFORE AFTER", asStarted("not 1: profile diff BEFORE AFTER", "/usr/bin/ig-otel-profile"))
	require.Equal(t, "with: profile_cpu", asStarted("with: profile_cpu", "/usr/bin/ig-otel-profile"))
}

func TestChoiceOfGadget(t *testing.T) {
	dir := t.TempDir()
	where := install{ig: filepath.Join(dir, "ig"), gadgets: dir}
	_, err := where.choose("")
	require.ErrorContains(t, err, `no image profile_cpu.tar`)
	writeArchive(t, filepath.Join(dir, "profile_cpu.tar"), `{"manifests": [{"digest": "sha256:1"},
		{"digest": "sha256:2", "annotations": {"org.opencontainers.image.ref.name": "ghcr.io/inspektor-gadget/gadget/profile_cpu:mine"}}]}`)
	g, err := where.choose("")
	require.NoError(t, err)
	require.Equal(t, "profile_cpu:mine", g.image)
	require.Equal(t, "sha256:2", g.digest)

	g, err = where.choose("registry.example:5000/team/trace_malloc:v1@sha256:0123")
	require.NoError(t, err)
	require.Equal(t, "trace_malloc", g.name)
	require.Empty(t, g.archive)

	writeArchive(t, filepath.Join(dir, "profile_cpu.tar"), `{"manifests": []}`)
	_, err = where.choose("cpu")
	require.ErrorContains(t, err, "index.json names no image")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "profile_cpu.tar"), nil, 0o600))
	_, err = where.choose("cpu")
	require.ErrorContains(t, err, "no index.json")
}

// writeResult writes a result of 10 s at 100 Hz, in which a function was sampled n times.
func writeResult(t *testing.T, function string, n int64, info *runInfo) string {
	t.Helper()
	dir := t.TempDir()
	sample := timed(n, receiver.Frame{Name: function})
	sample.Attributes = map[string]string{"thread.name": "shop"}
	req := request(sample)
	of := req.ResourceProfiles[0]
	of.Resource.Attributes = []*commonpb.KeyValue{{Key: "process.executable.name", Value: text("shopd")}}
	of.ScopeProfiles[0].Profiles[0].ProfileId = nil // the same ID twice would be a repeated request
	exported(t, "otlp-json", filepath.Join(dir, samplesFile), req)
	if info != nil {
		require.NoError(t, info.write(dir))
	}
	return dir
}

func TestDiff(t *testing.T) {
	t.Chdir(t.TempDir())
	before := writeResult(t, "parse", 500, nil)
	after := writeResult(t, "inflate", 500, &runInfo{Target: "process 7 (shop)", Seconds: 20})
	var out bytes.Buffer
	require.NoError(t, runDiff([]string{before, after}, &out))
	require.Contains(t, out.String(), "milliseconds of CPU time for each second of the run")
	require.Contains(t, out.String(), "process 7 (shop), 20 s")
	var rows []string
	for line := range strings.Lines(out.String()) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	require.Contains(t, rows, "500 0 -500 100.0% → 0.0% -100.0 ±1.3 * parse")
	require.Contains(t, rows, "0 250 +250 0.0% → 100.0% +100.0 ±1.3 * inflate")
	require.Contains(t, rows, "500 250 -250 in all (-50%)")

	out.Reset()
	require.NoError(t, runDiff([]string{filepath.Join(before, samplesFile), after, "--work=1000,2000"}, &out))
	require.Contains(t, out.String(), "microseconds of CPU time for each unit of work")
	require.Contains(t, strings.Join(strings.Fields(out.String()), " "), "5000 2500 -2500 in all (-50%)")
	require.Contains(t, out.String(), filepath.Join(filepath.Dir(after), "difference-profiles-"+filepath.Base(after)+".html"))
	require.FileExists(t, filepath.Join(filepath.Dir(after), "difference-profiles-"+filepath.Base(after)+".html"), "beside the later result")
	here, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Empty(t, here)
	require.NotContains(t, out.String(), "the sums differ", "it was said")

	out.Reset()
	require.NoError(t, runDiff([]string{before, after, "-o", "none"}, &out))
	require.Contains(t, out.String(), "the sums differ: if the amounts of work differ, too, set them with --work BEFORE,AFTER")
	require.NotContains(t, out.String(), "drawn")

	out.Reset()
	require.NoError(t, runDiff([]string{before, before, "-o", "none"}, &out))
	require.Contains(t, out.String(), "no difference: 500 before and after")
	require.NotContains(t, out.String(), "--work")

	require.ErrorContains(t, runDiff([]string{before, t.TempDir()}, &out), "there are no profiles")
	empty := filepath.Join(t.TempDir(), "x.jsonl")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.ErrorContains(t, runDiff([]string{before, empty}, &out), "has no samples")
}

// TestDiffOfRenamedProgram requires a single root in the flame graph for a program that was renamed between two builds.
func TestDiffOfRenamedProgram(t *testing.T) {
	side := func(program string, names ...string) (samples []receiver.Sample) {
		for _, name := range names {
			s := timed(1, receiver.Frame{Name: name, Type: "native", Mapping: "/srv/" + program}, receiver.Frame{Type: "native", Mapping: "/srv/" + program, Address: 5})
			s.Service, s.Attributes = "host", map[string]string{"thread.name": name}
			s.Resource = map[string]string{"process.executable.name": program}
			samples = append(samples, s)
		}
		return samples
	}
	before := side("shop-1.2", "work", "idle")
	for _, s := range slices.Concat(oneRoot([][]receiver.Sample{before, before, side("shop-1.3", "work")}, 2)...) {
		require.Equal(t, "shop-1.2 → shop-1.3", report.Program(s))
		require.Equal(t, "host", s.Service)
		require.Equal(t, "shop-1.2 → shop-1.3+0x5", s.Stack[1].Label())
	}
	require.Equal(t, "shop-1.2", report.Program(before[0]), "what is given stays as it is")
	several := append(side("a", "x"), side("b", "x")...)
	require.Equal(t, "a", report.Program(oneRoot([][]receiver.Sample{several, side("c", "x")}, 1)[0][0]))
}

// TestInputs requires that diff and open accept all formats of profiles.
func TestInputs(t *testing.T) {
	jsonl := filepath.Join(writeResult(t, "parse", 500, nil), samplesFile)
	requests, _, err := read(jsonl)
	require.NoError(t, err)
	dir := t.TempDir()
	body, err := proto.Marshal(requests[0])
	require.NoError(t, err)
	lengths := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	file, err := pprof.File(requests[0])
	require.NoError(t, err)
	lines, err := os.ReadFile(jsonl)
	require.NoError(t, err)
	for name, data := range map[string][]byte{"rotated/profiles.jsonl": lines, "rotated/profiles-20261127T070000.000000000.jsonl": lines, "result/profiles.jsonl": lines, "result/profile.pb.gz": file, "profiles.pb": lengths, "profile.pb.gz": file, "folder/1.pb.gz": file, "folder/2.pb.gz": file, "both/a.pb": append(lengths, lengths...), "bad/x": []byte("nonsense")} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	for name, n := range map[string]int64{jsonl: 500, filepath.Join(dir, "profiles.pb"): 500, filepath.Join(dir, "profile.pb.gz"): 500, filepath.Join(dir, "folder"): 1000, filepath.Join(dir, "both"): 1000, filepath.Join(dir, "rotated"): 1000, filepath.Join(dir, "result"): 500} {
		info, samples, err := load(name)
		require.NoError(t, err, name)
		require.InDelta(t, 10, info.Seconds, 1e-9, name)
		total := int64(0)
		for _, s := range samples {
			require.Equal(t, "parse", s.Stack[0].Name, name)
			require.Equal(t, "CPU time", title(receiver.TypeOf(s)), name)
			require.Equal(t, "shop", s.Attributes["thread.name"], name)
			require.Equal(t, "shopd", report.Program(s), name)
			total += s.Total()
		}
		require.Equal(t, n, total, name)
		var out bytes.Buffer
		require.NoError(t, runDiff([]string{name, jsonl, "-o", "none"}, &out), name)
		drawn, err := draw(name)
		require.NoError(t, err)
		require.FileExists(t, filepath.Join(drawn, pageFile))
		require.NoError(t, os.RemoveAll(drawn))
	}
	requests[0].ResourceProfiles[0].ScopeProfiles[0].Profiles[0].TimeUnixNano += uint64(time.Hour)
	later, err := pprof.File(requests[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "folder", "3.pb.gz"), later, 0o600))
	info, _, err := load(filepath.Join(dir, "folder"))
	require.NoError(t, err)
	require.InDelta(t, 20, info.Seconds, 1e-9, "nothing was sampled between pprof files")
	require.Equal(t, 6*time.Second, covered([]span{{0, 1e9}, {5e9, 2e9}, {0, 2e9}, {6e9, 2e9}}), "profiles without a start are added")
	require.Equal(t, 5*time.Second, covered([]span{{5e9, 4e9}, {6e9, 1e9}, {8e9, 2e9}}), "a short profile in a longer one")
	requests[0].ResourceProfiles[0].ScopeProfiles[0].Profiles[0].DurationNano = 0
	file, err = pprof.File(requests[0])
	require.NoError(t, err)
	short := filepath.Join(dir, "short.pb.gz")
	require.NoError(t, os.WriteFile(short, file, 0o600))
	require.ErrorContains(t, runDiff([]string{short, jsonl}, io.Discard), "has no duration")
	drawn, err := draw(short)
	require.NoError(t, err, "to look at it takes no time")
	require.NoError(t, os.RemoveAll(drawn))
	_, _, err = load(filepath.Join(dir, "bad"))
	require.ErrorIs(t, err, errFormat)
	segment := filepath.Join(dir, "00000000000000000001.seg")
	require.NoError(t, os.WriteFile(segment, []byte("x"), 0o600))
	for _, name := range []string{dir, segment} {
		_, _, err = load(name)
		require.ErrorContains(t, err, dir+" is a history. First write a result from it: profile history --from "+dir)
	}
}

// A file of a result is as long as its run. Its profiles can cover more time, because they begin before the gadget samples.
func TestFileOfAResult(t *testing.T) {
	t.Chdir(t.TempDir())
	result := writeResult(t, "parse", 500, &runInfo{Target: "process 7 (shop)", Seconds: 9.5})
	requests, _, err := read(filepath.Join(result, samplesFile))
	require.NoError(t, err)
	require.NoError(t, receiver.WritePprof(result, requests, nil))
	for _, file := range []string{samplesFile, receiver.PprofFile} {
		var out bytes.Buffer
		require.NoError(t, runDiff([]string{result, filepath.Join(result, file), "-o", "none"}, &out))
		require.Contains(t, out.String(), "no difference", file)
		require.Equal(t, 2, strings.Count(out.String(), "process 7 (shop)"), file)
	}
}

// A pprof file of another profiler must keep everything that the tables and pages need.
func TestFromPprof(t *testing.T) {
	app, kernel := &gpprof.Mapping{File: "/srv/app", BuildID: "abc"}, &gpprof.Mapping{File: "[kernel.kallsyms]"}
	py := &gpprof.Function{Name: "work", SystemName: "_work", Filename: "/srv/app.py"}
	stack := []*gpprof.Location{
		{Address: 9, Mapping: kernel, Line: []gpprof.Line{{Function: &gpprof.Function{Name: "read", Filename: "fs/read.go"}}}},
		{Address: 7, Mapping: app, Line: []gpprof.Line{{Function: py, Line: 3}, {Line: 4}}},
		{Address: 5, Mapping: app},
	}
	of := func(typ string) *gpprof.ValueType {
		return &gpprof.ValueType{Type: typ, Unit: map[bool]string{true: "count", false: "nanoseconds"}[typ == "samples"]}
	}
	got := fromPprof(&gpprof.Profile{
		SampleType: []*gpprof.ValueType{of("samples"), of("cpu"), of("delay")}, PeriodType: of("cpu"), Period: 10, Mapping: []*gpprof.Mapping{app, kernel}, Location: stack,
		TimeNanos: 1e9, DurationNanos: 2e9,
		Sample: []*gpprof.Sample{
			{Location: stack, Value: []int64{1, 10, 0}, Label: map[string][]string{"service.name": {"shop"}, "k8s.pod.name": {"p"}, "container.name": {"c"}, "thread.name": {"a", "b"}}},
			{Location: stack[2:], Value: []int64{0, 0, 5}},
		},
	})
	sample := func(typ string, value int64, service string, stack []receiver.Frame) receiver.Sample {
		return receiver.Sample{
			Type: typ, Unit: of(typ).Unit, PeriodType: "cpu", PeriodUnit: "nanoseconds", Period: 10, Start: time.Unix(1, 0).UTC(), End: time.Unix(3, 0).UTC(),
			Values: []int64{value}, Service: service, Resource: map[string]string{}, Attributes: map[string]string{}, Stack: stack,
		}
	}
	own := receiver.Frame{Type: "native", Address: 5, Mapping: "/srv/app", BuildID: "abc"}
	want := []receiver.Sample{sample("samples", 1, "shop", []receiver.Frame{
		{Type: "kernel", Address: 9, Mapping: "[kernel.kallsyms]", Name: "read", File: "fs/read.go"},
		{Type: "cpython", Address: 7, Mapping: "/srv/app", BuildID: "abc", Name: "work", SystemName: "_work", File: "/srv/app.py", Line: 3},
		{Type: "native", Address: 7, Mapping: "/srv/app", BuildID: "abc", Line: 4}, own,
	}), sample("delay", 5, "app", []receiver.Frame{own})}
	want[0].Resource = map[string]string{"service.name": "shop", "k8s.pod.name": "p", "container.name": "c"}
	want[0].Attributes["thread.name"] = "a,b"
	require.Equal(t, want, got)

	got = fromPprof(&gpprof.Profile{SampleType: []*gpprof.ValueType{of("cpu")}, PeriodType: of("cpu"), Period: 10, Sample: []*gpprof.Sample{{Value: []int64{30}}}})
	require.Equal(t, [][]int64{{30}}, [][]int64{got[0].Values}, "without a number of samples, the time stays")
}

func TestWordsForTypes(t *testing.T) {
	for typ, want := range map[receiver.Type]string{
		{Type: "delay", Unit: "nanoseconds", PeriodType: "contentions", PeriodUnit: "count"}: "time waiting for locks",
		{Type: "contentions", Unit: "count", PeriodType: "contentions", PeriodUnit: "count"}: "waits for locks",
		{Type: "off_cpu", Unit: "nanoseconds", PeriodType: "off_cpu"}:                        "time off the CPU",
		{Type: "inuse_space", Unit: "bytes", PeriodType: "space", PeriodUnit: "bytes"}:       "bytes in use",
		{Type: "samples", Unit: "count", PeriodType: "cpu", PeriodUnit: "nanoseconds"}:       "CPU time",
		{Type: "page_faults", Unit: "count", PeriodType: "page_faults"}:                      "page faults",
	} {
		require.Equal(t, want, title(typ))
		require.Equal(t, want != "CPU time", byOwn(typ))
	}
}

func TestOpenServesTheResultAlone(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{pageFile: "<p>page", samplesFile: "{}", "secret.txt": "secret"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "x.pb.gz")))
	server := httptest.NewServer(serveResult(dir))
	defer server.Close()
	get := func(path, host string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		require.NoError(t, err)
		if host != "" {
			req.Host = host
		}
		resp, err := server.Client().Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
	code, body := get("/", "")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "<p>page", body)
	code, _ = get("/"+samplesFile, "localhost:8080")
	require.Equal(t, http.StatusOK, code)
	for _, path := range []string{"/secret.txt", "/..", "/x.pb.gz", "/%2e%2e/etc/passwd"} {
		code, _ = get(path, "")
		require.Equal(t, http.StatusNotFound, code, path)
	}
	code, _ = get("/", "evil.example")
	require.Equal(t, http.StatusForbidden, code)
}

func TestPrepareDirRemovesOnlyResults(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{pageFile, samplesFile, runFile, pageName(1), receiver.PprofFile, "notes.txt", "index.html", "heap.pb.gz", "flamegraph-shop.html"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	require.NoError(t, prepareDir(dir))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 4, "files of others")

	t.Chdir(dir)
	name, err := newDir("shop", time.Unix(0, 0).UTC())
	require.NoError(t, err)
	require.Equal(t, "profile-shop-19700101-000000", name)
	require.NoError(t, prepareDir(name))
	_, err = newDir("shop", time.Unix(0, 0).UTC())
	require.ErrorContains(t, err, "already exists", "a default name never replaces results")
}

// On a full disk, no empty files remain.
func TestNoEmptyFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "result")
	require.NoError(t, os.Mkdir(dir, 0o755))
	disk := dir
	if os.Geteuid() == 0 && unix.Mount("none", dir, "tmpfs", 0, "size=8k") == nil {
		t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, 0)) })
		page := flamepage.Page{Title: "t", Sides: []flamepage.Side{{Samples: []receiver.Sample{timed(1)}}}}
		require.ErrorIs(t, writePage(filepath.Join(dir, pageFile), page), unix.ENOSPC)
		require.NoFileExists(t, filepath.Join(dir, pageFile))
	}
	failed := errors.New("no space left")
	require.ErrorIs(t, create(filepath.Join(dir, pageFile), func(io.Writer) error { return failed }), failed)
	require.NoFileExists(t, filepath.Join(dir, pageFile))

	dir = filepath.Join(t.TempDir(), "result")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, samplesFile), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, runFile), []byte("{}"), 0o600))
	require.NoError(t, removeEmpty(dir, true))
	require.NoFileExists(t, filepath.Join(dir, samplesFile))
	require.FileExists(t, filepath.Join(dir, runFile))
	require.NoError(t, os.Remove(filepath.Join(dir, runFile)))
	require.NoError(t, removeEmpty(dir, false))
	require.DirExists(t, dir)
	require.NoError(t, removeEmpty(dir, true))
	require.NoDirExists(t, dir)
}

func TestRemarks(t *testing.T) {
	native := receiver.Frame{Name: "work", Type: "native"}
	sample := func(n int64, stack ...receiver.Frame) receiver.Sample {
		return receiver.Sample{Unit: "count", Values: []int64{10 * n}, Stack: stack}
	}
	r := &result{gadget: gadget{name: "profile_cpu"}}
	require.Empty(t, r.remarks([]receiver.Sample{sample(9, native, native), sample(1, receiver.Frame{Name: "idle", Type: "kernel"})}))
	lines := r.remarks([]receiver.Sample{sample(5, native, native), sample(5, native)})
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "50 % of the stacks end after one function")
	lines = r.remarks([]receiver.Sample{sample(5, native, native), sample(5, receiver.Frame{Type: "native", Mapping: "/usr/bin/xz", Address: 1}, native)})
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "50 % of the functions have no name, most of them in xz")
	r.log = "level=info msg=\"unwind: stacks are whole, unwound\"\n"
	require.Empty(t, r.remarks([]receiver.Sample{sample(5, native)}))
	require.Empty(t, r.remarks(nil))
	for unwound, want := range map[string][]string{
		"99.0 % of the samples), 1 without an unwinder (1.0 % of the samples)": nil, "100.0 % of the samples)": nil,
		"75.0 % of the samples), 1 without an unwinder (5.0 % of the samples), 4 of others (20.0 % of the samples); 1 stacks not read in time": {
			"25 % have stacks collected with frame pointers, which can lack callers: 1 without an unwinder (5.0 % of the samples), 4 of others (20.0 % of the samples)"},
	} {
		r.log = "level=info msg=\"unwind: stacks are whole\"\nlevel=info msg=\"unwind: 20 events sampled, 15 unwound (" + unwound + "\"\n"
		require.Equal(t, want, r.remarks([]receiver.Sample{sample(5, native, native)}))
	}
	r.log = "level=info msg=\"unwind: 9 events sampled, 8 unwound (68.0 % of the nanoseconds), 1 without an unwinder (0.0 % of the nanoseconds), 7 of others (32.0 % of the count)\"\n"
	require.Contains(t, r.remarks([]receiver.Sample{sample(5, native, native)})[0], ": 1 without an unwinder (<0.1 % of the time), 7 of others (32.0 %)")
	r.log = "level=info msg=\"unwind: stacks are whole\"\nlevel=info msg=\"unwind: 9 events sampled, 3 unwound (20.0 % of the samples), 6 of others (80.0 % of the samples)\"\n"
	r.opts.target.list = []int{7, 8}
	require.Contains(t, r.remarks([]receiver.Sample{sample(5, native, native)})[0], "80 % of all events on this machine have", "several processes are chosen from all rows")
	r.log = ""

	r.gadget.name = "profile_alloc"
	r.opts.target.list = []int{os.Getpid()}
	lines = r.remarks([]receiver.Sample{sample(5, native, native), sample(5, native)})
	require.Len(t, lines, 1)
	paused := sample(5, native, native)
	paused.Attributes = map[string]string{"alloc.attached": "stretches"}
	lines = r.remarks([]receiver.Sample{sample(5, native, native), paused})
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "50 % of the amounts are estimates")
	r.early, r.run.Seconds = true, 3
	r.log = "level=info msg=\"fine\"\ntime=\"x\" level=error msg=\"with --live no \\\"call\\\" may be missed: the run ends\"\nlevel=warning msg=\"later\"\n"
	lines = r.remarks([]receiver.Sample{sample(5, native, native)})
	require.Equal(t, []string{`ig exited after 3 s: with --live no "call" may be missed: the run ends`}, lines)
	r.log = "level=error msg=fine\n"
	require.Equal(t, []string{"ig exited after 3 s"}, r.remarks(nil))
	r.early = false
	full := sample(5, receiver.Frame{Name: "[no stack]"})
	full.Attributes = map[string]string{"thread.name": "[captures full]"}
	lines = r.remarks([]receiver.Sample{sample(5, native, native), full})
	require.Len(t, lines, 1, "they are no stacks of one function")
	require.Contains(t, lines[0], "50 % of the sum comes from events that arrived when the gadget's tables were full")
	require.Contains(t, lines[0], "--sample-bytes=524288")
}

// TestRemarkOnBriefProcesses profiles a compiler, whose processes exit before their program's name can be read.
func TestRemarkOnBriefProcesses(t *testing.T) {
	sample := func(n int64, attributes map[string]string, stack ...receiver.Frame) receiver.Sample {
		return receiver.Sample{Unit: "count", Values: []int64{n}, Service: "host", Attributes: attributes, Stack: stack}
	}
	work, main, kernel := receiver.Frame{Name: "work", Type: "native"}, receiver.Frame{Name: "main", Type: "native"}, receiver.Frame{Name: "idle", Type: "kernel"}
	brief := map[string]string{"thread.name": "cc1"}
	known := sample(6, brief, work, main)
	known.Resource = map[string]string{"process.executable.name": "cc1"}
	r := &result{gadget: gadget{name: "profile_cpu"}}
	samples := []receiver.Sample{known, sample(2, brief, work, main), sample(2, brief, kernel)}
	require.Equal(t, []string{"20 % come from processes that exited before their program was read: they have their thread's name as program, and the service host"}, r.remarks(samples),
		"threads of the kernel run no program")
	require.Empty(t, r.remarks(append(samples, known, known, known)), "little of the whole")
	samples[1].Resource = map[string]string{"container.id": "0123"}
	require.Empty(t, r.remarks(samples), "containers have their own names")
	r.gadget.name = "trace_open"
	samples[1].Resource = nil
	require.Empty(t, r.remarks(samples), "another gadget need not have processes")
}

// Remarks must not suggest a gadget that shows something else or cannot run on this machine.
func TestRemarksAreOfTheGadget(t *testing.T) {
	native := receiver.Frame{Name: "work", Type: "native"}
	lone := []receiver.Sample{{Unit: "count", Values: []int64{90}, Stack: []receiver.Frame{native}}}
	for _, name := range []string{"profile_offcpu", "profile_pagefault", "profile_alloc", "profile_lock", "trace_open"} {
		r := &result{gadget: gadget{name: name}}
		lines := r.remarks(lone)
		require.Len(t, lines, 1, name)
		require.Contains(t, lines[0], "100 % of the stacks end after one function", name)
		require.NotContains(t, lines[0], "--unwind", name)
	}
	r := &result{gadget: gadget{name: "profile_cpu"}}
	require.Contains(t, r.remarks(lone)[0], `; "-- --unwind=whole" shows them`)
	r.log = "level=warning msg=\"unwind: stacks use frame pointers: no \\\"BTF\\\"\"\n"
	require.Contains(t, r.remarks(lone)[0], `; whole stacks are not available here: no "BTF"`)
	require.NotContains(t, r.remarks(lone)[0], "--unwind=whole")

	cut := []receiver.Sample{{Unit: "count", Values: []int64{90}, Stack: []receiver.Frame{{Name: "[truncated]"}}}}
	r = &result{gadget: gadget{name: "profile_cpu"}, log: "level=info msg=\"unwind: stacks are whole, unwound\"\n"}
	require.Len(t, r.remarks(cut), 1)
	require.Contains(t, r.remarks(cut)[0], "100 % of the stacks could not be unwound")

	goroutine := []receiver.Sample{{Unit: "count", Values: []int64{9}, Stack: []receiver.Frame{{Name: "runtime.lock2", Type: "go"}, {Name: "main.main", Type: "go"}}}}
	r = &result{gadget: gadget{name: "profile_lock"}}
	require.Empty(t, r.remarks(goroutine))
	require.Len(t, r.unseen(goroutine), 1)
	require.Contains(t, r.unseen(goroutine)[0], "Go's own mutex profile")
	require.Empty(t, (&result{gadget: gadget{name: "profile_cpu"}}).unseen(goroutine))
	r = &result{gadget: gadget{name: "profile_alloc"}}
	of := func(kinds ...string) (list []receiver.Sample) {
		for _, kind := range kinds {
			list = append(list, receiver.Sample{Unit: "count", Values: []int64{9}, Stack: []receiver.Frame{{Name: "main", Type: kind}}})
		}
		return list
	}
	require.Empty(t, r.remarks(of("jvm"))[1:])
	require.Contains(t, (&result{gadget: gadget{name: "profile_cpu"}}).remarks(of("jvm"))[1], "-XX:+DebugNonSafepoints", "else a hot inlined function is missing")
	require.Empty(t, r.unseen(of("native", "kernel")))
	require.Len(t, r.unseen(of("cpython", "jvm", "v8js", "go", "jvm")), 4, "each language once")
}

// TestIsGo requires that a Go program is recognized even without a sample.
func TestIsGo(t *testing.T) {
	other := exec.CommandContext(t.Context(), "sleep", "60")
	require.NoError(t, other.Start())
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	require.True(t, isGo(os.Getpid()))
	require.False(t, isGo(other.Process.Pid))
	require.False(t, isGo(0))
	r := &result{gadget: gadget{name: "profile_lock"}, opts: options{target: target{list: []int{other.Process.Pid, os.Getpid()}}}}
	require.Len(t, r.unseen(nil), 1)
}

// TestUnseenLeads requires that remarks on data that a gadget does not see come before the tables.
func TestUnseenLeads(t *testing.T) {
	r := sampled(t, options{target: target{comm: "shop"}}, request(receiver.Sample{Type: "alloc_space", Unit: "bytes", PeriodType: "space", PeriodUnit: "bytes", Period: 1, Values: []int64{9},
		Stack: []receiver.Frame{{Name: "take", Type: "cpython", File: "/srv/shop.py"}}}))
	r.gadget.name = "profile_alloc"
	var out bytes.Buffer
	require.NoError(t, r.report(&out))
	require.Regexp(t, `(?s)note: Python takes objects.*bytes allocated of.*take`, out.String())
	require.Contains(t, out.String(), "flame graph of bytes allocated: open it in a browser")
}

// On a full disk, the files are missing, but the tables must be printed.
func TestTableWithoutPage(t *testing.T) {
	r := sampled(t, options{target: target{list: []int{os.Getpid()}}}, request(timed(5, receiver.Frame{Name: "work", Type: "native"})))
	for _, file := range []string{pageFile, runFile} {
		require.NoError(t, os.Mkdir(filepath.Join(r.opts.dir, file), 0o700)) // a folder with the file's name, so writing fails
	}
	r.write()
	var out bytes.Buffer
	err := r.report(&out)
	require.ErrorContains(t, err, "writing the flame graph")
	require.ErrorContains(t, err, "writing the description of the run")
	require.Contains(t, out.String(), "100.0%")
}

func TestProgress(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(100+seconds, 0) }
	require.Equal(t, "starting the gadget", progress(at(2), at(0), time.Time{}, 10*time.Second))
	require.Equal(t, "still starting the gadget after 20 s: the kernel is checking its programs", progress(at(28), at(0), time.Time{}, 10*time.Second))
	require.Equal(t, "2 of 10 s", progress(at(22), at(0), at(20), 10*time.Second))
	require.Equal(t, "stopping the gadget", progress(at(31), at(0), at(20), 10*time.Second))
	log := newLog()
	fmt.Fprint(log, "level=info msg=\"unwind: stacks are whole\"\n")
	require.True(t, log.gadgetStarted().IsZero())
	fmt.Fprint(log, "level=info msg=\"otel-profiles: exporting data source \\\"samples\\\" to \\\"otlp\\\"\"\n")
	require.False(t, log.gadgetStarted().IsZero())
}

// TestMarksAreExplained requires that frames for missing parts are explained below their table.
func TestMarksAreExplained(t *testing.T) {
	mark := receiver.Frame{Name: "[truncated]"}
	r := sampled(t, options{target: target{list: []int{os.Getpid()}}}, request(timed(5, receiver.Frame{Name: "work", Type: "native"}, mark)))
	var out bytes.Buffer
	require.NoError(t, r.report(&out))
	require.Contains(t, out.String(), "[truncated]: the stack is deeper than the limit")
	require.NotContains(t, out.String(), "[incomplete]:")
}

// TestByWeight requires that the first table, flame graph and difference show amounts, not counts.
func TestByWeight(t *testing.T) {
	of := func(typ, unit string) receiver.Sample { return receiver.Sample{Type: typ, Unit: unit} }
	types, byType := byWeight([]receiver.Sample{of("alloc_objects", "count"), of("alloc_space", "bytes"), of("alloc_objects", "count")})
	require.Equal(t, []string{"alloc_space", "alloc_objects"}, []string{types[0].Type, types[1].Type})
	require.Len(t, byType[types[1]], 2)
	types, _ = byWeight([]receiver.Sample{of("contentions", "count"), of("delay", "nanoseconds")})
	require.Equal(t, "delay", types[0].Type)
}

func TestLogOfIG(t *testing.T) {
	log := newLog()
	fmt.Fprint(log, "level=debug msg=x\nlevel=warning msg=")
	require.Equal(t, "level=warning msg=", log.String())
	fmt.Fprint(log, "a\n")
	require.Equal(t, "level=warning msg=a\n", log.String())
	fmt.Fprint(log, "level=debug msg=y\n")
	require.Equal(t, "level=warning msg=a\n", log.String())
	for i := range maxLog {
		fmt.Fprintln(log, "line", i)
	}
	fmt.Fprint(log, strings.Repeat("y", 3*maxLog))
	require.Less(t, len(log.String()), 2*maxLog+2)
}

func TestShellLine(t *testing.T) {
	require.Equal(t, `ig run cpu '--comm=a b' 'it'\''s' '$HOME' 'x|y'`, shellLine([]string{"ig", "run", "cpu", "--comm=a b", "it's", "$HOME", "x|y"}))
}
