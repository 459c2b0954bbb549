package procmap

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// self is the process of the test, as the kernel would see it.
func self(t *testing.T) Process {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/exe", &st))
	return Process{PID: uint32(os.Getpid()), ExeInode: st.Ino, ExeModified: st.Mtim.Nano(), Space: 1}
}

// eachWay runs a test with and without the kernel's events.
func eachWay(t *testing.T, test func(t *testing.T, r *Resolver)) {
	t.Helper()
	for name, o := range map[string]Options{"reading": {Unwatched: true}, "watching": {}} {
		t.Run(name, func(t *testing.T) { test(t, newResolver(t, o)) })
	}
}

func newResolver(t *testing.T, o Options) *Resolver {
	t.Helper()
	r := New(o)
	t.Cleanup(r.Close)
	if !o.Unwatched && !r.Stats().Watching {
		if os.Getuid() == 0 && initialNamespace() {
			t.Fatal("the kernel does not tell of processes")
		}
		t.Skip("the kernel tells of processes to root only")
	}
	return r
}

func initialNamespace() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && ns == initialPIDNamespace
}

// known locates until nothing more is to come.
func known(t *testing.T, r *Resolver, p Process, seen uint64, addrs ...uint64) []Place {
	t.Helper()
	var places []Place
	require.Eventually(t, func() bool {
		var pending bool
		places, pending = r.Locate(nil, p, seen, addrs)
		return !pending
	}, 20*time.Second, 5*time.Millisecond)
	return places
}

func TestOwnProcess(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	content, err := os.ReadFile(exe)
	require.NoError(t, err)
	want, err := buildid.Read(bytes.NewReader(content), int64(len(content)))
	require.NoError(t, err)
	require.NotEmpty(t, want.Go)
	addr := uint64(reflect.ValueOf(TestOwnProcess).Pointer())
	code := (*[8]byte)(reflect.ValueOf(TestOwnProcess).UnsafePointer())[:]
	eachWay(t, func(t *testing.T, r *Resolver) {
		places := known(t, r, self(t), bootTime(), addr, 1)
		p := places[0]
		require.Equal(t, Known, p.State)
		require.Equal(t, exe, p.File.Path)
		require.Equal(t, want, p.File.Info)
		require.Equal(t, code, content[p.Offset:p.Offset+8], "where the code is in the file")
		symbol, ok := want.Virtual(p.Offset)
		require.True(t, ok)
		require.Equal(t, symbol, p.Address)
		if e, err := elf.NewFile(bytes.NewReader(content)); err == nil && e.Type == elf.ET_EXEC {
			require.Equal(t, addr, p.Address, "a program that lies where it was linked to")
		}
		require.Equal(t, Unmapped, places[1].State)

		f, err := p.File.Open()
		require.NoError(t, err)
		defer f.Close()
		id, err := symbols.Identify(f)
		require.NoError(t, err)
		require.Equal(t, p.File.ID, id)
		root, err := p.File.Root()
		require.NoError(t, err)
		require.NoError(t, root.Close())
	})
}

// Another process that has the number by now gives nothing away.
func TestOtherProcess(t *testing.T) {
	addr := uint64(reflect.ValueOf(TestOtherProcess).Pointer())
	eachWay(t, func(t *testing.T, r *Resolver) {
		for name, change := range map[string]func(p *Process) (seen uint64){
			"another executable":  func(p *Process) uint64 { p.ExeInode++; return 0 },
			"started later":       func(*Process) uint64 { return 1 },
			"no such process":     func(p *Process) uint64 { p.PID = 1 << 31; return 0 },
			"executable unknown":  func(p *Process) uint64 { p.ExeInode = 0; return 0 },
			"not a process's row": func(p *Process) uint64 { p.PID = 0; return 0 },
		} {
			t.Run(name, func(t *testing.T) {
				p := self(t)
				p.Space = uint32(len(name))
				seen := change(&p)
				require.Equal(t, []Place{{State: Gone}}, known(t, r, p, seen, addr))
			})
		}
	})
}

// start starts a program and waits until it runs that and no other.
func start(t *testing.T, name string, args ...string) (*exec.Cmd, Process) {
	t.Helper()
	cmd := exec.Command(name, args...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it may have ended
	exe := fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid)
	var st, own unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/exe", &own))
	require.Eventually(t, func() bool {
		return unix.Stat(exe, &st) == nil && st.Ino != own.Ino
	}, 10*time.Second, time.Millisecond)
	return cmd, Process{PID: uint32(cmd.Process.Pid), ExeInode: st.Ino, Space: 7}
}

