package fieldmap

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// TestRoots covers what is said of stacks that are not whole.
func TestRoots(t *testing.T) {
	id := func(v int32) uint32 { return uint32(v) }
	noUser := map[string]any{"user_stack_raw.symbols": nil, "user_stack_raw.addresses": nil, "user_stack_raw.buildid": nil}
	user := func(symbols string) map[string]any {
		return map[string]any{"kern_stack": nil, "kern_stack_raw": id(-14), "user_stack_raw.addresses": nil, "user_stack_raw.buildid": nil, "user_stack_raw.symbols": symbols}
	}
	without := func(m map[string]any, more map[string]any) map[string]any {
		all := map[string]any{}
		for _, part := range []map[string]any{m, more} {
			for k, v := range part {
				all[k] = v
			}
		}
		return all
	}
	for _, tc := range []struct {
		name   string
		change map[string]any
		frames string
		fate   profile.Fate
	}{
		{"whole", user("main.work; main.main; runtime.main; runtime.goexit.abi0; "), "main.work main.main runtime.main runtime.goexit.abi0", profile.Whole},
		{"a C program's", user("work; main; __libc_start_call_main; __libc_start_main@@GLIBC_2.34; _start; "), "work main __libc_start_call_main __libc_start_main@@GLIBC_2.34 _start", profile.Whole},
		{"a thread's, with all symbols of glibc", user("work; start_thread; __GI___clone3; "), "work start_thread __GI___clone3", profile.Whole},
		{"incomplete", user("memcpy; work; "), "memcpy work [incomplete]", profile.Incomplete},
		{"user stack lost", without(noUser, map[string]any{"user_stack_raw.stack_id": id(-17)}), "do_syscall_64 entry_SYSCALL_64_after_hwframe [lost user stack]", profile.Lost},
		{"both lost", without(noUser, map[string]any{"user_stack_raw.stack_id": id(-17), "kern_stack": nil, "kern_stack_raw": id(-17)}), "[lost user stack]", profile.NoStack},
		{"kernel stack lost", map[string]any{"kern_stack": nil, "kern_stack_raw": id(-17)}, "main.work main.main", profile.Lost},
		{"as deep as the kernel records", without(user(strings.Repeat("f; ", 127)), map[string]any{"user_stack_raw.addresses": strings.Repeat("0x0000000000401000; ", 127)}), strings.Repeat("f ", 127) + "[truncated]", profile.CutOff},
		// As Inspektor Gadget's own profile_cpu does without --collect-ustack.
		{"neither asked for", without(noUser, map[string]any{"kern_stack": nil, "kern_stack_raw": uint32(math.MaxUint32), "user_stack_raw.inode": nil}), "[no stack]", profile.NoStack},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := testOptions()
			s := profileCPU(t, profileCPUMetadata)
			plain, _ := compile(t, s, o).Sample(s.row(with(tc.change)))
			require.NotContains(t, frameNames(plain), "[incomplete]")
			o.Exporter.MarkIncomplete = true
			sm, _ := compile(t, s, o).Sample(s.row(with(tc.change)))
			require.Equal(t, tc.frames, strings.Join(frameNames(sm), " "))
			require.Equal(t, tc.fate, sm.Fate)
		})
	}
}

// TestSamplerKeepsTracing: what a sampler finds of tracing is the workload's cost.
func TestSamplerKeepsTracing(t *testing.T) {
	traced := map[string]any{"kern_stack": "bpf_prog_1234_probe; bpf_trace_run2; __traceiter_sys_enter; do_syscall_64; "}
	s := profileCPU(t, profileCPUMetadata)
	o := testOptions()
	sm, _ := compile(t, s, o).Sample(s.row(with(traced)))
	require.Contains(t, frameNames(sm), "bpf_prog_1234_probe")
	o.Gadget.Config = nil // no sampler: it hangs on what it traces
	sm, _ = compile(t, s, o).Sample(s.row(with(traced)))
	require.Equal(t, "do_syscall_64", sm.Stack[0].Name)
}
