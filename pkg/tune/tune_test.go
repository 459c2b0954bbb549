package tune

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ustack"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/peer"
	"oras.land/oras-go/v2"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

func TestEntries(t *testing.T) {
	const entry, gigabyte = 1020, 1 << 30
	for _, tc := range []struct {
		name              string
		def, perCPU, cpus int
		memory            uint64
		want              int
	}{
		{"few CPUs have the default", 16384, 256, 2, 8 * gigabyte, 16384},
		{"as many as the default is for", 16384, 256, 64, 256 * gigabyte, 16384},
		{"128 CPUs", 16384, 256, 128, 256 * gigabyte, 32768},
		{"256 CPUs", 16384, 256, 256, 512 * gigabyte, 65536},
		{"256 CPUs and many stacks of each", 16384, 2048, 256, 1024 * gigabyte, 524288},
		{"more CPUs announced than the memory is for", 16384, 2048, 240, 8 * gigabyte, 32896},
		{"never below the default", 16384, 2048, 240, gigabyte / 8, 16384},
		{"no need per CPU", 1024, 0, 256, 512 * gigabyte, 1024},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, Entries(tc.def, tc.perCPU, tc.cpus, entry, tc.memory))
		})
	}
}

const metadata = `
programs:
  back: {attach_to: gadget_program_disabled, tracepoint: exit_tp, param: exit, spares: left_max_entries}
params:
  ebpf:
    exit: {key: use-exit, defaultValue: auto}
    format_stacks: {key: format-stacks, defaultValue: auto}
    left_max_entries: {key: left, defaultValue: "4096", perCPU: 512}
    stacks_max_entries: {key: stacks, defaultValue: "16384", whole: "8192", wholePerCPU: 300}
    rows_max_entries: {key: rows, defaultValue: "16384"}
    elsewhere_max_entries: {defaultValue: "16384"}
    include_host: {key: include-host, defaultValue: "false"}
`

// instantiate returns the context of a gadget with the metadata above, as operators receive it.
func instantiate(t *testing.T, values api.ParamValues, options ...gadgetcontext.Option) *gadgetcontext.GadgetContext {
	t.Helper()
	gadgetCtx := gadgetcontext.New(t.Context(), "gadget", options...)
	require.NoError(t, gadgetCtx.SetMetadata([]byte(metadata)))
	for name, typ := range map[string]ebpf.MapType{"stacks": ebpf.LRUHash, "rows": ebpf.Hash, "left": ebpf.Hash} {
		gadgetCtx.SetVar(operators.MapSpecPrefix+name, &ebpf.MapSpec{Type: typ, KeySize: 4, ValueSize: 1016})
	}
	_, err := (&programs{noProgram{}}).InstantiateImageOperator(gadgetCtx, nil, ocispec.Descriptor{}, values)
	require.NoError(t, err)
	return gadgetCtx
}

type noProgram struct{}

func (noProgram) Name() string { return "ebpf" }
func (noProgram) InstantiateImageOperator(operators.GadgetContext, oras.ReadOnlyTarget, ocispec.Descriptor, api.ParamValues) (operators.ImageOperatorInstance, error) {
	return nil, nil
}

// offering acts as the eBPF operator of a gadget with these parameters, which Inspektor Gadget reads from the gadget's
// programs.
type offering struct {
	noProgram
	params  api.Params
	running map[operators.GadgetContext]bool
}

func (o offering) InstantiateImageOperator(operators.GadgetContext, oras.ReadOnlyTarget, ocispec.Descriptor, api.ParamValues) (operators.ImageOperatorInstance, error) {
	return o, nil
}
func (o offering) ExtraParams(operators.GadgetContext) api.Params { return o.params }
func (offering) PreStart(operators.GadgetContext) error           { return nil }
func (offering) PreStop(operators.GadgetContext) error            { return nil }
func (o offering) Start(gadgetCtx operators.GadgetContext) error {
	if o.running != nil {
		o.running[gadgetCtx] = true
	}
	gadgetCtx.Logger().Warnf("reading event: lost %d samples", uint64(7))
	return nil
}
func (offering) Stop(operators.GadgetContext) error { return nil }
func (o offering) Close(gadgetCtx operators.GadgetContext) error {
	delete(o.running, gadgetCtx)
	return nil
}

