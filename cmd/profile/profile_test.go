package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

func TestFlagsThatAreRefused(t *testing.T) {
	tests := []struct{ args, want string }{
		{"1234", `"1234" is too much: a program is chosen with --pid`},
		{"--pid 1 extra", `"extra" is too much`},
		{"--pid 0", "--pid 0: takes the number of a process"},
		{"--pid 1 --comm x", "cannot be used together"},
		{"--comm x --container y", "cannot be used together"},
		{"--comm a-name-that-is-too-long", `use "a-name-that-is-"`},
		{"--seconds 0", "--seconds 0: takes 1 to"},
		{"--seconds 30s", "invalid argument"},
		{"--rows 0", "--rows 0"},
		{"--nonsense", "unknown flag"},
		{"--gadget alloc", "choose them with --pid, --comm or --container"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			_, err := parseProfile(strings.Fields(tt.args))
			require.ErrorContains(t, err, tt.want)
		})
	}
	var out bytes.Buffer
	require.ErrorContains(t, runDiff([]string{"a"}, &out), "two results, not 1")
	require.ErrorContains(t, runDiff([]string{"a", "b", "c"}, &out), "two results, not 3")
	require.ErrorContains(t, runDiff([]string{"a", "b", "--work", "1"}, &out), "--work takes two numbers")
	require.ErrorContains(t, runOpen(context.Background(), []string{"a", "b"}, &out), "one result, not 2")
	require.ErrorContains(t, runOpen(context.Background(), []string{t.TempDir()}, &out), "is no result of profile")
	require.ErrorContains(t, runDemo(context.Background(), []string{"x"}, &out), `"x" is too much`)
}

func TestFlagsForIG(t *testing.T) {
	o, err := parseProfile(strings.Fields("--pid 7 --seconds 3 -- --frequency=99"))
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, o.time)
	args := igArgs(o, gadget{image: "profile_cpu:dev", archive: "x.tar"}, "127.0.0.1:1")
	require.Subset(t, args, []string{"--pid=7", "--host", "--verify-image=false"})
	require.Equal(t, "--frequency=99", args[len(args)-1])

	o, err = parseProfile([]string{"--container", "shop"})
	require.NoError(t, err)
	args = igArgs(o, gadget{image: "trace_open:v0.55.0"}, "127.0.0.1:1")
	require.Contains(t, args, "--containername=shop")
	require.NotContains(t, args, "--host", "ig finds containers only without it")
	require.NotContains(t, args, "--verify-image=false", "somebody else's image is verified")
}

func TestTargetThatIsNotThere(t *testing.T) {
	require.ErrorContains(t, target{pid: 1 << 30}.exists(), "there is no process 1073741824")
	require.NoError(t, target{pid: os.Getpid()}.exists())
	require.NoError(t, target{comm: "not-yet"}.exists())

	threads, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	for _, thread := range threads {
		var id int
		_, err := fmt.Sscan(thread.Name(), &id)
		require.NoError(t, err)
		if id != os.Getpid() {
			require.ErrorContains(t, target{pid: id}.exists(), fmt.Sprintf("%d is a thread of process %d", id, os.Getpid()))
		}
	}
	require.Equal(t, "a_b_.c-d", target{comm: "a/b\n.c-d"}.fileName())
}

func TestWhyThereIsNothing(t *testing.T) {
	of := func(t target, gadget string) *result {
		r := &result{opts: options{target: t, time: 5 * time.Second}, log: "level=info msg=fine\nlevel=warning msg=\"no room\"\nlevel=warning msg=\"container-collection isn't available\"\n"}
		r.gadget.name = gadget
		return r
	}
	r := of(target{pid: os.Getpid()}, "profile_cpu")
	require.ErrorContains(t, r.nothing(), "used no CPU time in these 5 s: it waits, and --gadget offcpu")
	require.ErrorContains(t, r.nothing(), "no room")
	require.NotContains(t, r.nothing().Error(), "container-collection")
	require.NotContains(t, r.nothing().Error(), "fine")
	r.cpu = 20 * time.Millisecond
	require.ErrorContains(t, r.nothing(), "0.02 s of CPU time in these 5 s: sample for longer")
	r.gone = true
	require.ErrorContains(t, r.nothing(), "has ended")
	require.ErrorContains(t, of(target{comm: "nobody-has-this"}, "profile_cpu").nothing(), "no program or thread is called")
	require.ErrorContains(t, of(target{container: "x"}, "profile_cpu").nothing(), "list-containers")
	require.ErrorContains(t, of(target{container: "x"}, "profile_cpu").nothing(), "container-collection")
	require.ErrorContains(t, of(target{}, "profile_cpu").nothing(), "idle")
	require.ErrorContains(t, of(target{pid: os.Getpid()}, "profile_offcpu").nothing(), "a wait counts when it ends")
	require.ErrorContains(t, of(target{pid: os.Getpid()}, "profile_lock").nothing(), "no wait for a lock has ended", "a program that uses the CPU need not wait for locks")
	require.ErrorContains(t, of(target{comm: "nobody-has-this"}, "profile_lock").nothing(), "no program or thread is called")
	r = of(target{pid: os.Getpid()}, "profile_alloc")
	require.ErrorContains(t, r.nothing(), "used no CPU time")
	r.cpu = time.Second
	require.ErrorContains(t, r.nothing(), "none of its allocations was looked at")
}

