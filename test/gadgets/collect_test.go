//go:build e2e

package gadgets

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// TestCollectStacks runs without any flag a gadget of Inspektor Gadget that collects no stacks by default.
func TestCollectStacks(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	image, err := igtest.BuildUpstream(t, "trace_open")
	require.NoError(t, err)
	start(t, compileAs(t, "opens", "opens_collect"))
	const variable = "INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_EXPORTERS_OTLP_COLLECT_STACKS"
	for name, tc := range map[string]struct {
		collected bool
		env       []string
		said      string
	}{
		"on":  {true, nil, ""},
		"off": {false, []string{variable + "=off"}, "rows so far have no stack: the gadget collects no stacks without --collect-ustack"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := export(t, options{image: image, seconds: 3, flags: []string{"--comm=opens_collect"}, env: tc.env, said: tc.said,
				until: func(samples []receiver.Sample) bool {
					return len(samples) > 0 && (!tc.collected || igtest.Total(igtest.Through(samples, "open_present")) > 0)
				}})
			require.NoError(t, err)
			r.requireSound(t)
			samples := r.of("opens_collect")
			require.NotEmpty(t, samples)
			t.Logf("%d rows, %d without stack", r.accounts.Read, r.accounts.NoStack)
			const line = "the gadget collects stacks for the exporter, as if you had set --collect-ustack"
			if tc.collected {
				require.Contains(t, string(r.log), line)
				require.Positive(t, igtest.Total(igtest.Through(samples, "open_present")))
				require.Less(t, 10*r.accounts.NoStack, r.accounts.Read)
			} else {
				require.NotContains(t, string(r.log), line)
				require.Equal(t, r.accounts.Read, r.accounts.NoStack, "the setting leaves this to the flags")
				require.Contains(t, string(r.log), tc.said)
			}
		})
	}
}