func TestCollectStacks(t *testing.T) {
	user, kernel := &api.Param{Key: "collect-ustack", DefaultValue: "false"}, &api.Param{Key: "kstack", DefaultValue: "false"}
	on := &api.Param{Key: "collect-ustack", DefaultValue: "true"}
	const metadata = "params: {ebpf: {collect_kstack: {key: kstack, defaultValue: 'false'}}}"
	for _, tc := range []struct {
		name         string
		offered      api.Params
		values, want api.ParamValues
		kernel, user bool
		flags        []string
	}{
		{"off by default", api.Params{user}, nil, api.ParamValues{"collect-ustack": "true"}, false, true, []string{"--collect-ustack"}},
		{"off as clients send it", api.Params{user}, api.ParamValues{"collect-ustack": "false"}, api.ParamValues{"collect-ustack": "true"}, true, true, []string{"--collect-ustack"}},
		{"both", api.Params{user, kernel}, nil, api.ParamValues{"collect-ustack": "true", "kstack": "true"}, true, true, []string{"--kstack", "--collect-ustack"}},
		{"that of programs alone is exported", api.Params{user, kernel}, nil, api.ParamValues{"collect-ustack": "true"}, false, true, []string{"--collect-ustack"}},
		{"on already", api.Params{user}, api.ParamValues{"collect-ustack": "true"}, api.ParamValues{"collect-ustack": "true"}, false, true, nil},
		{"switched off by the user", api.Params{on}, api.ParamValues{"collect-ustack": "false"}, api.ParamValues{"collect-ustack": "false"}, false, true, nil},
		{"no such parameter", nil, nil, api.ParamValues{}, true, true, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			gadgetCtx := gadgetcontext.New(t.Context(), "gadget")
			require.NoError(t, gadgetCtx.SetMetadata([]byte(metadata)))
			values := maps.Clone(tc.values)
			if values == nil {
				values = api.ParamValues{}
			}
			require.Empty(t, CollectStacks(gadgetCtx, true, true), "not observed")
			_, err := (&programs{offering{params: tc.offered}}).InstantiateImageOperator(gadgetCtx, nil, ocispec.Descriptor{}, values)
			require.NoError(t, err)
			before := Uncollected(gadgetCtx)
			require.Equal(t, tc.flags, CollectStacks(gadgetCtx, tc.kernel, tc.user))
			require.Subset(t, before, tc.flags)
			for _, flag := range Uncollected(gadgetCtx) {
				require.NotContains(t, tc.flags, flag)
			}
			require.Equal(t, tc.want, values)
		})
	}
}

func attachedTo(t *testing.T, gadgetCtx operators.GadgetContext) string {
	t.Helper()
	p, ok := parametersOf(gadgetCtx)
	require.True(t, ok)
	return p.metadata.GetString("programs.back.attach_to")
}

func machine(tracepoints bool) Machine {
	return Machine{CPUs: 128, Memory: 256 << 30, HasTracepoint: func(name string) bool { return tracepoints && name == "exit_tp" }}
}

func TestApplyDefaults(t *testing.T) {
	// Clients send these values. Inspektor Gadget gives strings an empty default, whatever the metadata says.
	values := api.ParamValues{"use-exit": "", "left": "4096", "stacks": "16384", "rows": "16384", "include-host": "false"}
	gadgetCtx := instantiate(t, values)
	require.NoError(t, Apply(gadgetCtx, machine(false)))
	require.Equal(t, api.ParamValues{"use-exit": "", "left": "65536", "stacks": "32768", "rows": "16384", "include-host": "false"}, values)
	require.Equal(t, "gadget_program_disabled", attachedTo(t, gadgetCtx))
}