func areasOf(t *testing.T, pid uint32) []area {
	t.Helper()
	var areas []area
	require.Eventually(t, func() bool { // libraries come after the start
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		require.NoError(t, err)
		areas = parseMaps(text)
		return strings.Contains(string(text), "/libc.so")
	}, 10*time.Second, time.Millisecond)
	return areas
}

// A process that ends leaves what is known of it.
func TestEndedProcess(t *testing.T) {
	eachWay(t, func(t *testing.T, r *Resolver) {
		cmd, p := start(t, "sleep", "600")
		addr := areasOf(t, p.PID)[0].start + 8
		seen := bootTime()
		first := known(t, r, p, seen, addr)
		require.Equal(t, Known, first[0].State)
		require.Len(t, first[0].File.Info.HTLHash, 32)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
		require.Equal(t, first, known(t, r, p, seen, addr))
	})
}

// A process that is gone before anybody asks is known all the same.
func TestGoneProcess(t *testing.T) {
	r := newResolver(t, Options{})
	cmd, p := start(t, "sleep", "600")
	areas := areasOf(t, p.PID)
	seen := bootTime()
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	time.Sleep(3 * readEvery)
	var addrs []uint64
	for _, a := range areas {
		addrs = append(addrs, a.start+16)
	}
	for i, place := range known(t, r, p, seen, addrs...) {
		require.Equal(t, Known, place.State, areas[i].key.path)
		require.Equal(t, areas[i].key.path, place.File.Path)
		require.Equal(t, areas[i].offset+16, place.Offset)
	}
	p.Space++
	require.Equal(t, Gone, known(t, r, p, r.history.byPID[p.PID][0].start-1, addrs[0])[0].State, "before it began")
}

// A fork has what its parent has, and a program that a process becomes has not what it was before.
func TestForkAndExec(t *testing.T) {
	r := newResolver(t, Options{})
	// The shell's child is a shell until it becomes sleep.
	cmd := exec.Command("sh", "-c", "( (while :; do :; done) & echo $!; wait)")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL); _ = cmd.Wait() }) // killed
	var pid uint32
	_, err = fmt.Fscan(out, &pid)
	require.NoError(t, err)
	areas := areasOf(t, pid)
	seen := bootTime()
	require.NoError(t, unix.Kill(-cmd.Process.Pid, unix.SIGKILL))
	time.Sleep(3 * readEvery)
	place := known(t, r, Process{PID: pid, ExeInode: areas[0].key.inode, Space: 3}, seen, areas[0].start)[0]
	require.Equal(t, Known, place.State)
	require.Equal(t, areas[0].key.path, place.File.Path)
}

// Where no process can be read, the reason is told; one that can be read clears it.
func TestErr(t *testing.T) {
	r := newResolver(t, Options{Unwatched: true})
	for i := range suspicious {
		require.NoError(t, r.Err())
		known(t, r, Process{PID: 1<<31 + uint32(i), ExeInode: 1}, 0, 1)
	}
	require.ErrorIs(t, r.Err(), os.ErrNotExist)
	known(t, r, self(t), 0, 1)
	require.NoError(t, r.Err())
}

// A process that may not be looked at is counted once, however often that is tried, and one that has ended is not.
func TestDenied(t *testing.T) {
	r := bare()
	for i, err := range []error{unix.EACCES, unix.EPERM, unix.ENOENT} {
		p := Process{PID: uint32(i + 1), ExeInode: 1}
		for range 3 {
			r.processes[p] = cmp.Or(r.processes[p], &entry{})
			r.takeReading(request{process: p}, bootTime(), reading{err: fmt.Errorf("opening maps of a process: %w", err)})
		}
	}
	require.EqualValues(t, 9, r.stats.Failed)
	require.EqualValues(t, 2, r.stats.Denied)
}

// A deleted file can be read as long as a process has it mapped; another file at its path is not taken for it.
func TestDeletedAndReplacedFiles(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	content, err := os.ReadFile(sleep)
	require.NoError(t, err)
	eachWay(t, func(t *testing.T, r *Resolver) {
		path := filepath.Join(t.TempDir(), "nap")
		require.NoError(t, os.WriteFile(path, content, 0o700))
		cmd, p := start(t, path, "600")
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.WriteFile(path, append(content, 0), 0o700))
		areas := areasOf(t, p.PID)
		place := known(t, r, p, bootTime(), areas[0].start)[0]
		require.Equal(t, Known, place.State)
		want, err := buildid.HTLHash(bytes.NewReader(content), int64(len(content)))
		require.NoError(t, err)
		require.Equal(t, want, place.File.Info.HTLHash)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
		opened, err := place.File.Open()
		require.NoError(t, err, "it is kept for a moment")
		read, err := io.ReadAll(opened)
		require.NoError(t, err)
		require.NoError(t, opened.Close())
		require.True(t, bytes.Equal(content, read))
		if testing.Short() {
			return
		}
		require.Eventually(t, func() bool {
			opened, err := place.File.Open()
			if err == nil {
				opened.Close()
			}
			return err != nil
		}, 4*holdFor, 100*time.Millisecond, "and not for longer")
	})
}

