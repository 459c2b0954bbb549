package procmap

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// TestSubvolumes checks files on two btrfs subvolumes. They have the same device in /proc/PID/maps, the same inode number, and
// the same path in two containers. Each process must get its own file.
func TestSubvolumes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	dir := t.TempDir()
	run := func(name string, args ...string) {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Skipf("no btrfs here (Debian package btrfs-progs, a loop device, a kernel with btrfs): %s: %v: %s", name, err, out)
		}
	}
	image, volume := filepath.Join(dir, "image"), filepath.Join(dir, "volume")
	require.NoError(t, os.Mkdir(volume, 0o755))
	run("truncate", "-s", "300M", image)
	run("mkfs.btrfs", "-q", image)
	run("mount", "-o", "loop", image, volume)
	t.Cleanup(func() { require.NoError(t, unix.Unmount(volume, unix.MNT_DETACH)) })

	type program struct {
		process Process
		device  uint64
		area    area
		info    buildid.Info
	}
	begin := func(subvolume, from string, args ...string) (p program) {
		t.Helper()
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		p.info, err = parse.ReadInfo(t.Context(), bytes.NewReader(content), int64(len(content)))
		require.NoError(t, err)
		run("btrfs", "subvolume", "create", filepath.Join(volume, subvolume))
		require.NoError(t, os.WriteFile(filepath.Join(volume, subvolume, "app"), content, 0o755))
		var st unix.Stat_t
		require.NoError(t, unix.Stat(filepath.Join(volume, subvolume, "app"), &st))
		// Each process sees its subvolume at the same path.
		cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", `mount --bind "$0/$1" "$0" && exe=$0/app && shift && exec "$exe" "$@"`, volume, subvolume}, args...)...)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		p.device = uint64(st.Dev) //nolint:unconvert // types differ by architecture
		p.process = running(t, uint32(cmd.Process.Pid), "app")
		p.process.Space = p.process.PID
		p.area = areasOf(t, p.process.PID)[0]
		return p
	}
	n := 0
	eachWay(t, func(t *testing.T, r *Resolver) {
		// These processes start after the resolver, so the kernel also reports them.
		first := begin(fmt.Sprint("first", n), "/bin/sleep", "600")
		second := begin(fmt.Sprint("second", n), "/usr/bin/tail", "-f", "/dev/null")
		n++
		require.Equal(t, first.area.key, second.area.key, "in /proc/PID/maps they are one file")
		for _, p := range []program{first, second, first} {
			place := known(t, r, p.process, procfs.SinceBoot(), p.area.start+8)[0]
			require.Equal(t, Known, place.State)
			require.Equal(t, p.info, place.File.Info)
			opened, err := place.File.Open()
			require.NoError(t, err)
			id, err := symtab.Identify(opened)
			require.NoError(t, err)
			require.NoError(t, opened.Close())
			require.Equal(t, place.File.ID, id)
		}

		// When another program reports the files, each is found at its own mapping.
		told := func(p program) ReportedFile {
			return ReportedFile{Device: p.device, Inode: p.area.key.inode, Path: p.area.key.path, Version: [16]byte{byte(p.device)}}
		}
		in := func(p program) Mapping {
			return Mapping{PID: p.process.PID, Start: p.area.start, End: p.area.end}
		}
		require.Nil(t, findFile(t, newResolver(t, Options{Unwatched: true}), told(first), in(second)))
		for _, p := range []program{first, second} {
			require.Equal(t, p.info, findFile(t, r, told(p), in(second), in(first)).Info)
		}
	})
}