func TestApplyTracepoint(t *testing.T) {
	values := api.ParamValues{}
	gadgetCtx := instantiate(t, values)
	require.NoError(t, Apply(gadgetCtx, machine(true)))
	require.Equal(t, api.ParamValues{"use-exit": "true", "left": "1", "stacks": "32768"}, values)
	require.Equal(t, "exit_tp", attachedTo(t, gadgetCtx))

	values = api.ParamValues{"left": "9000"}
	require.NoError(t, Apply(instantiate(t, values), machine(true)))
	require.Equal(t, "9000", values["left"], "what a user asks for stays")
}

// With whole stacks, a map can be smaller than its default, and also grows.
func TestApplyWholeStacks(t *testing.T) {
	for cpus, want := range map[int]string{2: "8192", 128: "38400"} {
		var said counter
		values := api.ParamValues{"stacks": "16384", "rows": "16384"}
		gadgetCtx, m := instantiate(t, values, gadgetcontext.WithLogger(&said)), machine(true)
		m.CPUs = cpus
		UnwindsAll(gadgetCtx)
		require.NoError(t, Apply(gadgetCtx, m))
		require.Equal(t, want, values["stacks"])
		require.Equal(t, "16384", values["rows"], "this map has no other size for whole stacks")
		if cpus == 2 {
			require.Equal(t, []string{"with whole stacks, --stacks is 8192 instead of 16384: to choose the size yourself, set another value"}, said.texts)
		} else {
			require.Empty(t, said.texts)
		}

		values = api.ParamValues{"stacks": "9000"}
		gadgetCtx = instantiate(t, values)
		UnwindsAll(gadgetCtx)
		require.NoError(t, Apply(gadgetCtx, m))
		require.Equal(t, "9000", values["stacks"], "what a user asks for stays")
	}
}

// TestApplyTogether checks that programs that depend on each other are attached together, or not at all. They are attached to
// tracepoints, or else to functions.
func TestApplyTogether(t *testing.T) {
	const metadata = `
programs:
  begin: {attach_to: gadget_program_disabled, tracepoint: begin_tp, param: waits}
  end: {attach_to: gadget_program_disabled, tracepoint: end_tp, param: waits}
  instead: {attach_to: gadget_program_disabled, kprobe: end_wait, param: waits}
params:
  ebpf:
    waits: {key: waits, defaultValue: auto}
`
	const disabled = "gadget_program_disabled"
	noKprobes := errors.New("no kprobes")
	for _, tc := range []struct {
		name        string
		tracepoints []string
		kprobe      error
		asked       string
		want        []string
		says        string
	}{
		{"both", []string{"begin_tp", "end_tp"}, nil, "", []string{"begin_tp", "end_tp", disabled, "true"}, "the tracepoint begin_tp, end_tp"},
		{"one", []string{"begin_tp"}, noKprobes, "", []string{disabled, disabled, disabled, ""}, "this kernel lacks the tracepoint end_tp, and a kprobe cannot replace it: no kprobes"},
		{"the other one", []string{"end_tp"}, nil, "", []string{disabled, disabled, "end_wait.isra.0", "true"}, "a kprobe on end_wait.isra.0"},
		{"neither", nil, noKprobes, "", []string{disabled, disabled, disabled, ""}, "this kernel lacks the tracepoint begin_tp, end_tp, and a kprobe cannot replace it: no kprobes"},
		{"unwanted", []string{"begin_tp", "end_tp"}, nil, "false", []string{disabled, disabled, disabled, "false"}, "--waits=false is set"},
		{"asked for", []string{"begin_tp", "end_tp"}, nil, "true", []string{"begin_tp", "end_tp", disabled, "true"}, "the tracepoint begin_tp, end_tp"},
		{"asked for in vain", nil, noKprobes, "true", []string{disabled, disabled, disabled, "true"}, "this kernel lacks the tracepoint begin_tp, end_tp, and a kprobe cannot replace it: no kprobes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			gadgetCtx := gadgetcontext.New(t.Context(), "gadget")
			require.NoError(t, gadgetCtx.SetMetadata([]byte(metadata)))
			values := api.ParamValues{"waits": tc.asked}
			_, err := (&programs{noProgram{}}).InstantiateImageOperator(gadgetCtx, nil, ocispec.Descriptor{}, values)
			require.NoError(t, err)
			tried := 0
			m := Machine{
				HasTracepoint: func(name string) bool { return slices.Contains(tc.tracepoints, name) },
				Kprobe:        func(function string) (string, error) { tried++; return function + ".isra.0", tc.kprobe },
			}
			found := func() string {
				events, err := Found(gadgetCtx, "waits", m)
				if err != nil {
					return err.Error()
				}
				require.Equal(t, len(tc.tracepoints) < 2, events.Kprobes)
				return events.String()
			}
			require.Equal(t, tc.says, found())
			if err := Apply(gadgetCtx, m); tc.asked == "true" && tc.kprobe != nil {
				require.EqualError(t, err, "--waits=true: "+tc.says)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, tc.says, found(), "Apply does what Found has said")
			require.LessOrEqual(t, tried, 1, "a kprobe is tried once a run")
			p, _ := parametersOf(gadgetCtx)
			var got []string
			for _, program := range []string{"begin", "end", "instead"} {
				got = append(got, p.program(program, "attach_to"))
			}
			require.Equal(t, tc.want, append(got, values["waits"]))
		})
	}
}

