//go:build e2e

package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPage runs the page's commands for programs without a package. It downloads some of a release's files.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/quickstart/host.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)\n## Programs alone\n.*?```sh tested\n(.*?)```").FindSubmatch(page)
	require.NotNil(t, block, "the page has no such block")
	dir := t.TempDir()
	archive := only(t, "ig-otel-profiles_", "_linux_amd64.tar.gz")
	for _, name := range []string{"SHA256SUMS", archive, "profile_cpu.tar"} {
		path, err := filepath.Abs(attached(name))
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	run := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", string(block[1]))
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run()
	require.NoError(t, err, out)
	require.Contains(t, out, archive+": OK")
	require.Contains(t, out, "profile_cpu")
	unpacked, err := filepath.Glob(filepath.Join(dir, "ig-otel-profiles_*", "ig"))
	require.NoError(t, err)
	require.Len(t, unpacked, 1)

	require.NoError(t, os.Remove(filepath.Join(dir, archive)))
	require.NoError(t, os.WriteFile(filepath.Join(dir, archive), []byte("another"), 0o600))
	out, err = run()
	require.Error(t, err, "an archive with another checksum")
	require.Contains(t, out, archive+": FAILED")
}
