package procmap

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

func TestParseMaps(t *testing.T) {
	areas := parseMaps([]byte(`00400000-00401000 r--p 00000000 fd:01 12                       /usr/bin/app
00401000-00402000 r-xp 00001000 fd:01 12                       /usr/bin/app
7f0000000000-7f0000001000 r-xp 00000000 00:2a 13               /a file with  spaces (deleted)
7f0000001000-7f0000002000 rwxp 00000000 00:00 0
7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0                [vdso]
7f0000003000-7f0000004000 r-xp 00000000 00:01 99               memfd:x
nonsense
1-
7f0000006000-7f0000005000 r-xp 00000000 00:2a 13               /backwards
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0        [vsyscall]
`))
	require.Equal(t, []area{
		{0x401000, 0x402000, 0x1000, fileKey{dev: device{0xfd, 1}, inode: 12, path: "/usr/bin/app"}},
		{0x7f0000000000, 0x7f0000001000, 0, fileKey{dev: device{0, 0x2a}, inode: 13, path: "/a file with  spaces"}},
		{0x7f0000001000, 0x7f0000002000, 0, fileKey{}},
		{0x7ffc00000000, 0x7ffc00002000, 0, fileKey{path: "[vdso]"}},
		{0x7f0000003000, 0x7f0000004000, 0, fileKey{dev: device{0, 1}, inode: 99, path: "memfd:x"}},
	}, areas)
	line := "00401000-00402000 r-xp 00001000 fd:01 12 /usr/bin/app\n"
	require.Len(t, parseMaps([]byte(strings.Repeat(line, maxRanges+1))), maxRanges)
}

// TestAvoided checks that files that a process or a network serves are not opened.
func TestAvoided(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mountinfo"), []byte(
		"20 1 98:1 / / rw - ext4 /dev/root rw\n"+
			"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"+
			"37 35 0:52 / /mnt2/my\\040host rw - fuse.sshfs host: rw\n38 35 0:300 / /mnt4 rw - nfs4 host: rw\nnonsense\n"), 0o600))
	open, err := unix.Open(dir, unix.O_PATH, 0)
	require.NoError(t, err)
	fd := procfs.Dir(open)
	defer fd.Close()
	r := bare()
	require.True(t, r.avoided(fd, device{0, 52}))
	require.True(t, r.avoided(fd, device{0, 300}))
	require.False(t, r.avoided(fd, device{98, 1}))
	require.False(t, r.avoided(fd, device{98, 77}))
	mounts := readMounts(fd)
	require.Equal(t, "/", findMount(mounts, "/mnt").point)
	require.Equal(t, "/", findMount(mounts, "/mnt22/x").point)
	require.Equal(t, "/mnt2", findMount(mounts, "/mnt2/x").point)
	require.Equal(t, "/mnt2/my host", findMount(mounts, "/mnt2/my host/bin").point)
	_, err = r.openBelow(fd, open, mounts, "/mnt4/bin", new(opening))
	require.ErrorIs(t, err, errAvoided)
}

func TestParseStatus(t *testing.T) {
	uid, number, ok := parseStatus([]byte("Name:\tx\nUid:\t1\t2\t3\t4\nNSpid:\t700\t7\n"))
	require.True(t, ok)
	require.EqualValues(t, 2, uid)
	require.Equal(t, "7", number)
	for _, text := range []string{"", "Uid:\t1\t2\n", "Uid: a b\nNSpid: 1\n", "Uid: 1 2\nNSpid: ../x\n"} {
		_, _, ok := parseStatus([]byte(text))
		require.False(t, ok, text)
	}
}

// TestPerfMap checks that a process's own perf map is used for generated code.
func TestPerfMap(t *testing.T) {
	code, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(code)) })
	addr := uint64(reflect.ValueOf(code).Pointer()) + 8
	path := fmt.Sprintf("/tmp/perf-%d.map", os.Getpid())
	t.Cleanup(func() { _ = os.Remove(path) })
	eachWay(t, func(t *testing.T, r *Resolver) {
		_ = os.Remove(path)
		require.Equal(t, []Place{{State: Generated}}, known(t, r, self(t), procfs.SinceBoot(), addr), "there is none")
		require.NoError(t, os.WriteFile(path, []byte("1000 10 f\n"), 0o600))
		r.mu.Lock()
		for _, e := range r.processes {
			e.life.perf = nil // simulates that time has passed
		}
		r.mu.Unlock()
		place := known(t, r, self(t), procfs.SinceBoot(), addr)[0]
		require.Equal(t, Generated, place.State)
		require.Equal(t, path, place.File.Path)
		require.Equal(t, addr, place.Address)
		require.NotZero(t, place.File.ID.Process)
		f, err := place.File.Open()
		require.NoError(t, err)
		require.NoError(t, f.Close())

		// If a process with the same PID began later, it is another process. The PID of an exited process can also belong to
		// another process.
		r.mu.Lock()
		l := r.bind(self(t), procfs.SinceBoot()).life
		h := l.perf.holders[0]
		r.mu.Unlock()
		other, _, err := r.openPerfMap(h, new(opening))
		require.NoError(t, err)
		require.NoError(t, other.Close())
		_, _, err = r.openPerfMap(holder{pid: h.pid, seen: 1}, new(opening))
		require.ErrorIs(t, err, errOther)
		r.mu.Lock()
		require.Equal(t, Place{State: Generated}, r.perfMap(&life{pid: h.pid, ended: true}, addr))
		r.mu.Unlock()

		// A perf map must not be read if it belongs to another user or is not a regular file.
		if os.Getuid() == 0 {
			require.NoError(t, os.Chown(path, 12345, -1))
			_, err = place.File.Open()
			require.ErrorIs(t, err, errOther)
		}
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.Symlink("/etc/passwd", path))
		_, err = place.File.Open()
		require.Error(t, err)
		require.NoError(t, os.Remove(path))
		require.NoError(t, unix.Mkfifo(path, 0o600))
		_, err = place.File.Open()
		require.ErrorIs(t, err, errOther)
	})
}

// TestOwnerOfPerfMap checks that a perf map must belong to the process's user or to root, which can write it for the process.
func TestOwnerOfPerfMap(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start another user's process")
	}
	const user = 12345
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // killed
	path := fmt.Sprintf("/tmp/perf-%d.map", cmd.Process.Pid)
	require.NoError(t, os.WriteFile(path, []byte("1000 10 f\n"), 0o600))
	t.Cleanup(func() { _ = os.Remove(path) })
	r := newResolver(t, Options{Unwatched: true})
	for owner, want := range map[int]error{user: nil, 0: nil, user + 1: errOther} {
		require.NoError(t, os.Chown(path, owner, -1))
		f, _, err := r.openPerfMap(holder{pid: uint32(cmd.Process.Pid), seen: procfs.SinceBoot()}, new(opening))
		require.ErrorIs(t, err, want, owner)
		if err == nil {
			require.NoError(t, f.Close())
		}
	}
}