// TestApplyTyped checks that a user's values stay.
func TestApplyTyped(t *testing.T) {
	values := api.ParamValues{"use-exit": "false", "left": "100", "stacks": "1000"}
	gadgetCtx := instantiate(t, values)
	require.NoError(t, Apply(gadgetCtx, machine(true)))
	require.Equal(t, api.ParamValues{"use-exit": "false", "left": "100", "stacks": "1000"}, values)
	require.Equal(t, "gadget_program_disabled", attachedTo(t, gadgetCtx))
}

// TestApplyNothing checks that a gadget without eBPF programs is not changed.
func TestApplyNothing(t *testing.T) {
	gadgetCtx := gadgetcontext.New(t.Context(), "gadget")
	_, err := Found(gadgetCtx, "waits", machine(true))
	require.EqualError(t, err, "the gadget's parameters are unknown")
	require.NoError(t, Apply(gadgetCtx, machine(true)))
	require.False(t, StacksByID(gadgetCtx))
}

func TestStacksByID(t *testing.T) {
	for value, want := range map[string]string{"": "false", "auto": "false", "true": "", "false": ""} {
		values := api.ParamValues{"format-stacks": value}
		require.Equal(t, want != "", StacksByID(instantiate(t, values)), value)
		if want == "" {
			want = value
		}
		require.Equal(t, want, values["format-stacks"])
	}
}

func TestReading(t *testing.T) {
	called := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.UnixAddr{}})
	for _, tc := range []struct {
		name    string
		ctx     context.Context
		remote  bool
		output  string
		samples bool // whether anybody reads the data source samples
		others  bool
	}{
		{"printed here", context.Background(), false, "columns", true, true},
		{"no word on it", context.Background(), false, "", true, true},
		{"not printed", context.Background(), false, "none", false, false},
		{"one not printed", context.Background(), false, "samples:none,others:json", false, true},
		{"wrong", context.Background(), false, "a:b:c,,:", true, true},
		{"a client waits", called, true, "json", true, true},
		{"a client waits, and prints nothing", called, true, "none", false, false},
		{"detached", context.Background(), true, "columns", false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			gadgetCtx := gadgetcontext.New(tc.ctx, "gadget", gadgetcontext.WithAsRemoteCall(tc.remote), gadgetcontext.WithDataOperators(output{}))
			require.NoError(t, gadgetCtx.PrepareGadgetInfo(api.ParamValues{"operator.cli.output": tc.output, "operator.cli.fields": "x"}))
			r := ReadingOf(gadgetCtx)
			require.Equal(t, tc.samples, r.Anybody("samples"))
			require.Equal(t, tc.others, r.Anybody("others"))
			require.Equal(t, tc.name == "detached", r.Detached())
		})
	}
}