// writeArchive writes an image's archive that holds nothing but its index.
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

func TestChoiceOfGadget(t *testing.T) {
	dir := t.TempDir()
	where := install{ig: filepath.Join(dir, "ig"), gadgets: dir}
	_, err := where.choose("")
	require.ErrorContains(t, err, `no image profile_cpu.tar`)
	for _, name := range []string{"cpu", "polyglot"} {
		writeArchive(t, filepath.Join(dir, "profile_"+name+".tar"), `{"manifests": [{"digest": "sha256:1"},
			{"digest": "sha256:2", "annotations": {"org.opencontainers.image.ref.name": "ghcr.io/inspektor-gadget/gadget/profile_`+name+`:mine"}}]}`)
	}
	g, err := where.choose("")
	require.NoError(t, err)
	require.Equal(t, "profile_cpu:mine", g.image, "there is no unwinder")
	require.Equal(t, "sha256:2", g.digest)
	require.Contains(t, g.chosen, "no program unwinder")
	_, err = where.choose("polyglot")
	require.ErrorContains(t, err, "no program unwinder")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "unwinder"), nil, 0o600))
	_, err = where.choose("polyglot")
	require.ErrorContains(t, err, "cannot be executed")
	require.NoError(t, os.Chmod(filepath.Join(dir, "unwinder"), 0o700))
	g, err = where.choose("")
	require.NoError(t, err)
	require.Equal(t, "profile_polyglot:mine", g.image)

	g, err = where.choose("registry.example:5000/team/trace_malloc:v1@sha256:0123")
	require.NoError(t, err)
	require.Equal(t, "trace_malloc", g.name)
	require.Empty(t, g.archive)

	writeArchive(t, filepath.Join(dir, "profile_cpu.tar"), `{"manifests": []}`)
	_, err = where.choose("cpu")
	require.ErrorContains(t, err, "no image in it has a name")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "profile_cpu.tar"), nil, 0o600))
	_, err = where.choose("cpu")
	require.ErrorContains(t, err, "it has no index.json")
}

// writeResult makes a result in which a function was seen n times at 100 Hz in 10 s.
func writeResult(t *testing.T, function string, n int64, info *runInfo) string {
	t.Helper()
	dir := t.TempDir()
	start := time.Unix(1_700_000_000, 0)
	f, err := os.Create(filepath.Join(dir, samplesFile))
	require.NoError(t, err)
	require.NoError(t, receiver.WriteJSONLine(f, &collectorpb.ExportProfilesServiceRequest{
		Dictionary: &profilespb.ProfilesDictionary{
			StringTable:    []string{"", function, "samples", "count", "cpu", "nanoseconds", "thread.name", "shop"},
			AttributeTable: []*profilespb.KeyValueAndUnit{{}, {KeyStrindex: 6, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValueStrindex{StringValueStrindex: 7}}}},
			FunctionTable:  []*profilespb.Function{{}, {NameStrindex: 1}},
			LocationTable:  []*profilespb.Location{{}, {Lines: []*profilespb.Line{{FunctionIndex: 1}}}},
			StackTable:     []*profilespb.Stack{{}, {LocationIndices: []int32{1}}},
		},
		ResourceProfiles: []*profilespb.ResourceProfiles{{ScopeProfiles: []*profilespb.ScopeProfiles{{Profiles: []*profilespb.Profile{{
			SampleType: &profilespb.ValueType{TypeStrindex: 2, UnitStrindex: 3}, PeriodType: &profilespb.ValueType{TypeStrindex: 4, UnitStrindex: 5}, Period: 10_000_000,
			TimeUnixNano: uint64(start.UnixNano()), DurationNano: uint64(10 * time.Second),
			Samples: []*profilespb.Sample{{StackIndex: 1, AttributeIndices: []int32{1}, Values: []int64{n}}},
		}}}}}},
	}))
	require.NoError(t, f.Close())
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
	require.Contains(t, rows, "500 0 -500 parse")
	require.Contains(t, rows, "0 250 +250 inflate")
	require.Contains(t, rows, "500 250 -250 in all (-50%)")

	out.Reset()
	require.NoError(t, runDiff([]string{filepath.Join(before, samplesFile), after, "--work=1000,2000"}, &out))
	require.Contains(t, out.String(), "microseconds of CPU time for each unit of work")
	require.Contains(t, out.String(), "-5000")

	require.ErrorContains(t, runDiff([]string{before, t.TempDir()}, &out), "no such file")
	empty := filepath.Join(t.TempDir(), "x.jsonl")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.ErrorContains(t, runDiff([]string{before, empty}, &out), "has no samples")
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
		require.Equal(t, want != "CPU time" && want != "page faults", byOwn(typ))
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
	for _, name := range []string{pageFile, samplesFile, runFile, receiver.PprofFile, "notes.txt", "index.html"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	require.NoError(t, prepareDir(dir))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 2)
}