// A program can be gone before its file is identified, and another one be in its place before what is in it is read.
func TestShortLivedProgram(t *testing.T) {
	content, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(path, content, 0o700))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	r := bare()
	const pid = 1 << 30
	r.take(bootTime(), []event{
		{kind: recordComm, pid: pid, time: 1},
		{kind: recordMmap2, pid: pid, time: 2, start: 0x1000, end: 0x2000, file: newFileKey(unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino, path)},
		{kind: recordExit, pid: pid, time: 3},
	}, 0)
	r.readFile(t.Context(), <-r.toRead)
	defer func() { r.release(len(r.kept)); r.closeFiles(context.Background()) }()
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("another one"), 0o700))
	places, pending := r.Locate(nil, Process{PID: pid, ExeInode: st.Ino}, 2, []uint64{0x1000})
	require.False(t, pending)
	require.NotNil(t, places[0].File)
	f, err := places[0].File.Open()
	require.NoError(t, err)
	defer f.Close()
	read, err := io.ReadAll(f)
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, read))
}

// Files are kept open of a process in another mount namespace if they are on its root mount, and of one in the host's if
// they are on the host's: nothing that could be unmounted is held.
func TestMayHold(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	dir := t.TempDir()
	own := newResolver(t, Options{Unwatched: true})
	other, err := os.Open(sleep)
	require.NoError(t, err)
	defer other.Close()
	require.True(t, own.mayHold(other, []holder{{pid: uint32(os.Getpid())}}), "on this root mount")
	require.True(t, own.mayHold(other, []holder{{pid: 1 << 30}}), "of a process that has ended")
	for name, c := range map[string]struct {
		script string
		want   bool
	}{
		"root mount":  {`exec "$1" 600`, true},
		"other mount": {`mount -t tmpfs t "$0" && cp "$1" "$0/nap" && exec "$0/nap" 600`, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, p := start(t, "unshare", "--mount", "sh", "-c", c.script, dir, sleep)
			require.Eventually(t, func() bool {
				comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID))
				require.NoError(t, err)
				return string(comm) == "sleep\n" || string(comm) == "nap\n"
			}, 10*time.Second, 10*time.Millisecond)
			f, err := os.Open(fmt.Sprintf("/proc/%d/exe", p.PID))
			require.NoError(t, err)
			defer f.Close()
			require.Equal(t, c.want, own.mayHold(f, []holder{{pid: p.PID}}))
		})
	}
}

// No more files are kept open than there may be.
func TestHold(t *testing.T) {
	r := bare()
	for range 2 * maxOpen {
		opened, err := os.Open("/proc/self/exe")
		require.NoError(t, err)
		r.hold(&file{}, opened)
		require.LessOrEqual(t, len(r.kept), maxOpen)
	}
	for _, h := range r.kept {
		require.NotNil(t, h.f.open)
	}
	first := r.kept[0].f
	again := first.again()
	require.NotNil(t, again)
	require.NoError(t, again.Close())
	r.release(len(r.kept))
	require.Nil(t, first.again())
	r.closeFiles(t.Context())
	require.Empty(t, r.kept)
}

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

// Files that a process or a network would have to answer for are not opened.
func TestAvoided(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mountinfo"), []byte(
		"20 1 98:1 / / rw - ext4 /dev/root rw\n"+
			"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"+
			"37 35 0:52 / /mnt2/my\\040host rw - fuse.sshfs host: rw\n38 35 0:300 / /mnt4 rw - nfs4 host: rw\nnonsense\n"), 0o600))
	fd, err := unix.Open(dir, unix.O_PATH, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
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
	_, err = r.openBelow(fd, fd, mounts, "/mnt4/bin", new(opening))
	require.ErrorIs(t, err, errAvoided)
}

