//go:build e2e

package gadgets

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

const (
	here     = "this project"
	upstream = "Inspektor Gadget"
)

// gadget is a gadget for TestGadgets, which runs it for the whole machine, or for TestEveryUser.
type gadget struct {
	name, origin string
	flags        []string
	// workload starts a program for a gadget of Inspektor Gadget to see, and returns a prefix for ig's command if it needs one. A
	// gadget of this project has program instead.
	workload func(*testing.T) (prefix []string)
	program  string
	// want is the type of the samples.
	want receiver.Type
	// value is the path of the field that the samples add up to. Without one, each row counts 1.
	value []string
	// others are further types of samples.
	others []counted
	check  func(*testing.T, *run)
	// until ends the run when it returns true for the samples.
	until func([]receiver.Sample) bool
}

// counted is a type of samples, with the path of the field that they add up to.
type counted struct {
	want  receiver.Type
	value []string
}

func events(name string) receiver.Type {
	return receiver.Type{Type: "events", Unit: "count", PeriodType: name, PeriodUnit: "count", Period: 1}
}

func cpu(hz int64) receiver.Type {
	return receiver.Type{Type: "samples", Unit: "count", PeriodType: "cpu", PeriodUnit: "nanoseconds", Period: 1_000_000_000 / hz}
}

// program starts a program of testdata under a name.
func program(source, name string) func(*testing.T) []string {
	return func(t *testing.T) []string {
		start(t, compileAs(t, source, name))
		return nil
	}
}

// inBoth checks that the stacks of a program go about equally often through two of its functions.
func inBoth(thread, one, other string) func(*testing.T, *run) {
	return func(t *testing.T, r *run) {
		a, b := igtest.Total(igtest.Through(r.of(thread), one)), igtest.Total(igtest.Through(r.of(thread), other))
		t.Logf("%s: %d in %s, %d in %s", thread, a, one, b, other)
		require.Positive(t, a)
		require.InEpsilon(t, a, b, 0.1)
	}
}

// opensEnough waits for so many opened files that one more of a kind stays within inBoth's limit.
func opensEnough(samples []receiver.Sample) bool {
	return min(igtest.Total(igtest.Through(samples, "open_present")), igtest.Total(igtest.Through(samples, "open_missing"))) > 100
}

// spins waits for the functions of the program busy.
func spins(samples []receiver.Sample) bool {
	return igtest.Total(igtest.Through(of(samples, "busy"), "spin")) > 0
}

// through checks that nearly all stacks of a program with main also have one of its functions.
func through(thread, function string) func(*testing.T, *run) {
	return func(t *testing.T, r *run) {
		n, all := igtest.Total(igtest.Through(r.of(thread), function)), igtest.Total(igtest.Through(r.of(thread), "main"))
		t.Logf("%s: %d of %d in %s", thread, n, all, function)
		require.Positive(t, n)
		require.Greater(t, 10*n, 9*all)
	}
}

// withBuildIDs are flags for Inspektor Gadget's gadgets. The operator makes them collect stacks.
var withBuildIDs = []string{"--collect-build-id"}

