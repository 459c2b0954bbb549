package symbols

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Symbolic links must not lead out of a container's root, and only regular files may be opened.
func TestRootOpen(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "root/usr/lib/debug"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("host"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "root/inside"), []byte("container"), 0o600))
	debug := filepath.Join(dir, "root/usr/lib/debug")
	for name, target := range map[string]string{
		"up": "../../../../secret", "absolute": filepath.Join(dir, "secret"), "inside": "/inside", "loop": "loop", "magic": "/proc/self/exe",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(debug, name)))
	}
	require.NoError(t, unix.Mkfifo(filepath.Join(debug, "fifo"), 0o600))
	fd, err := unix.Open(filepath.Join(dir, "root"), unix.O_PATH|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	for _, host := range []bool{false, true} {
		r := root{fd, host}
		for _, name := range []string{"up", "absolute", "loop", "magic", "fifo", "missing", ""} {
			_, _, err := r.open("/usr/lib/debug/" + name)
			require.Error(t, err, name)
		}
		f, size, err := r.open("/usr/lib/debug/inside")
		require.NoError(t, err)
		require.EqualValues(t, len("container"), size)
		f.Close()
	}
	// The finder must not search a container's other mounts.
	self, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	defer unix.Close(self)
	_, _, err = root{self, false}.open("/proc/version")
	require.ErrorIs(t, err, unix.EXDEV)
}

// The finder must not search a root if the file is on another mount.
func TestOpenRoots(t *testing.T) {
	s := &Store{options: Options{HostRoot: "/nowhere"}}
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	for dir, want := range map[string]int{filepath.Dir(path): 1, "/proc": 0} {
		roots := s.openRoots(&Request{Root: func() (*os.File, error) { return os.Open(dir) }}, f)
		require.Len(t, roots, want, dir)
		(&finder{roots: roots}).close()
	}
}