// TestObserve checks that the wrapping operator is registered once, and passes values on unchanged.
func TestObserve(t *testing.T) {
	before, ok := operators.GetImageOperatorForMediaType(ebpfMediaType)
	t.Cleanup(func() {
		if ok {
			operators.RegisterOperatorForMediaType(ebpfMediaType, before)
		}
	})
	operators.RegisterOperatorForMediaType(ebpfMediaType, noProgram{})
	Observe()
	Observe()
	now, _ := operators.GetImageOperatorForMediaType(ebpfMediaType)
	require.Equal(t, &programs{noProgram{}}, now)
	require.Contains(t, operators.GetDataOperators(), "cli")
	once, ok := operators.GetDataOperators()[ustack.Name].(userStacks)
	require.True(t, ok)
	require.IsType(t, &ustack.Operator{}, once.DataOperator)
}

func TestThisMachine(t *testing.T) {
	m := ThisMachine()
	require.Positive(t, m.CPUs)
	require.Greater(t, m.Memory, uint64(64<<20))
	require.False(t, m.HasTracepoint("no_such_tracepoint"))
	_, err := m.Kprobe("no_such_function")
	require.Error(t, err)
}

// TestTry checks that a program that never runs is an error. It uses raw tracepoints, which all kernels have.
func TestTry(t *testing.T) {
	igtest.NeedRoot(t)
	for name, want := range map[string]error{"sched_switch": nil, "kexec_never": os.ErrNotExist, "mark_victim": errNeverRan} {
		err := try(ebpf.RawTracepoint, func(p *ebpf.Program) (link.Link, error) {
			return link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: p})
		})
		require.ErrorIs(t, err, want, name)
	}
}

func TestChooseSources(t *testing.T) {
	const metadata = `
params: {ebpf: {single: {key: single-events, defaultValue: "false", datasource: {"false": sums, "true": events}}}}
`
	for value, want := range map[string][]string{"": {"other", "sums"}, "false": {"other", "sums"}, "true": {"events", "other"}, "yes": {"events", "other", "sums"}} {
		gadgetCtx := gadgetcontext.New(t.Context(), "gadget")
		require.NoError(t, gadgetCtx.SetMetadata([]byte(metadata)))
		gadgetCtx.SetVar(valuesVar, api.ParamValues{"single-events": value})
		for _, name := range []string{"sums", "events", "other"} {
			_, err := gadgetCtx.RegisterDataSource(datasource.TypeSingle, name)
			require.NoError(t, err)
		}
		require.NoError(t, Apply(gadgetCtx, machine(false)))
		require.Equal(t, want, slices.Sorted(maps.Keys(gadgetCtx.GetDataSources())), value)
	}
}

func TestValue(t *testing.T) {
	gadgetCtx := instantiate(t, api.ParamValues{"rows": "5", "other": "6"})
	for _, tc := range []struct {
		variable, value, key string
		known                bool
	}{
		{"rows_max_entries", "5", "rows", true},
		{"stacks_max_entries", "16384", "stacks", true},
		{"include_host", "false", "include-host", true},
		{"elsewhere_max_entries", "16384", "elsewhere_max_entries", true},
		{"none", "", "none", false},
	} {
		v, ok := Value(gadgetCtx, tc.variable)
		require.Equal(t, tc.value, v, tc.variable)
		require.Equal(t, tc.known, ok, tc.variable)
		require.Equal(t, tc.key, Key(gadgetCtx, tc.variable))
	}
	require.Equal(t, "6", Flag(gadgetCtx, "other"), "one that Inspektor Gadget has itself")
	require.Equal(t, "5", Flag(gadgetCtx, "rows"))
	require.Empty(t, Flag(gadgetCtx, "stacks"), "what nobody has set")

	unobserved := gadgetcontext.New(t.Context(), "gadget")
	_, ok := Value(unobserved, "rows_max_entries")
	require.False(t, ok)
	require.Equal(t, "rows_max_entries", Key(unobserved, "rows_max_entries"))
	require.Empty(t, Flag(unobserved, "rows"))
}

