package stack

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

func TestKernelNamesAlone(t *testing.T) {
	t.Parallel()
	mapping := profile.Mapping{File: "[kernel.kallsyms]", GNUBuildID: testBuildID, Symbolized: true}
	bare := profile.Mapping{File: "[kernel.kallsyms]", GNUBuildID: testBuildID}
	frame := func(name string) profile.Frame {
		return profile.Frame{Name: name, Mapping: mapping, Type: profile.FrameKernel}
	}
	tests := []struct {
		name    string
		symbols []byte
		id      int32
		noID    bool
		frames  []profile.Frame
		outcome Outcome
	}{
		{name: "names", symbols: list("a", "b"), id: 3, frames: []profile.Frame{frame("a"), frame("b")}},
		{name: "names without an ID", symbols: list("a"), noID: true, frames: []profile.Frame{frame("a")}},
		{name: "an unknown symbol", symbols: list("[unknown]", "b"), id: 3, frames: []profile.Frame{frame(Unknown), frame("b")}},
		{
			name: "an address for a name", symbols: list("0xffffffff81000010", "b"), id: 3,
			frames: []profile.Frame{{Address: 0x10, Mapping: bare, Type: profile.FrameKernel}, frame("b")},
		},
		{
			name: "an address outside the image", symbols: list("0xffffffffc0000010", "b"), id: 3,
			frames: []profile.Frame{{Name: Unknown, Type: profile.FrameKernel}, frame("b")},
		},
		{name: "an offset in words", symbols: list("a+0x1f", "b"), id: 3, frames: []profile.Frame{frame("a"), frame("b")}},
		{name: "gone from the map", id: 3, outcome: Lost},
		{name: "its place was taken", id: -17, outcome: Lost},
		{name: "user mode", id: -14, outcome: Empty},
		{name: "no such field", noID: true, outcome: Empty},
		{name: "a separator and nothing else", symbols: []byte("; "), id: 3, outcome: Lost},
	}
	k := NewKernel(KernelOptions{Symbols: testSymbols()})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			frames, outcome := k.Append(nil, tt.symbols, tt.id, !tt.noID)
			require.Equal(t, tt.outcome, outcome)
			require.Equal(t, tt.frames, frames)
		})
	}
}

