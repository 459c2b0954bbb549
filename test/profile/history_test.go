//go:build e2e

package profile

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// delivered matches ig's closing line for the exporter history.
var delivered = regexp.MustCompile(`exporter \\?"history\\?": (\d+) delivered, 0 held.* 0 dropped`)

// TestHistory queries the history of a real run, during the run and afterwards. The history must contain the rows that ig
// reports as delivered.
func TestHistory(t *testing.T) {
	igtest.NeedRoot(t)
	image := igtest.Import(t, "profile_cpu")
	load, _ := start(t, "c-fp")
	dir := filepath.Join(t.TempDir(), "history")
	from := "--from=" + dir
	answer := func(output string) string {
		return run(t, true, "history", from, "--since=1h", "-o", filepath.Join(t.TempDir(), output))
	}

	cmd := igrun.Command(t.Context(), filepath.Join(os.Getenv("E2E_BIN"), "ig"), "run", image, "--auto-mount-filesystems", "--verify-image=false", "--host", "--unwind=frame-pointers", "--frequency=99",
		"--output=none", "--otel-profiles-exporter=history", "--otel-profiles-interval=2s")
	const prefix = "INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_EXPORTERS_HISTORY_"
	cmd.Env = append(os.Environ(), prefix+"PRESET=history", prefix+"PATH="+dir)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	first := load.Shares[0].Function
	require.Eventually(t, func() bool {
		out, err := command(t.Context(), t, "history", "list", from).Output()
		return err == nil && len(regexp.MustCompile(`profile_cpu`).FindAll(out, -1)) > 0
	}, 2*time.Minute, time.Second, "nothing was recorded: %s", &said)
	require.Eventually(t, func() bool {
		out, err := command(t.Context(), t, "history", from, "--since=1m", "-o", filepath.Join(t.TempDir(), "live")).Output()
		return err == nil && self(t, string(out), first) > 0
	}, 2*time.Minute, 2*time.Second, "the function of the program was not recorded")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.NoError(t, cmd.Wait(), said.String())

	rows := delivered.FindStringSubmatch(said.String())
	require.NotNil(t, rows, said.String())
	whole := answer("whole")
	require.Regexp(t, `requests?, `+rows[1]+` rows`, whole)
	require.Positive(t, self(t, whole, first))
	require.Regexp(t, `(?m)^ +[0-9.]+% +[0-9.]+ +\S+$`, whole, "services")
	require.Regexp(t, `: .* to .*, `+rows[1]+` rows, .* in 1 segment\n`, run(t, true, "history", "list", from))
	require.NotContains(t, whole, "note: 0")
}