// TestPace checks the rate of warnings. A gadget can lose thousands of stacks per second.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said counter
		gadgetCtx := gadgetcontext.New(t.Context(), "gadget", gadgetcontext.WithLogger(&said))
		kernel, user := withPace(gadgetCtx).Logger(), withPace(gadgetCtx).Logger()
		for range 1000 {
			kernel.Warnf("stack with ID %d is lost: %s", 1, "gone")
			user.Warnf("stack with ID %d is lost: %s", 2, "gone")
		}
		require.Equal(t, []string{"stack with ID 1 is lost: gone"}, said.texts)
		time.Sleep(pace)
		user.Warnf("stack with ID %d is lost: %s", 3, "gone")
		require.Equal(t, "stack with ID 3 is lost: gone (and 1999 more since the last such line)", said.texts[1])
		for range 2 {
			user.Warnf("program %s is missing", "x")
		}
		require.Len(t, said.texts, 4, "what is said once for each thing is said")
		user.Warnf("symbolizer: %s", "gone")
		require.Len(t, said.texts, 5, "another kind has a pace of its own")
	})
}

// TestLostEvents checks that an instance's warnings are counted, and that its other methods are passed on.
func TestLostEvents(t *testing.T) {
	gadgetCtx := gadgetcontext.New(t.Context(), "gadget")
	require.Zero(t, LostEvents(gadgetCtx))
	running := map[operators.GadgetContext]bool{}
	inst, err := (&programs{offering{running: running}}).InstantiateImageOperator(gadgetCtx, nil, ocispec.Descriptor{}, nil)
	require.NoError(t, err)
	require.NoError(t, inst.Start(gadgetCtx))
	require.NoError(t, inst.Start(gadgetCtx))
	require.Len(t, running, 1)
	require.NoError(t, inst.Close(gadgetCtx))
	require.Empty(t, running, "Inspektor Gadget finds the run by its context")
	require.EqualValues(t, 14, LostEvents(gadgetCtx))
	require.Implements(t, (*operators.ExtraParams)(nil), inst)
	require.Implements(t, (*operators.PreStart)(nil), inst)
	require.Implements(t, (*operators.PreStop)(nil), inst)

	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/inspektor-gadget/inspektor-gadget").Output()
	require.NoError(t, err)
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "pkg/operators/ebpf/tracer.go"))
	require.NoError(t, err)
	require.Contains(t, string(source), fmt.Sprintf("%q, lost", lostEvents))
}

// TestSetSymbols checks that either all or no variables for kernel addresses are set, even for a gadget without parameters.
func TestSetSymbols(t *testing.T) {
	const metadata = `
operator: {otel-profiles: {symbols: [__text_start, Text_end, another, none]}}
`
	for name, tc := range map[string]struct {
		err  error
		want []any
		said int
	}{
		"known":  {nil, []any{uint64(1), uint64(2)}, 0},
		"hidden": {errors.New("addresses are hidden"), []any{uint64(0), uint64(0)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var said counter
			gadgetCtx := gadgetcontext.New(t.Context(), "gadget", gadgetcontext.WithLogger(&said))
			require.NoError(t, gadgetCtx.SetMetadata([]byte(metadata)))
			gadgetCtx.SetVar("__text_start", uint64(0))
			gadgetCtx.SetVar("Text_end", uint64(0))
			gadgetCtx.SetVar("another", "operator's")
			require.NoError(t, Apply(gadgetCtx, Machine{Addresses: func(symbols ...string) ([]uint64, error) {
				require.Equal(t, []string{"__text_start", "Text_end"}, symbols)
				return []uint64{1, 2}, tc.err
			}}))
			start, _ := gadgetCtx.GetVar("__text_start")
			end, _ := gadgetCtx.GetVar("Text_end")
			require.Equal(t, tc.want, []any{start, end})
			require.Len(t, said.texts, tc.said)
		})
	}
}

// counter stores what a gadget logs, except for debug messages.
type counter struct {
	logger.Logger
	texts []string
}

func (c *counter) Warnf(format string, args ...any) {
	c.texts = append(c.texts, fmt.Sprintf(format, args...))
}
func (c *counter) Infof(format string, args ...any) { c.Warnf(format, args...) }
func (c *counter) Debugf(string, ...any)            {}
