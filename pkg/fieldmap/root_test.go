package fieldmap

import (
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// TestRootOfPartialStack checks that an incomplete stack collected with frame pointers gets a frame when the unwinder failed,
// whatever the setting.
func TestRootOfPartialStack(t *testing.T) {
	fields := stackFields{{user: &stack.User{}}, {}}
	for last, want := range map[string][]string{"work": {"clock_nanosleep", "work", "[incomplete]"}, "_start": {"clock_nanosleep", "_start"}} {
		frames := []profile.Frame{{Name: "clock_nanosleep"}, {Name: last}}
		got, fate := fields.root(frames, []int{2, 2}, []stack.Outcome{stack.OK, stack.Partial}, false)
		var names []string
		for _, f := range got {
			names = append(names, f.Name)
		}
		require.Equal(t, want, names)
		require.Equal(t, last == "work", fate == profile.Incomplete)
	}
}

// TestRoots checks the frame at the root of incomplete stacks.
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
		{"as deep as the kernel records", without(user(strings.Repeat("f; ", 127)), map[string]any{"user_stack_raw.addresses": strings.Repeat("0x0000000000401000; ", 127)}), strings.Repeat("f ", 127) + "[truncated]", profile.Truncated},
		// Inspektor Gadget's own profile_cpu does this without --collect-ustack.
		{"neither asked for", without(noUser, map[string]any{"kern_stack": nil, "kern_stack_raw": uint32(math.MaxUint32), "user_stack_raw.inode": nil}), "[no stack]", profile.NoStack},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := testOptions()
			s := profileCPU(t, profileCPUMetadata)
			plain := compile(t, s, o).Sample(s.row(with(tc.change)))
			require.NotContains(t, frameNames(plain), "[incomplete]")
			o.Exporter.MarkIncomplete = true
			sm := compile(t, s, o).Sample(s.row(with(tc.change)))
			require.Equal(t, tc.frames, strings.Join(frameNames(sm), " "))
			require.Equal(t, tc.fate, sm.Fate)
		})
	}
}

// TestAbsences checks the reasons why rows have no stack.
func TestAbsences(t *testing.T) {
	id := func(v int32) uint32 { return uint32(v) }
	noText := map[string]any{"kern_stack": nil, "user_stack_raw.symbols": nil, "user_stack_raw.addresses": nil, "user_stack_raw.buildid": nil}
	for name, tc := range map[string]struct {
		kernel, user uint32
		inode        any
		want         []stack.Absence
	}{
		"not collected":            {id(-1), 0, nil, []stack.Absence{stack.NotCollected, stack.NotCollected}},
		"no room":                  {id(-17), id(-12), uint64(7), []stack.Absence{stack.NoRoom, stack.NoRoom}},
		"gone":                     {id(-14), 5, uint64(7), []stack.Absence{stack.NoneThere, stack.Gone}},
		"a thread of the kernel's": {5, id(-14), uint64(7), []stack.Absence{stack.Gone, stack.NoneThere}},
		"any other error":          {id(-22), id(-1), uint64(7), []stack.Absence{stack.Refused, stack.NotCollected}},
	} {
		t.Run(name, func(t *testing.T) {
			s := profileCPU(t, profileCPUMetadata)
			p := compile(t, s, testOptions())
			row := with(noText)
			row["kern_stack_raw"], row["user_stack_raw.stack_id"], row["user_stack_raw.inode"] = tc.kernel, tc.user, tc.inode
			maps.DeleteFunc(row, func(_ string, v any) bool { return v == nil })
			sm := p.Sample(s.row(row))
			require.Equal(t, profile.NoStack, sm.Fate)
			var want [stack.NumAbsences]uint64
			for _, why := range tc.want {
				want[why]++
			}
			require.Equal(t, want, p.Stats().Absences)
			p.Sample(s.row(podRow()))
			require.Equal(t, want, p.Stats().Absences, "rows with a stack say nothing")
		})
	}
}

// TestSamplerKeepsTracing checks that a sampler keeps tracing frames, because the workload spends this time.
func TestSamplerKeepsTracing(t *testing.T) {
	traced := map[string]any{"kern_stack": "bpf_prog_1234_probe; bpf_trace_run2; __traceiter_sys_enter; do_syscall_64; "}
	s := profileCPU(t, profileCPUMetadata)
	o := testOptions()
	sm := compile(t, s, o).Sample(s.row(with(traced)))
	require.Contains(t, frameNames(sm), "bpf_prog_1234_probe")
	o.Gadget.Config = nil // not a sampler: its program is attached to the traced function
	sm = compile(t, s, o).Sample(s.row(with(traced)))
	require.Equal(t, "do_syscall_64", sm.Stack[0].Name)
}
