//go:build e2e

package e2e

import (
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// TestCheck runs ig as a script does. On request, the exit code says whether a row was delivered.
func TestCheck(t *testing.T) {
	igtest.NeedRoot(t)
	gadget := igtest.Import(t, "profile_cpu")
	rcv, err := receiver.Start(receiver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NotEmpty(t, rcv.Samples())
		require.NoError(t, rcv.Close())
	})
	idle := exec.Command("sleep", "600")
	require.NoError(t, idle.Start())
	t.Cleanup(func() {
		_ = idle.Process.Kill() // the process only sleeps
		_ = idle.Wait()
	})
	// Without this program, the machine might be idle, with nothing to sample.
	start(t, compileC(t, "testdata/burn.c"))
	nobodyListens := "http://127.0.0.1:1"

	for _, tt := range []struct {
		name, endpoint string
		flags          []string
		code           int
		says           string
	}{
		{"delivered", "http://" + rcv.Addr(), []string{"--otel-profiles-check=true"}, 0, ""},
		{"no row", "http://" + rcv.Addr(), []string{"--otel-profiles-check=true", "--pid", strconv.Itoa(idle.Process.Pid)}, 1, "nothing was exported, because the gadget had no rows"},
		{"nobody there", nobodyListens, []string{"--otel-profiles-check=true"}, 1, "rows, none was delivered"},
		{"not asked for", nobodyListens, nil, 0, "rows, none was delivered"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"run", gadget}, igrun.GadgetFlags()...)
			args = append(args, "--timeout", "8", "--otel-profiles-exporter=otlp", "--otel-profiles-endpoint="+tt.endpoint, "--output", "json")
			cmd := igCommand(t.Context(), t, append(args, tt.flags...)...)
			said, _ := cmd.CombinedOutput() // the exit code is checked below
			require.NotNil(t, cmd.ProcessState)
			require.Equal(t, tt.code, cmd.ProcessState.ExitCode(), "%s", withoutNoise(said))
			require.Contains(t, string(said), tt.says)
		})
	}
}