// all lists this project's gadgets, and the gadgets in Inspektor Gadget's module with a gadget_kernel_stack or
// gadget_user_stack in an event: see TestNoneForgotten.
func all() []gadget {
	return []gadget{
		{
			name: "profile_cpu", origin: here, flags: append([]string{"--frequency=99"}, framePointers...), program: "busy",
			want: cpu(99), value: []string{"samples"}, check: through("busy", "spin"), until: spins,
		},
		{
			name: "profile_offcpu", origin: here, flags: framePointers, program: "waits",
			want:  receiver.Type{Type: "off_cpu", Unit: "nanoseconds", PeriodType: "off_cpu", PeriodUnit: "nanoseconds", Period: 1},
			value: []string{"off_cpu_raw"},
		},
		{
			name: "profile_pagefault", origin: here, flags: framePointers, program: "faults",
			want: pageFaults, value: []string{"faults"},
		},
		{
			name: "profile_alloc", origin: here, flags: []string{"--comm=allocs", "--sample-bytes=4096", "--max-cost=1000"}, program: "allocs",
			want: receiver.Type{Type: "alloc_objects", Unit: "count", PeriodType: "space", PeriodUnit: "bytes", Period: 4096}, value: []string{"calls"},
			others: []counted{{receiver.Type{Type: "alloc_space", Unit: "bytes", PeriodType: "space", PeriodUnit: "bytes", Period: 4096}, []string{"bytes"}}},
			check:  through("allocs", "allocate_large"),
			until: func(samples []receiver.Sample) bool {
				return igtest.Total(igtest.Through(of(samples, "allocs"), "allocate_large")) > 0
			},
		},
		{
			name: "profile_lock", origin: here, program: "contends",
			want: receiver.Type{Type: "contentions", Unit: "count", PeriodType: "contentions", PeriodUnit: "count", Period: 1}, value: []string{"contentions"},
			others: []counted{{receiver.Type{Type: "delay", Unit: "nanoseconds", PeriodType: "contentions", PeriodUnit: "count", Period: 1}, []string{"delay_raw"}}},
			check:  through("contends", "take_mutex"),
			until: func(samples []receiver.Sample) bool {
				return igtest.Total(igtest.Through(of(samples, "contends"), "take_mutex")) > 0
			},
		},
		{
			name: "profile_cpu", origin: upstream, flags: withBuildIDs, workload: program("busy", "busy"),
			want: cpu(49), value: []string{"samples"}, check: through("busy", "spin"), until: spins,
		},
		{
			name: "profile_cuda", origin: upstream, flags: append([]string{"--verbose"}, withBuildIDs...), workload: fakeCUDA,
			want:  receiver.Type{Type: "malloc", Unit: "bytes", PeriodType: "process_cuda", PeriodUnit: "bytes", Period: 1},
			value: []string{"count"},
			check: func(t *testing.T, r *run) {
				n := igtest.Total(igtest.Through(r.of("cuda"), "load_model"))
				t.Logf("%d bytes allocated in load_model", n)
				require.Positive(t, n)
				require.Zero(t, n%4096, "it allocates pages")
			},
		},
		{
			name: "trace_open", origin: upstream, flags: withBuildIDs, workload: program("opens", "opens_traced"),
			want: events("open"), check: inBoth("opens_traced", "open_present", "open_missing"), until: opensEnough,
		},
		{
			name: "trace_malloc", origin: upstream, flags: append([]string{"--verbose"}, withBuildIDs...), workload: program("allocs", "allocs"),
			want: events("malloc"),
			check: func(t *testing.T, r *run) {
				for _, function := range []string{"allocate_small", "allocate_large"} {
					require.Positive(t, igtest.Total(igtest.Through(r.of("allocs"), function)), function)
				}
			},
		},
		{
			name: "trace_capabilities", origin: upstream, flags: withBuildIDs, workload: program("caps", "caps"),
			want: events("capabilities"), check: through("caps", "need_capability"),
		},
		{name: "trace_tcpdrop", origin: upstream, want: events("tcpdrop")},
		{
			name: "audit_seccomp", origin: upstream, flags: withBuildIDs, workload: program("audited", "audited"),
			want: events("seccomp"), check: through("audited", "call_audited"),
		},
		{name: "trace_gpu_starvation", origin: upstream, flags: withBuildIDs, want: events("gpu_starvation")},
	}
}

// unsupported maps ig's messages to the reasons why a gadget cannot run on a machine.
var unsupported = []struct {
	said  *regexp.Regexp
	words string
}{
	{
		regexp.MustCompile(`getting inode info for .*kprobe`),
		"Inspektor Gadget needs a kprobe to find the files for user probes, and this kernel has no kprobes (CONFIG_KPROBES)",
	},
	{
		regexp.MustCompile(`SocketEnricher.*kprobe`),
		"Inspektor Gadget needs kprobes to find the processes of sockets, and this kernel has no kprobes (CONFIG_KPROBES)",
	},
	{
		regexp.MustCompile(`attaching eBPF program .*kprobe`),
		"its eBPF program attaches to a kprobe, and this kernel has no kprobes (CONFIG_KPROBES)",
	},
	{
		regexp.MustCompile(`go build wasm: .* chdir`),
		"Inspektor Gadget's Go module does not contain this gadget's WebAssembly part, so the test cannot build the gadget",
	},
}

// whyNot returns why a gadget does not run on this machine, and whether that reason is acceptable.
func whyNot(err error) (string, bool) {
	for _, reason := range unsupported {
		if reason.said.MatchString(err.Error()) {
			return reason.words, true
		}
	}
	return err.Error(), false
}

// TestGadgets runs the gadgets of Inspektor Gadget that have a stack and run on this machine.
func TestGadgets(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	for _, g := range all() {
		if g.origin == here {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			r, err := runGadget(t, g)
			if err != nil {
				words, ok := whyNot(err)
				require.True(t, ok, "%v", err)
				t.Skipf("%s: %v", words, err)
			}
			g.require(t, r)
		})
	}
}

func runGadget(t *testing.T, g gadget) (*run, error) {
	t.Helper()
	image, err := igtest.BuildUpstream(t, g.name)
	if err != nil {
		return nil, err
	}
	o := options{image: image, seconds: 3, flags: g.flags, until: g.until}
	if g.workload != nil {
		o.prefix = g.workload(t)
	}
	r, err := export(t, o)
	if err != nil && noBuildIDs.MatchString(err.Error()) {
		t.Logf("without build IDs, which need a newer kernel: %v", err)
		o.flags = slices.DeleteFunc(slices.Clone(o.flags), func(flag string) bool { return flag == "--collect-build-id" })
		r, err = export(t, o)
	}
	if failed := failedUserProbe.FindString(string(r.log)); err == nil && len(r.rows) == 0 && failed != "" {
		return r, errors.New(failed)
	}
	return r, err
}

// noBuildIDs matches the message of older kernels, for example 6.1, about gadgets of single events that collect build IDs.
// There, the event cannot be a map's key.
var noBuildIDs = regexp.MustCompile(`R2 type=alloc_mem expected=`)

