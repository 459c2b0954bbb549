//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestCheck runs ig as a script does. On request, the exit code says whether a row was delivered.
func TestCheck(t *testing.T) {
	igtest.NeedRoot(t)
	gadget := igtest.Import(t, "profile_cpu")
	// Without this program, the machine might be idle, with nothing to sample.
	start(t, compileC(t, "testdata/burn.c"))
	const nobodyListens = "127.0.0.1:1"
	for _, tt := range []struct {
		name, endpoint string
		flags          []string
		code           int
	}{
		{"delivered", igtest.Receiver(t).Addr(), []string{"--otel-profiles-check=true"}, 0},
		{"nobody there", nobodyListens, []string{"--otel-profiles-check=true"}, 1},
		{"not asked for", nobodyListens, nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := igtest.Command(t, gadget, append(tt.flags, "--timeout=8", "--otel-profiles-exporter=otlp", "--otel-profiles-endpoint=http://"+tt.endpoint, "--output=json")...)
			said, _ := cmd.CombinedOutput() // the exit code is checked below
			require.NotNil(t, cmd.ProcessState)
			require.Equal(t, tt.code, cmd.ProcessState.ExitCode(), "%s", igtest.WithoutNoise(said))
			require.Equal(t, tt.endpoint == nobodyListens, strings.Contains(string(said), "rows, none was delivered"))
		})
	}
}
