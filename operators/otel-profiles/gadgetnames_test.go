package otelprofiles

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/bounded"
)

// Clients choose the names of gadgets, so metrics limit their number and length.
func TestGadgetNames(t *testing.T) {
	g := gadgetNames{seen: bounded.New[string](1, mostGadgets)}
	values := map[string]bool{}
	for image, want := range map[string]string{
		"profile_cpu": "profile_cpu", "ghcr.io:443/a/trace_open:v1": "trace_open", "localhost/x@sha256:00": "x", "y:dev@sha256:00": "y",
		strings.Repeat("a", 100): strings.Repeat("a", 64), "": "",
	} {
		require.Equal(t, want, g.of(image).Value.AsString(), image)
		values[want] = true
	}
	for i := range 2 * mostGadgets {
		values[g.of(fmt.Sprint("gadget", i)).Value.AsString()] = true
	}
	require.Len(t, values, mostGadgets+1, "and other")
	require.Equal(t, "other", g.of("late").Value.AsString())
	require.Equal(t, "trace_open", g.of("trace_open").Value.AsString(), "what has a name keeps it")
}
