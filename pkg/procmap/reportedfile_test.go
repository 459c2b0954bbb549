package procmap

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// findFile calls Resolver.File until the result is final.
func findFile(t *testing.T, r *Resolver, told ReportedFile, mapped ...Mapping) *File {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		changed := r.Changed()
		f, pending := r.File(told, mapped...)
		if !pending {
			return f
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatal("it is pending for ever")
		}
	}
}

// TestFile checks that another program's report is enough to find a file, and that a wrong report is refused.
func TestFile(t *testing.T) {
	path, _, p := nap(t)
	own := areasOf(t, p.PID)[0]
	told := ReportedFile{Device: unix.Mkdev(own.key.dev.major, own.key.dev.minor), Inode: own.key.inode, Path: own.key.path, Version: [16]byte{1}}
	exact := Mapping{PID: p.PID, Start: own.start, End: own.end}

	for name, mapped := range map[string][]Mapping{
		"where it is mapped": {exact},
		"by its path":        {{PID: p.PID}},
		"one has ended":      {{PID: 1 << 30}, exact},
		"none is told":       {{PID: 1 << 30}},
	} {
		t.Run(name, func(t *testing.T) {
			f := findFile(t, newResolver(t, Options{Unwatched: true}), told, mapped...)
			require.NotNil(t, f)
			require.Equal(t, path, f.Path)
			require.Equal(t, own.key.inode, f.ID.Inode)
			opened, err := f.Open()
			require.NoError(t, err)
			require.NoError(t, opened.Close())
		})
	}
	for name, wrong := range map[string]ReportedFile{
		"inode":        {Device: told.Device, Inode: told.Inode + 1, Path: path},
		"no device":    {Inode: told.Inode, Path: path},
		"no path":      {Device: told.Device, Inode: told.Inode},
		"another file": {Device: told.Device, Inode: told.Inode, Path: "/bin/sleep"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Nil(t, findFile(t, newResolver(t, Options{Unwatched: true}), wrong, Mapping{PID: uint32(os.Getpid())}))
		})
	}
	r := newResolver(t, Options{Unwatched: true})
	require.Nil(t, findFile(t, r, ReportedFile{Device: told.Device, Inode: told.Inode, Path: told.Path}), "nobody has mapped it")

	// Root must return the root of a process that had mapped the file, and not of a later process with the same PID.
	f := findFile(t, r, told, exact)
	root, err := f.Root()
	require.NoError(t, err)
	require.NoError(t, root.Close())
	late := findFile(t, newResolver(t, Options{Unwatched: true}), told, Mapping{PID: p.PID, Seen: 1, Start: own.start, End: own.end})
	require.NotNil(t, late)
	_, err = late.Root()
	require.ErrorContains(t, err, "have exited")

	// After a write in place, the file has another version.
	now := time.Now().Add(time.Hour)
	require.NoError(t, os.Chtimes(path, now, now))
	again := told
	again.Version = [16]byte{2}
	require.NotEqual(t, f.ID, findFile(t, r, again, exact).ID)
	require.Equal(t, f.ID, findFile(t, r, told, exact).ID)
}

// TestFileIsTriedAgain checks that a file that could not be read is tried again later.
func TestFileIsTriedAgain(t *testing.T) {
	r := bare()
	told, mapped := ReportedFile{Device: 8<<8 + 1, Inode: 5, Path: "/opt/app"}, Mapping{PID: 7}
	_, pending := r.File(told, mapped)
	require.True(t, pending)
	f := <-r.toRead
	f.queued, f.failed, f.checked = false, true, procfs.SinceBoot()
	_, pending = r.File(told, mapped)
	require.False(t, pending)
	require.Empty(t, r.toRead)
	f.checked -= retryFile
	_, pending = r.File(told, mapped)
	require.True(t, pending)
	require.Same(t, f, <-r.toRead)
}

// TestFileAvoided checks that a file is not opened by its mapping if its device might not answer, whatever the report says.
func TestFileAvoided(t *testing.T) {
	_, p := start(t, "sleep", "600")
	own := areasOf(t, p.PID)[0]
	key := newFileKey(0, 0, own.key.inode, "/elsewhere")
	key.stat = unix.Mkdev(own.key.dev.major, own.key.dev.minor)
	reported := key
	dir, err := os.Open(fmt.Sprintf("/proc/%d", p.PID))
	require.NoError(t, err)
	defer dir.Close()
	h := holder{pid: p.PID}
	require.NoError(t, key.fillFromMaps(procfs.Dir(dir.Fd()), &h))
	require.Equal(t, own.key.dev, key.dev, "as the process has it")
	require.Equal(t, own.key.path, key.path)
	require.Equal(t, []uint64{own.start, own.end}, []uint64{h.start, h.end})
	r := bare()
	f, _, err := r.open(&reported, []holder{{pid: p.PID}}, new(opening))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	r.avoid[own.key.dev] = verdict{avoid: true, until: time.Now().Add(time.Hour)}
	_, _, err = r.open(&reported, []holder{{pid: p.PID}}, new(opening))
	require.ErrorIs(t, err, errAvoided)
	key.dev = device{}
	key.stat++
	require.ErrorIs(t, key.fillFromMaps(procfs.Dir(dir.Fd()), &h), errOther)
}
