//go:build e2e

package gadgets

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// TestInspektorGadgetsWhole runs Inspektor Gadget's profile_cpu unchanged, with its flags for whole stacks. Text and export
// must contain the functions of Python, and of C without frame pointers, from the innermost to the program's entry.
func TestInspektorGadgetsWhole(t *testing.T) {
	igtest.NeedRoot(t)
	image, err := igtest.BuildUpstream(t, "profile_cpu")
	require.NoError(t, err)
	dir := t.TempDir()
	whole := map[string]string{"work-c": "burn; main; __libc_start_call_main; ", "work-python": "; work; "}
	for _, w := range workers {
		if whole[w.comm] != "" {
			program := filepath.Join(dir, w.comm)
			startLoad(t, program, w.build(t, program)...)
		}
	}
	has := func(s receiver.Sample, text string) bool {
		var names string
		for _, f := range s.Stack {
			names += f.Name + "; "
		}
		return strings.Contains(names, text)
	}
	enough := func(samples []receiver.Sample) bool {
		for comm, text := range whole {
			var n int64
			for _, s := range of(samples, comm) {
				if has(s, text) {
					n += s.Total()
				}
			}
			if n < 100 {
				return false
			}
		}
		return true
	}
	r, err := export(t, options{image: image, until: enough, flags: []string{"--collect-otel-stack", "--symbolizers=otel-ebpf-profiler"}})
	require.NoError(t, err)
	require.Empty(t, r.findings)
	require.Contains(t, string(r.log), "otel-stacks: the gadget collects stacks for --collect-otel-stack, as if you had set --collect-ustack")
	require.Regexp(t, `otel-stacks: \d+ rows have whole stacks`, string(r.log))
	for comm, text := range whole {
		var all, named float64
		for _, s := range r.of(comm) {
			all += float64(s.Total())
			if !has(s, text) && !has(s, "; main; __libc_start_call_main; ") { // the rest of C's time
				continue
			}
			named += float64(s.Total())
			for _, f := range s.Stack {
				if comm == "work-python" && f.Name == "work" {
					require.Equal(t, "cpython", f.Type)
					require.Equal(t, "work.py", filepath.Base(f.File))
					require.Positive(t, f.Line)
				}
			}
		}
		rows := 0
		for _, row := range r.rows {
			if strings.Contains(symbolsOf(row), text) {
				rows++
			}
		}
		t.Logf("%s: %.0f samples, %.1f %% whole and named; %d rows of text", comm, all, 100*named/all, rows)
		// At first, the unwinder possibly does not know the process. On a busy machine, this takes seconds.
		require.GreaterOrEqual(t, named, 0.75*all, comm)
		require.Positive(t, rows, comm)
	}
}

// symbolsOf is the text of a row's user stack.
func symbolsOf(row map[string]any) string {
	stack, _ := row["user_stack_raw"].(map[string]any)
	text, _ := stack["symbols"].(string)
	return text
}
