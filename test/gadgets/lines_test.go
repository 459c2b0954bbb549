//go:build e2e

package gadgets

import (
	"path"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// TestSourceLines requires that, with names.source_lines, an inlined function has its own frame, with file and line, before the
// function that it was inlined into. The settings of names apply to stacks of the kernel and of the unwinder.
func TestSourceLines(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	start(t, compileInto(t, t.TempDir(), "inlined", "-g", "-O2"))
	lines := func(samples []receiver.Sample) bool {
		for _, s := range of(samples, "inlined") {
			if len(s.Stack) > 2 && s.Stack[0].Name == "mix" && s.Stack[1].Name == "outer" {
				return true
			}
		}
		return false
	}
	for _, unwind := range []string{"whole", "frame-pointers"} {
		t.Run(unwind, func(t *testing.T) {
			t.Parallel()
			r, err := export(t, options{image: igtest.Import(t, "profile_cpu"), flags: []string{"--unwind=" + unwind}, seconds: 1, quiet: true, until: lines,
				env: []string{"INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_NAMES_SOURCE_LINES=true"}})
			require.NoError(t, err, "%s", r.log)
			inlined := false
			for _, s := range r.of("inlined") {
				for i, f := range s.Stack[:len(s.Stack)-1] {
					if f.Name != "mix" {
						continue
					}
					inlined = true
					require.Equal(t, "outer", s.Stack[i+1].Name, "%v", s.Stack)
					for _, f := range s.Stack[i : i+2] {
						require.Equal(t, "inlined.c", path.Base(f.File), "%v", s.Stack)
						require.Positive(t, f.Line, "%v", s.Stack)
						require.Equal(t, "inlined", path.Base(f.Mapping), "%v", s.Stack)
					}
				}
			}
			require.True(t, inlined, "no stack of mix: %s", r.log)
		})
	}
}