// failedUserProbe matches ig's message about a user probe that it did not attach. Only its debug log has it.
var failedUserProbe = regexp.MustCompile(`getting inode info for .*kprobe.*`)

func (g gadget) require(t *testing.T, r *run) {
	t.Helper()
	r.requireSound(t)
	if g.workload != nil || g.program != "" {
		require.NotEmpty(t, r.samples)
	}
	printed, exported := map[receiver.Type]int64{}, map[receiver.Type]int64{}
	for _, c := range append([]counted{{g.want, g.value}}, g.others...) {
		printed[c.want], exported[c.want] = 0, 0
		for _, row := range r.rows {
			n := int64(1)
			if c.value != nil {
				n = igtest.Number(t, row, c.value...)
			}
			printed[c.want] += n
		}
	}
	for _, s := range r.samples {
		require.Contains(t, printed, receiver.TypeOf(s))
		exported[receiver.TypeOf(s)] += s.Total()
	}
	require.Equal(t, printed, exported, "the sums of printed and exported rows")
	if g.origin == here || slices.Contains(r.flags, "--collect-build-id") && g.workload != nil {
		known := slices.ContainsFunc(r.samples, func(s receiver.Sample) bool {
			return slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return f.Type == "native" && f.BuildID != "" })
		})
		require.True(t, known, "no frame of a program has a build ID")
	}
	if g.check != nil {
		g.check(t, r)
	}
}

// compileCUDA compiles a program that allocates GPU memory, and next to it a replacement for NVIDIA's library.
func compileCUDA(t *testing.T, dir string) {
	t.Helper()
	library := compileInto(t, dir, "libcuda.so", "-shared", "-fPIC", "-Wl,-soname,libcuda.so")
	compileInto(t, dir, "cuda", library, "-Wl,-rpath,$ORIGIN")
}

// fakeCUDA starts the program of compileCUDA. Inspektor Gadget looks for libraries in the cache of the dynamic linker, so ig gets a
// cache with the replacement.
func fakeCUDA(t *testing.T) []string {
	t.Helper()
	dir, ok := igtest.Prebuilt("")
	if !ok {
		dir = t.TempDir()
		compileCUDA(t, dir)
	}
	cache := filepath.Join(t.TempDir(), "ld.so.cache")
	igtest.Output(t, "/sbin/ldconfig", "-C", cache, dir)
	start(t, filepath.Join(dir, "cuda"))
	script := `mount --bind "$0" /etc/ld.so.cache && mount --bind /proc/$$ /proc/1 && exec "$@"` // ig reads PID 1's cache
	return []string{"unshare", "--mount", "sh", "-c", script, cache}
}

// TestPrebuild builds this folder's programs and gadgets into E2E_PREBUILD, for a machine without a compiler. There, E2E_PREBUILT
// names the folder.
func TestPrebuild(t *testing.T) {
	dir := os.Getenv("E2E_PREBUILD")
	if dir == "" {
		t.Skip("E2E_PREBUILD is not set")
	}
	sources, err := filepath.Glob("testdata/*.c")
	require.NoError(t, err)
	for _, source := range sources {
		switch name := strings.TrimSuffix(filepath.Base(source), ".c"); name {
		case "cuda", "libcuda": // below
		case "libworks", "works": // for tests that do not run there
		case waitsFor:
			compileInto(t, dir, name, withoutFramePointers...)
		default:
			compileInto(t, dir, name)
		}
	}
	compileCUDA(t, dir)
	for _, w := range workers[:2] {
		w.build(t, filepath.Join(dir, w.comm))
	}
	for _, g := range all() {
		if g.origin != upstream {
			continue
		}
		image, err := igtest.BuildUpstream(t, g.name)
		if err != nil {
			_, ok := whyNot(err)
			require.True(t, ok, "%v", err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, g.name+".tar.why"), []byte(err.Error()), 0o644))
			continue
		}
		igtest.Output(t, igtest.Built(t, igtest.Bin, "ig"), "image", "export", image, filepath.Join(dir, g.name+".tar"))
	}
}

// TestNoneForgotten looks for gadgets with stacks in the module of Inspektor Gadget.
func TestNoneForgotten(t *testing.T) {
	known := map[string]bool{}
	for _, g := range all() {
		if g.origin == upstream {
			known[g.name] = true
		}
	}
	gadgets := filepath.Join(igtest.UpstreamModule(t), "gadgets")
	sources, err := filepath.Glob(filepath.Join(gadgets, "*", "program.bpf.c"))
	require.NoError(t, err)
	require.NotEmpty(t, sources)
	for _, source := range sources {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		name := filepath.Base(filepath.Dir(source))
		if strings.Contains(string(text), "gadget_kernel_stack ") || strings.Contains(string(text), "struct gadget_user_stack ") {
			require.True(t, known[name], "%s has stacks and is not tested", name)
			delete(known, name)
		}
	}
	require.Empty(t, known, "gadgets that Inspektor Gadget no longer has, or that have no stacks")
}