func TestBounds(t *testing.T) {
	r := &Resolver{history: newHistory(), processes: map[Process]*entry{}, queue: make(chan request, 3*maxProcesses)}
	for i := range 2 * maxProcesses {
		_, pending := r.Locate(nil, Process{PID: uint32(i + 1), ExeInode: 1}, 0, []uint64{1})
		require.True(t, pending)
		require.LessOrEqual(t, len(r.processes), maxProcesses)
	}
	require.Contains(t, r.processes, Process{PID: 2 * maxProcesses, ExeInode: 1}, "the newest stays")

	r = &Resolver{history: newHistory(), processes: map[Process]*entry{}, queue: make(chan request, 1)}
	for pid, want := range []State{Gone, Pending, Pending, Gone} {
		place, _ := r.Locate(nil, Process{PID: uint32(min(pid, 2)), ExeInode: 1}, 0, []uint64{1})
		if pid == 2 {
			want = Gone // the queue is full
		}
		require.Equal(t, want, place[0].State, pid)
	}
}

// Whatever processes do, what is held has a bound.
func TestHeld(t *testing.T) {
	r := &Resolver{watching: true, changed: make(chan struct{}), history: newHistory(), processes: map[Process]*entry{}, files: map[fileKey]*file{}, toRead: make(chan *file, 1)}
	path := "/" + strings.Repeat("x", maxPath-100)
	for pid := range uint32(3_000) {
		events := []event{{kind: recordComm, pid: pid + 1, time: uint64(pid)}}
		for i := range uint64(50) {
			events = append(events, event{kind: recordMmap2, pid: pid + 1, start: i << 12, end: (i + 1) << 12, file: newFileKey(1, 1, uint64(pid)<<16|i, fmt.Sprint(path, pid, i))})
		}
		r.take(uint64(pid), events, 0)
		r.Locate(nil, Process{PID: pid + 1, ExeInode: 1}, uint64(pid), []uint64{1})
		if pid%500 == 0 {
			r.sweep()
			require.LessOrEqual(t, r.held(), maxHeld)
		}
	}
	require.LessOrEqual(t, len(r.files), maxFiles)
	for pid := range uint32(3_000) {
		r.take(3_000, []event{{kind: recordExit, pid: pid + 1}}, 0)
	}
	require.LessOrEqual(t, len(r.history.ended), maxLives)
}

// Files that only a life has still are counted, and what comes between two sweeps has a bound.
func TestHeldByLives(t *testing.T) {
	r := bare()
	path := "/" + strings.Repeat("x", maxPath-100)
	var paths int
	for pid := range uint32(200) {
		events := []event{{kind: recordComm, pid: pid + 1, time: uint64(pid)}}
		for i := range uint64(200) {
			events = append(events, event{kind: recordMmap2, pid: pid + 1, start: i << 12, end: (i + 1) << 12, file: newFileKey(1, 1, uint64(pid)<<16|i, fmt.Sprint(path, pid, i))})
		}
		r.take(uint64(pid), events, 0)
		r.Locate(nil, Process{PID: pid + 1, ExeInode: 1}, uint64(pid), []uint64{1})
		if pid%10 != 9 {
			continue
		}
		files := map[*file]bool{}
		add := func(l *life) {
			for _, m := range l.ranges {
				files[m.file] = true
			}
		}
		for _, ls := range r.history.byPID {
			for _, l := range ls {
				add(l)
			}
		}
		for _, e := range r.processes {
			if e.life != nil {
				add(e.life)
			}
		}
		paths = 0
		for f := range files {
			paths += len(f.key.path)
		}
		require.Greater(t, r.held(), paths)
		require.LessOrEqual(t, r.held(), maxHeld*3/2+1<<20, "without a sweep")
	}
	require.Positive(t, paths)
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

// Code that a process has made is in its perf map, which is its own.
func TestPerfMap(t *testing.T) {
	code, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(code)) })
	addr := uint64(reflect.ValueOf(code).Pointer()) + 8
	path := fmt.Sprintf("/tmp/perf-%d.map", os.Getpid())
	t.Cleanup(func() { _ = os.Remove(path) })
	eachWay(t, func(t *testing.T, r *Resolver) {
		_ = os.Remove(path)
		require.Equal(t, []Place{{State: Generated}}, known(t, r, self(t), bootTime(), addr), "there is none")
		require.NoError(t, os.WriteFile(path, []byte("1000 10 f\n"), 0o600))
		r.mu.Lock()
		for _, e := range r.processes {
			e.life.perf = nil // as after a while
		}
		r.mu.Unlock()
		place := known(t, r, self(t), bootTime(), addr)[0]
		require.Equal(t, Generated, place.State)
		require.Equal(t, path, place.File.Path)
		require.Equal(t, addr, place.Address)
		require.NotZero(t, place.File.ID.Process)
		f, err := place.File.Open()
		require.NoError(t, err)
		require.NoError(t, f.Close())

		// A process that has begun later with the same PID is another one. So may be one with the PID of a process
		// that has ended.
		r.mu.Lock()
		l := r.bind(self(t), bootTime()).life
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

		// Another user's, or something else of that name, is not read.
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
