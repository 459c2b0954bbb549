//go:build e2e

package gadgets

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// TestReturnAddresses requires that a signal handler's caller is the function that it returns to. If code without a symbol ends
// with a call, it does not get the name of the function after it.
func TestReturnAddresses(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	start(t, compileInto(t, t.TempDir(), "returns", "-static"))
	// caller returns the caller's frame of a function in a sample, if there is one.
	caller := func(s receiver.Sample, name string) (receiver.Frame, bool) {
		i := slices.IndexFunc(s.Stack, func(f receiver.Frame) bool { return f.Name == name })
		if i < 0 || i+1 == len(s.Stack) {
			return receiver.Frame{}, false
		}
		return s.Stack[i+1], true
	}
	count := func(samples []receiver.Sample) (handlers, unnamed int) {
		for _, s := range of(samples, "returns") {
			if f, ok := caller(s, "handle"); ok && f.Name == "__restore_rt" {
				handlers++
			}
			if f, ok := caller(s, "leave"); ok && f.Name != "" {
				require.NotEqual(t, "behind", f.Name, "%v", s.Stack)
			} else if ok {
				unnamed++
			}
		}
		return handlers, unnamed
	}
	r, err := export(t, options{
		image: igtest.Import(t, "profile_cpu"), seconds: 1, quiet: true, flags: append([]string{"--frequency=199"}, framePointers...),
		until: func(samples []receiver.Sample) bool { h, u := count(samples); return h > 0 && u > 0 },
	})
	require.NoError(t, err, "%s", r.log)
	handlers, unnamed := count(r.samples)
	require.Positive(t, handlers)
	require.Positive(t, unnamed)
}
