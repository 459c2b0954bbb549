package symbols

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/deaf"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// A file system that hangs must not prevent reads of other files, even after a file on it was opened. Abandoned reads must end
// when the file system responds.
func TestStoreDeafFileSystem(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	content := elftest.Example().Bytes()
	dir := t.TempDir()
	var isDeaf atomic.Bool
	fs := deaf.Mount(t, dir, content, func(string) bool { return isDeaf.Load() })
	f, err := os.Open(filepath.Join(dir, "program"))
	require.NoError(t, err)
	id, err := symtab.Identify(f)
	require.NoError(t, err)
	isDeaf.Store(true)

	s := newStore(t, Options{Reader: parse.Here{}, Limits: elftest.Small, patience: 500 * time.Millisecond})
	var stuck, ended atomic.Int32
	over := make(chan struct{})
	require.Equal(t, symtab.Pending, s.Request(Request{
		ID: id, Open: func() (*os.File, error) { return f, nil },
		Stuck: func() func() { stuck.Add(1); return func() { ended.Add(1); close(over) } },
	}))
	good := onDisk(t, content)
	require.Equal(t, symtab.Pending, s.Request(good))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.True(t, s.Wait(ctx, id, good.ID))
	_, state := s.Lookup(good.ID, 0x1000)
	require.Equal(t, symtab.Named, state)
	_, state = s.Lookup(id, 0x1000)
	require.Equal(t, symtab.Unreadable, state)
	require.Positive(t, fs.Ignored.Load())
	require.EqualValues(t, 1, s.disks.Total())
	require.EqualValues(t, 1, stuck.Load())
	require.Zero(t, ended.Load())
	s.Close()
	fs.Close()
	<-over
	require.EqualValues(t, 1, ended.Load())
}

// Opening a debug file must not poll its file system, because polling a hanging file system blocks the whole Go process.
func TestOpeningDoesNotPoll(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	dir := t.TempDir()
	fs := deaf.New(t, elftest.Example().Bytes(), func(string) bool { return false })
	require.NoError(t, unix.Mount("deaf", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, deaf.Options(fs.Dev)))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	f, _, err := root{fd: fd}.open("program")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Zero(t, fs.Polled.Load())
}