func TestKernelFrame(t *testing.T) {
	t.Parallel()
	const (
		moduleID  = "0102030405060708090a0b0c0d0e0f1011121314"
		inModule  = 0xffffffffc0001000
		inNameles = 0xffffffffc0011000
		inBPF     = 0xffffffffc0201000
	)
	kernelMapping := func(symbolized bool) profile.Mapping {
		return profile.Mapping{File: "[kernel.kallsyms]", GNUBuildID: testBuildID, Symbolized: symbolized}
	}
	moduleMapping := func(symbolized bool) profile.Mapping {
		return profile.Mapping{File: "[nft]", GNUBuildID: moduleID, Symbolized: symbolized}
	}
	functions := functionsOf(t, "ffffffffc0001020 t first\t[nft]\nffffffffc0001040 t second\t[nft]\nffffffffc0011000 t a\t[other]\n")
	modules := []module{
		{start: inModule, end: inModule + 0x1000, mapping: moduleMapping(false), functions: functions},
		{start: inNameles, end: inNameles + 0x1000, functions: functions},
	}
	known := &Kernel{symbols: testSymbols(), modules: modules, knowsModules: true}
	nameless := &Kernel{symbols: testSymbols(), modules: []module{{start: inNameles, end: inNameles + 0x1000, functions: &functionTable{}}}, knowsModules: true}
	unknown := &Kernel{symbols: testSymbols()}
	hidden := &Kernel{symbols: &KernelSymbols{BuildID: testBuildID}}
	raw := &Kernel{symbols: testSymbols(), modules: modules, knowsModules: true, opts: KernelOptions{RawAddresses: true}}
	rawHidden := &Kernel{symbols: hidden.symbols, opts: KernelOptions{RawAddresses: true}}
	nothing := &Kernel{symbols: &KernelSymbols{}}

	tests := []struct {
		what  string
		k     *Kernel
		name  string
		addr  uint64
		frame profile.Frame
	}{
		{"the image", known, "a", testStart + 0x40, profile.Frame{Name: "a", Address: 0x40, Mapping: kernelMapping(true)}},
		{"the image, no symbol", known, "", testStart + 0x40, profile.Frame{Address: 0x40, Mapping: kernelMapping(false)}},
		{"_stext itself", known, "", testStart, profile.Frame{Mapping: kernelMapping(false)}},
		{"a module", known, "second", inModule + 0x40, profile.Frame{Name: "second", Address: 0x40, Mapping: moduleMapping(true)}},
		{"a module, another symbol", known, "wrong", inModule + 0x3f, profile.Frame{Name: "first", Address: 0x3f, Mapping: moduleMapping(true)}},
		{"a module, no symbol", known, "wrong", inModule + 0x1f, profile.Frame{Address: 0x1f, Mapping: moduleMapping(false)}},
		{"a module without a build ID", known, "a", inNameles + 0x40, profile.Frame{Name: "a"}},
		{"a module without a build ID, no symbol", nameless, "wrong", inNameles + 0x40, profile.Frame{Name: Unknown}},
		{"between modules", known, "a", inModule + 0x1000, profile.Frame{Name: Unknown}},
		{"a BPF program with a symbol", known, "bpf_prog_6deef7357e7b4530_x", inBPF, profile.Frame{Name: "bpf_prog_6deef7357e7b4530_x"}},
		{"a BPF program with the nearest symbol", known, "__stop_notes", inBPF, profile.Frame{Name: Unknown}},
		{"outside the image, modules unknown", unknown, "a", inModule, profile.Frame{Name: "a"}},
		{"below the image", unknown, "", 0x1000, profile.Frame{Name: Unknown}},
		{"addresses are hidden", hidden, "a", testStart + 0x40, profile.Frame{Name: "a", Mapping: kernelMapping(true)}},
		{"addresses are hidden, no symbol", hidden, "", testStart + 0x40, profile.Frame{Name: Unknown, Mapping: kernelMapping(true)}},
		{"addresses are hidden, raw", rawHidden, "a", testStart + 0x40, profile.Frame{Name: "a", Address: testStart + 0x40}},
		{"nothing is known of the kernel", nothing, "a", testStart + 0x40, profile.Frame{Name: "a"}},
		{"nothing is known of the kernel, no symbol", nothing, "", testStart + 0x40, profile.Frame{Name: Unknown}},
		{"raw, the image", raw, "a", testStart + 0x40, profile.Frame{Name: "a", Address: testStart + 0x40, Mapping: kernelMapping(true)}},
		{"raw, a module", raw, "", inModule + 0x40, profile.Frame{Name: "second", Address: inModule + 0x40, Mapping: moduleMapping(true)}},
		{"raw, elsewhere", raw, "", inBPF, profile.Frame{Address: inBPF}},
	}
	for _, tt := range tests {
		tt.frame.Type = profile.FrameKernel
		var f profile.Frame
		tt.k.frame(&f, tt.name, tt.addr, true, true)
		require.Equal(t, tt.frame, f, tt.what)
		if !tt.k.opts.RawAddresses {
			require.Less(t, f.Address, uint64(1)<<32, "%s: an address of the kernel", tt.what)
		}
	}
}

func functionsOf(t *testing.T, kallsyms string) *functionTable {
	t.Helper()
	functions, err := readFunctionTable(strings.NewReader(kallsyms), (*kernelSymbol).ofModule)
	require.NoError(t, err)
	return functions
}

// TestKernelCallerAtTheEnd checks a function whose last instruction is a call that never returns. The return address is in the
// next function.
func TestKernelCallerAtTheEnd(t *testing.T) {
	t.Parallel()
	const start = 0xffffffffc0001000
	k := &Kernel{symbols: testSymbols(), knowsModules: true, modules: []module{
		{start: start, end: start + 0x1000, functions: functionsOf(t, "ffffffffc0001000 t caller\t[nft]\nffffffffc0001040 t next\t[nft]\n")},
	}}
	var f profile.Frame
	k.frame(&f, "", start+0x40, false, true)
	require.Equal(t, "caller", f.Name)
	k.frame(&f, "", start+0x40, true, true)
	require.Equal(t, "next", f.Name)
}

