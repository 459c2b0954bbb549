package procmap

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/deaf"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// toMount skips a test if it is not allowed to mount.
func toMount(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
}

// sleeper returns the content of a program that sleeps.
func sleeper(t *testing.T) []byte {
	t.Helper()
	path, err := exec.LookPath("sleep")
	require.NoError(t, err)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return content
}

// deafTo returns a function for deaf.New. The file system stops answering this process once deaf is true.
func deafTo(t *testing.T, deaf *atomic.Bool) func(string) bool {
	t.Helper()
	comm, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	own := strings.TrimSpace(string(comm))
	return func(name string) bool { return deaf.Load() && name == own }
}

// inMounts runs a shell script in its own mount namespace until the end of the test. The script must exec the program evil,
// whose process inMounts returns. fd 3 is the /dev/fuse of fs. fs can be nil.
func inMounts(t *testing.T, fs *deaf.FS, script string) Process {
	t.Helper()
	cmd := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-ec", script)
	cmd.Dir, cmd.Stderr = t.TempDir(), os.Stderr
	if fs != nil {
		dev, err := unix.FcntlInt(uintptr(fs.Dev), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		fuse := os.NewFile(uintptr(dev), "fuse")
		defer fuse.Close()
		cmd.ExtraFiles = []*os.File{fuse}
	}
	in, err := cmd.StdinPipe() // closed at the end
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return running(t, uint32(cmd.Process.Pid), "evil")
}

// onOverlay returns a script that runs the commands in before, and then a program from an overlay. lower is the overlay's lower
// folder. The commands in mount can mount it.
func onOverlay(lower, mount, before string) string {
	return fmt.Sprintf("mkdir lower upper merged; %s; mount -t tmpfs none upper; mkdir upper/u upper/w; "+
		"mount -t overlay -o lowerdir=%s,upperdir=upper/u,workdir=upper/w none merged; %s; exec 3<&-; echo ready; exec merged/evil 600",
		mount, lower, before)
}

// TestOverlayOverDeafFileSystem checks that a program on an overlay over a deaf file system does not delay other programs.
func TestOverlayOverDeafFileSystem(t *testing.T) {
	toMount(t)
	mount := "mount -i -t fuse -o " + deaf.Options(3) + " deaf lower"
	for name, script := range map[string]string{
		"that its mounts show": onOverlay(`"$PWD/lower"`, mount, ":"),
		"by a relative path":   onOverlay("lower", mount, ":"),
		"that is hidden":       onOverlay(`"$PWD/lower"`, mount, "umount -l lower"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each case waits for the time limit of its files
			var isDeaf atomic.Bool
			fs := deaf.New(t, sleeper(t), deafTo(t, &isDeaf))
			p := inMounts(t, fs, script)
			addr := codeOf(t, p, "evil")
			isDeaf.Store(true)
			r := newResolver(t, Options{Unwatched: true})
			r.disks = patience.New(500*time.Millisecond, maxStuck) // unused so far
			_, pending := r.Locate(nil, p, procfs.SinceBoot(), []uint64{addr})
			require.True(t, pending)
			_, other := start(t, "sleep", "600")
			for _, place := range known(t, r, other, procfs.SinceBoot(), codeOf(t, other, "sleep")) {
				require.Equal(t, Known, place.State)
			}
			require.Equal(t, Unreadable, known(t, r, p, procfs.SinceBoot(), addr)[0].State)
			if name == "that its mounts show" {
				require.Zero(t, fs.Ignored.Load(), "it is not asked")
				require.Zero(t, r.disks.Total()+r.readings.Total())
			} else {
				require.EqualValues(t, 1, r.disks.Total()+r.readings.Total())
			}
			r.Close()
			fs.Close() // waiting calls return
		})
	}
}

// TestDeviceNumberUsedAgain checks that a reused device number does not make a deaf file system trusted.
func TestDeviceNumberUsedAgain(t *testing.T) {
	toMount(t)
	dir := filepath.Join(t.TempDir(), "mnt")
	require.NoError(t, os.Mkdir(dir, 0o700))
	r := newResolver(t, Options{Unwatched: true})
	content := sleeper(t)
	evil := filepath.Join(dir, "evil")
	devOf := func() uint64 {
		var st unix.Stat_t
		require.NoError(t, unix.Stat(dir, &st))
		return st.Dev
	}
	for range 20 { // another file system may have taken the number
		require.NoError(t, unix.Mount("none", dir, "tmpfs", 0, ""))
		before := devOf()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "first"), nil, 0o700)) // so evil gets another inode than on fs
		require.NoError(t, os.WriteFile(evil, content, 0o700))
		cmd, p := start(t, evil, "600")
		require.Equal(t, Known, known(t, r, p, procfs.SinceBoot(), codeOf(t, p, "evil"))[0].State)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
		r.mu.Lock()
		r.release(len(r.heldFiles))
		r.mu.Unlock()

		var isDeaf atomic.Bool
		fs := deaf.Mount(t, dir, content, deafTo(t, &isDeaf))
		if devOf() != before {
			require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
			continue
		}
		// This process must serve the file system, which is impossible between its fork and exec. So a shell starts the program.
		_, p = start(t, "sh", "-c", `exec "$0" 600`, evil)
		p = running(t, p.PID, "evil")
		addr := codeOf(t, p, "evil")
		isDeaf.Store(true)
		require.Equal(t, Unreadable, known(t, r, p, procfs.SinceBoot(), addr)[0].State)
		require.Zero(t, fs.Ignored.Load())
		return
	}
	t.Fatal("the number was never used again")
}

// running waits until a process runs the program with this name.
func running(t *testing.T, pid uint32, name string) Process {
	t.Helper()
	exe := fmt.Sprintf("/proc/%d/exe", pid)
	require.Eventually(t, func() bool {
		path, err := os.Readlink(exe)
		return err == nil && filepath.Base(path) == name
	}, 20*time.Second, time.Millisecond)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(exe, &st))
	return Process{PID: pid, ExeInode: st.Ino, Space: 7}
}

// codeOf returns a process's code address in a file.
func codeOf(t *testing.T, p Process, name string) uint64 {
	t.Helper()
	for _, a := range areasOf(t, p.PID) {
		if filepath.Base(a.key.path) == name {
			return a.start
		}
	}
	t.Fatalf("%s is not mapped", name)
	return 0
}

// TestOpeningDoesNotPoll checks that opening a file does not ask its file system for poll support. While Go asks, no other
// goroutine can run, and the file system might not answer.
func TestOpeningDoesNotPoll(t *testing.T) {
	toMount(t)
	dir := t.TempDir()
	fs := deaf.New(t, sleeper(t), func(string) bool { return false })
	require.NoError(t, unix.Mount("deaf", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, deaf.Options(fs.Dev)))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path, err := unix.Open(filepath.Join(dir, "program"), unix.O_PATH|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(path, &st))
	f, _, err := procfs.Reopen(path, "", (&fileKey{inode: st.Ino}).is)
	require.NoError(t, err)
	again := (&file{open: f}).again()
	require.NotNil(t, again)
	require.NoError(t, again.Close())
	require.NoError(t, f.Close())
	require.Zero(t, fs.Polled.Load())
}
