package procmap

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkReadFile identifies a program that runs: from a disk, and from an overlay.
func BenchmarkReadFile(b *testing.B) {
	content, err := os.ReadFile("/bin/sleep")
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	lower, merged := filepath.Join(dir, "lower"), filepath.Join(dir, "merged")
	_, _ = os.MkdirAll(lower, 0o755), os.MkdirAll(merged, 0o755)
	if err := os.WriteFile(filepath.Join(lower, "evil"), content, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "other"), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := unix.Mount("none", merged, "overlay", 0, "lowerdir="+lower+":"+filepath.Join(dir, "other")); err != nil {
		b.Skip("only root can mount: ", err)
	}
	b.Cleanup(func() { _ = unix.Unmount(merged, unix.MNT_DETACH) })
	for name, folder := range map[string]string{"disk": lower, "overlay": merged} {
		b.Run(name, func(b *testing.B) {
			cmd := exec.Command(filepath.Join(folder, "evil"), "600")
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			r := bare()
			areas, _, err := r.readMaps(uint32(cmd.Process.Pid), inodeOf(b, filepath.Join(folder, "evil")), 0)
			if err != nil {
				b.Fatal(err)
			}
			f := r.intern(areas[0].key, holder{uint32(cmd.Process.Pid), areas[0].start, areas[0].end, bootTime()})
			b.ReportAllocs()
			for b.Loop() {
				f.known = nil
				r.readFile(context.Background(), f)
				if f.known == nil {
					b.Fatal("it could not be read")
				}
			}
		})
	}
}

func inodeOf(b *testing.B, path string) uint64 {
	b.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		b.Fatal(err)
	}
	return st.Ino
}