func TestTracingFrames(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		in   []string
		trim int
	}{
		{"none", []string{"__schedule", "schedule", "do_nanosleep"}, 0},
		{"raw tracepoint", []string{"bpf_trace_run4", "__traceiter_sched_switch", "__schedule", "schedule"}, 2},
		{"raw tracepoint with its program", []string{"bpf_prog_6deef7357e7b4530_sched_switch", "bpf_trace_run4", "__schedule"}, 2},
		{"raw tracepoint with a program that has the nearest symbol", []string{"__stop_notes", "bpf_trace_run4", "__schedule"}, 2},
		{"raw tracepoint with a program without symbol", []string{Unknown, "bpf_trace_run4", "__schedule"}, 2},
		{"raw tracepoint with its probe", []string{"bpf_trace_run2", "__bpf_trace_sys_enter", "syscall_trace_enter", "do_syscall_64"}, 3},
		{"tracepoint of a system call", []string{"perf_syscall_enter", "syscall_trace_enter", "do_syscall_64"}, 2},
		{"tracepoint of a system call's end", []string{"perf_syscall_exit", "syscall_exit_work", "do_syscall_64"}, 2},
		{"the slow path for another reason", []string{"syscall_trace_enter", "do_syscall_64"}, 0},
		{"the slow path further up", []string{"bpf_trace_run1", "__seccomp_filter", "syscall_trace_enter"}, 1},
		{"perf tracepoint", []string{"perf_trace_run_bpf_submit", "perf_trace_sched_switch", "__schedule"}, 2},
		{"kprobe by ftrace", []string{"trace_call_bpf", "kprobe_perf_func", "kprobe_ftrace_handler", "ftrace_trampoline", "vfs_read"}, 4},
		{"kprobe by ftrace, trampoline without symbol", []string{"kprobe_ftrace_handler", "", "ftrace_regs_call", "vfs_read"}, 3},
		{"fentry", []string{"bpf_prog_0123456789abcdef_x", "bpf_trampoline_6442506592_0", "vfs_read", "ksys_read"}, 2},
		{"fentry without symbols", []string{Unknown, Unknown, "vfs_read", "ksys_read"}, 0},
		{"kretprobe", []string{"arch_rethook_trampoline", "ksys_read"}, 1},
		{"a software event", []string{"perf_prepare_sample", "__perf_event_overflow", "perf_swevent_event", "___perf_sw_event", "__schedule"}, 4},
		{"a helper that takes the stack", []string{"get_perf_callchain", "bpf_get_stackid", "bpf_get_stackid_raw_tp", "bpf_prog_0123456789abcdef_x", "bpf_trace_run1", "rcu_core"}, 5},
		{"a BPF program that does the workload's work", []string{"bpf_prog_0123456789abcdef_from_netdev", "cls_bpf_classify", "tcf_classify"}, 0},
		{"work within a BPF program", []string{"htab_map_hash", "bpf_prog_0123456789abcdef_x", "bpf_trace_run4", "__schedule"}, 0},
		{"opaque frames alone", []string{Unknown, "", "__schedule"}, 0},
		{"tracing further up", []string{"kmalloc", "bpf_trace_run4", "do_exit"}, 2},
		{"tracing far up", []string{"kmem_cache_alloc", "kmalloc", "bpf_trace_run4", "do_exit"}, 0},
		{"opening a perf event", []string{"perf_trace_init", "perf_tp_event_init", "perf_try_init_event"}, 0},
		{"nothing else", []string{"bpf_trace_run4", "__traceiter_sched_switch"}, 0},
		{"one frame", []string{"bpf_trace_run4"}, 0},
		{"no frame", nil, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var frames []profile.Frame
			for _, n := range tt.in {
				frames = append(frames, profile.Frame{Name: n})
			}
			require.Equal(t, tt.trim, tracingFrames(frames, func(int) bool { return false }))
		})
	}

	t.Run("bounded", func(t *testing.T) {
		t.Parallel()
		frames := make([]profile.Frame, 100)
		frames[50].Name = "bpf_trace_run4"
		require.Zero(t, tracingFrames(frames, func(int) bool { return true }))
	})
}

func TestKernelTracing(t *testing.T) {
	t.Parallel()
	text := list("bpf_trace_run4", "__traceiter_sched_switch", "__schedule")
	frames, _ := NewKernel(KernelOptions{}).Append(nil, text, 0, false)
	require.Equal(t, []string{"__schedule"}, names(frames))
	frames, _ = NewKernel(KernelOptions{KeepTracing: true}).Append(nil, text, 0, false)
	require.Equal(t, []string{"bpf_trace_run4", "__traceiter_sched_switch", "__schedule"}, names(frames))
}
