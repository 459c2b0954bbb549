package otelprofiles

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Clients choose the names of gadgets, so metrics limit their number and length.
func TestGadgetNames(t *testing.T) {
	var g gadgetNames
	for image, want := range map[string]string{
		"profile_cpu": "profile_cpu", "ghcr.io:443/a/trace_open:v1": "trace_open", "localhost/x@sha256:00": "x", "y:dev@sha256:00": "y",
		strings.Repeat("a", 100): strings.Repeat("a", 64), "": "",
	} {
		require.Equal(t, want, g.of(image).Value.AsString(), image)
	}
	for i := range 2 * mostGadgets {
		g.of(fmt.Sprint("gadget", i))
	}
	require.Len(t, g.seen, mostGadgets)
	require.Equal(t, "other", g.of("late").Value.AsString())
	require.Equal(t, "trace_open", g.of("trace_open").Value.AsString(), "what has a name keeps it")
}
