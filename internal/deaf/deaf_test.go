package deaf

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// While a file is open on a file system that does not answer this process, programs can start and the file can be closed. Only a
// read blocks.
func TestStartAndClose(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	dir := t.TempDir()
	var isDeaf atomic.Bool
	fs := Mount(t, dir, []byte("content"), func(string) bool { return isDeaf.Load() })
	f, err := os.Open(filepath.Join(dir, "program"))
	require.NoError(t, err)
	isDeaf.Store(true)
	for range 20 {
		require.NoError(t, exec.CommandContext(t.Context(), "true").Run())
	}
	require.NoError(t, f.Close())
	require.Zero(t, fs.Ignored.Load())

	read := make(chan error)
	go func() {
		_, err := os.ReadFile(filepath.Join(dir, "program"))
		read <- err
	}()
	require.Eventually(t, func() bool { return fs.Ignored.Load() > 0 }, time.Minute, time.Millisecond)
	fs.Close()
	require.ErrorIs(t, <-read, unix.ECONNABORTED)
}
