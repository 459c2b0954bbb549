//go:build e2e

package polyglot

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/deaf"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// TestDeafFileSystem runs a program from a file system that never answers the unwinder. The blocked unwinder is detected and
// restarted without that program. It samples programs that start later.
func TestDeafFileSystem(t *testing.T) {
	h := startHostile(t)
	p := buildLoads(t, find(t, "c"))[0]
	content, err := os.ReadFile(p.Binary)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	fs := deaf.Mount(t, dir, content, func(name string) bool { return name == "unwinder" })
	// A shell starts it: this process has to answer, and cannot do so between its own fork and exec.
	program := igtest.StartProgram(t, exec.Command("/bin/sh", "-c", `exec "$0"`, filepath.Join(dir, "evil")))
	t.Cleanup(program.Kill)
	require.Equal(t, "ready\n", program.Lines(1))
	require.True(t, h.run.wait("restarting the unwinder", 4*time.Minute, func() bool {
		return bytes.Contains([]byte(h.run.log.String()), []byte("made no progress"))
	}), "%d requests were ignored", fs.Ignored.Load())
	require.Positive(t, fs.Ignored.Load())
	later, err := buildLoads(t, find(t, "c-fp"))[0].Start(t.Context(), loads.DefaultLimit)
	require.NoError(t, err)
	t.Cleanup(func() { later.Stop() })
	require.True(t, h.run.wait("samples of a program that started later", 3*time.Minute, func() bool { return h.run.counted(later.PID, time.Time{}) > 20 }))
	_, b := h.finish()
	require.EqualValues(t, 1, b.Restarts)
}
