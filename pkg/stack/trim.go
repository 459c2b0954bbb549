package stack

import (
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// maxTracing limits the number of leaf frames that are searched for tracing frames.
const maxTracing = 32

// entryPrefixes and entryNames are functions through which the kernel enters tracing from the traced code. Frames between the
// leaf and such a function do not belong to the workload. The names come from kernel/trace, kernel/events, kernel/bpf and
// arch/*/kernel of Linux 5.4 to 6.18.
var entryPrefixes = []string{
	"__traceiter_",     // calls the probes of a tracepoint
	"__bpf_trace_",     // a tracepoint's probe that calls a BPF program
	"bpf_trace_run",    // calls that program: bpf_trace_run1 … bpf_trace_run12
	"bpf_trampoline_",  // fentry, fexit, LSM and tp_btf programs
	"perf_trace_",      // a tracepoint's probe for a perf event; see managementNames
	"perf_syscall_",    // the same for system calls: perf_syscall_enter, perf_syscall_exit
	"ftrace_regs_call", // the function tracer's entry
	"kprobe_ftrace_",
	"kprobe_multi_link_",
	"arch_rethook_trampoline",
	"arch_ftrace_ops_list_func",
}

var entryNames = map[string]bool{
	"__bpf_prog_enter":               true,
	"__bpf_prog_exit":                true,
	"__bpf_tramp_enter":              true,
	"__bpf_tramp_exit":               true,
	"trace_call_bpf":                 true,
	"perf_tp_event":                  true,
	"perf_event_overflow":            true,
	"__perf_event_overflow":          true,
	"perf_swevent_event":             true,
	"perf_swevent_overflow":          true,
	"perf_swevent_hrtimer":           true,
	"___perf_sw_event":               true,
	"__perf_sw_event":                true,
	"bpf_overflow_handler":           true,
	"ftrace_caller":                  true,
	"ftrace_call":                    true,
	"ftrace_trampoline":              true,
	"ftrace_ops_assist_func":         true,
	"ftrace_ops_list_func":           true,
	"fprobe_entry":                   true,
	"fprobe_handler":                 true,
	"kprobe_dispatcher":              true,
	"kprobe_perf_func":               true,
	"kprobe_int3_handler":            true,
	"aggr_pre_handler":               true,
	"opt_pre_handler":                true,
	"optimized_callback":             true,
	"kretprobe_dispatcher":           true,
	"kretprobe_perf_func":            true,
	"pre_handler_kretprobe":          true,
	"rethook_trampoline_handler":     true,
	"__kretprobe_trampoline":         true,
	"__kretprobe_trampoline_handler": true,
	"kretprobe_trampoline":           true,
	"kretprobe_trampoline_handler":   true,
	"trampoline_handler":             true,
	"uprobe_dispatcher":              true,
	"uretprobe_dispatcher":           true,
}

// dispatchPrefixes are functions on the slow path of system calls. A call takes this path if it is traced, and for some other
// reasons. If such a function calls an entry, the reason was tracing.
var dispatchPrefixes = []string{"syscall_trace_enter", "syscall_exit_work"}

// managementNames are functions that look like entries but are a program's own work, because it opens and closes perf events.
var managementNames = map[string]bool{
	"perf_trace_init":        true,
	"perf_trace_destroy":     true,
	"perf_trace_add":         true,
	"perf_trace_del":         true,
	"perf_trace_event_init":  true,
	"perf_trace_event_reg":   true,
	"perf_trace_event_unreg": true,
	"perf_trace_event_open":  true,
	"perf_trace_event_close": true,
}

// insidePrefixes are functions that run within tracing, between the leaf and an entry. Without an entry, they prove nothing.
// BPF programs also run for the workload, for example in networking, and their time is real.
var insidePrefixes = []string{
	"bpf_prog_",
	"__bpf_prog_",
	"bpf_get_stack",
	"__bpf_get_stack",
	"get_perf_callchain",
	"perf_callchain",
	"perf_prepare_sample",
	"perf_event_",
	"__perf_event_",
	"bpf_perf_event_output",
	"bpf_ringbuf_",
	"bpf_dispatcher_",
	"stack_trace_save",
	"stack_trace_consume_entry",
	"arch_stack_walk",
	"unwind_",
}

// tracingFrames returns how many leaf frames belong to tracing and not to the code. They reach from the leaf to the last entry
// (see entryPrefixes) without a gap. Frames inside tracing can be opaque, because BPF programs and trampolines are created at
// run time, and their symbols are missing or wrong. So a leaf that an entry called counts, whatever its name. A stack that only
// consists of such frames is left unchanged.
//
// fentry, fexit and LSM programs that were loaded after the symbols were read have no known names. Such a program and its
// trampoline stay as two frames named Unknown, because BPF programs that work for the workload look the same.
func tracingFrames(frames []profile.Frame, opaque func(i int) bool) int {
	n := 0
	for i := range frames[:min(len(frames), maxTracing)] {
		switch fn := frames[i].Name; {
		case isEntry(fn), i > 0 && i == n && hasAnyPrefix(fn, dispatchPrefixes):
			n = i + 1
		case i == 0 && len(frames) > 1 && isEntry(frames[1].Name):
		case fn == "" || fn == Unknown || hasAnyPrefix(fn, insidePrefixes) || opaque(i):
		default:
			return n
		}
	}
	if n == len(frames) {
		return 0
	}
	return n
}

func isEntry(fn string) bool {
	return entryNames[fn] || hasAnyPrefix(fn, entryPrefixes) && !managementNames[fn]
}

func hasAnyPrefix(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}