func TestRemarks(t *testing.T) {
	native := receiver.Frame{Name: "work", Type: "native"}
	sample := func(n int64, stack ...receiver.Frame) receiver.Sample {
		return receiver.Sample{Unit: "count", Values: []int64{n}, Stack: stack}
	}
	r := &result{gadget: gadget{name: "profile_cpu"}}
	require.Empty(t, r.remarks([]receiver.Sample{sample(9, native, native), sample(1, receiver.Frame{Name: "idle", Type: "kernel"})}))
	lines := r.remarks([]receiver.Sample{sample(5, native, native), sample(5, native)})
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "50 % of the stacks end after one function")
	lines = r.remarks([]receiver.Sample{sample(5, native, native), sample(5, receiver.Frame{Type: "native", Mapping: "/usr/bin/xz", Address: 1}, native)})
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "50 % of the functions have no name, most of them in xz")
	r.gadget.name = "profile_polyglot"
	require.Empty(t, r.remarks([]receiver.Sample{sample(5, native)}))
	require.Empty(t, r.remarks(nil))

	r.gadget.name = "profile_alloc"
	r.opts.target.pid = os.Getpid()
	lines = r.remarks([]receiver.Sample{sample(5, native, native), sample(5, native)})
	require.Len(t, lines, 1)
	require.NotContains(t, lines[0], "polyglot", "that one shows no allocations")
	paused := sample(5, native, native)
	paused.Attributes = map[string]string{"alloc.attached": "stretches"}
	lines = r.remarks([]receiver.Sample{sample(5, native, native), paused})
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "50 % of the amounts were estimated")
	r.early, r.run.Seconds = true, 3
	r.log = "level=info msg=\"fine\"\ntime=\"x\" level=error msg=\"with --live no \\\"call\\\" may be missed: the run ends\"\nlevel=warning msg=\"later\"\n"
	lines = r.remarks([]receiver.Sample{sample(5, native, native)})
	require.Equal(t, []string{`ig ended after 3 s: with --live no "call" may be missed: the run ends`}, lines)
	r.log = "level=error msg=fine\n"
	require.Equal(t, []string{"ig ended after 3 s"}, r.remarks(nil))
	r.early = false
	full := sample(5, receiver.Frame{Name: "[no stack]"})
	full.Attributes = map[string]string{"thread.name": "[captures full]"}
	lines = r.remarks([]receiver.Sample{sample(5, native, native), full})
	require.Len(t, lines, 1, "they are no stacks of one function")
	require.Contains(t, lines[0], "50 % came when there was no room for it")
	require.Contains(t, lines[0], "--sample-bytes=524288")
}

// The first table, flame graph and difference are of how much, and not of how often.
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
	for range 2 {
		fmt.Fprint(log, "level=debug msg=\"the unwinder takes 19 samples per second\"\n")
	}
	<-log.ready
	for i := range maxLog {
		fmt.Fprintln(log, "line", i)
	}
	fmt.Fprint(log, strings.Repeat("y", 3*maxLog))
	require.Less(t, len(log.String()), 2*maxLog+2)
}
