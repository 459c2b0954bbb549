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
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// self returns this test's process as the kernel sees it.
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
	o.Identify = identifyHere
	r := New(o)
	t.Cleanup(r.Close)
	if !o.Unwatched && !r.watching {
		if os.Getuid() == 0 && procfs.SharesPIDs() {
			t.Fatal("the kernel does not tell of processes")
		}
		t.Skip("the kernel tells of processes to root only")
	}
	return r
}

// known calls Locate until nothing is pending.
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
	want, err := parse.ReadInfo(t.Context(), bytes.NewReader(content), int64(len(content)))
	require.NoError(t, err)
	require.NotEmpty(t, want.Go)
	addr := uint64(reflect.ValueOf(TestOwnProcess).Pointer())
	code := (*[8]byte)(reflect.ValueOf(TestOwnProcess).UnsafePointer())[:]
	eachWay(t, func(t *testing.T, r *Resolver) {
		places := known(t, r, self(t), procfs.SinceBoot(), addr, 1)
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
		id, err := symtab.Identify(f)
		require.NoError(t, err)
		require.Equal(t, p.File.ID, id)
		root, err := p.File.Root()
		require.NoError(t, err)
		require.NoError(t, root.Close())
	})
}

// TestOtherProcess checks that nothing is revealed about another process that now has the same PID.
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

// start starts a program and waits until the process runs it.
func start(t *testing.T, name string, args ...string) (*exec.Cmd, Process) {
	t.Helper()
	cmd := exec.Command(name, args...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it may have exited
	exe := fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid)
	var st, own unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/exe", &own))
	require.Eventually(t, func() bool {
		return unix.Stat(exe, &st) == nil && st.Ino != own.Ino
	}, 10*time.Second, time.Millisecond)
	return cmd, Process{PID: uint32(cmd.Process.Pid), ExeInode: st.Ino, Space: 7}
}

// nap starts a program that sleeps, from a file of its own.
func nap(t *testing.T) (path string, cmd *exec.Cmd, p Process) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "nap")
	require.NoError(t, os.WriteFile(path, sleeper(t), 0o700))
	cmd, p = start(t, path, "600")
	return path, cmd, p
}

func areasOf(t *testing.T, pid uint32) []area {
	t.Helper()
	var areas []area
	require.Eventually(t, func() bool { // libraries are mapped after the start
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		require.NoError(t, err)
		areas = parseMaps(text)
		return strings.Contains(string(text), "/libc.so")
	}, 10*time.Second, time.Millisecond)
	return areas
}

// TestEndedProcess checks that the data of an exited process stays available.
func TestEndedProcess(t *testing.T) {
	eachWay(t, func(t *testing.T, r *Resolver) {
		cmd, p := start(t, "sleep", "600")
		addr := areasOf(t, p.PID)[0].start + 8
		seen := procfs.SinceBoot()
		first := known(t, r, p, seen, addr)
		require.Equal(t, Known, first[0].State)
		require.Len(t, first[0].File.Info.HTLHash, 32)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
		require.Equal(t, first, known(t, r, p, seen, addr))
	})
}

// toldOfEnd waits until the kernel has reported that a process exited. The process existed at the time seen.
func toldOfEnd(t *testing.T, r *Resolver, pid uint32, seen uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		l := r.history.at(pid, seen)
		return l != nil && l.ended
	}, 20*time.Second, time.Millisecond)
}

// TestGoneProcess checks that a process is known although it exited before the first request.
func TestGoneProcess(t *testing.T) {
	r := newResolver(t, Options{})
	cmd, p := start(t, "sleep", "600")
	areas := areasOf(t, p.PID)
	seen := procfs.SinceBoot()
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	toldOfEnd(t, r, p.PID, seen)
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

// TestForkAndExec checks that a forked process has its parent's mappings, and that an execve discards them.
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
	seen := procfs.SinceBoot()
	require.NoError(t, unix.Kill(-cmd.Process.Pid, unix.SIGKILL))
	toldOfEnd(t, r, pid, seen)
	place := known(t, r, Process{PID: pid, ExeInode: areas[0].key.inode, Space: 3}, seen, areas[0].start)[0]
	require.Equal(t, Known, place.State)
	require.Equal(t, areas[0].key.path, place.File.Path)
}

// TestErr checks that Err returns the reason if no process can be read, and nil after a success.
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

// TestDenied checks that an inaccessible process is counted once, and that an exited process is not counted.
func TestDenied(t *testing.T) {
	r := bare()
	for i, err := range []error{unix.EACCES, unix.EPERM, unix.ENOENT} {
		p := Process{PID: uint32(i + 1), ExeInode: 1}
		for range 3 {
			r.processes[p] = cmp.Or(r.processes[p], &entry{})
			r.takeReading(request{process: p}, procfs.SinceBoot(), reading{err: fmt.Errorf("opening maps of a process: %w", err)})
		}
	}
	require.EqualValues(t, 9, r.failed)
	require.EqualValues(t, 2, r.stats.Denied)
}

// TestDeletedAndReplacedFiles checks that a deleted file can be read while a process has it mapped, and that another file at
// its path is refused.
func TestDeletedAndReplacedFiles(t *testing.T) {
	content := sleeper(t)
	eachWay(t, func(t *testing.T, r *Resolver) {
		path, cmd, p := nap(t)
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.WriteFile(path, append(content, 0), 0o700))
		areas := areasOf(t, p.PID)
		place := known(t, r, p, procfs.SinceBoot(), areas[0].start)[0]
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
		r.releaseOld(time.Now().Add(holdFor))
		_, err = place.File.Open()
		require.Error(t, err, "and not for longer")
	})
}

// TestShortLivedProgram checks that an exited program is not confused with the program that replaces it.
func TestShortLivedProgram(t *testing.T) {
	content, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(path, content, 0o700))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	r := bare()
	const pid = 1 << 30
	r.take(procfs.SinceBoot(), []event{
		{kind: recordComm, pid: pid, time: 1},
		{kind: recordMmap2, pid: pid, time: 2, start: 0x1000, end: 0x2000, file: newFileKey(unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino, path)},
		{kind: recordExit, pid: pid, time: 3},
	}, 0)
	r.readFile(t.Context(), <-r.toRead)
	defer func() { r.release(len(r.heldFiles)); r.closeFiles(context.Background()) }()
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

// TestMayHold checks that a file only stays open if this does not prevent an unmount. In another mount namespace, it must be on
// the process's root mount. In the host's namespace, it must be on the host's root mount.
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

// TestHoldFor checks that a file stays open for a limited time.
func TestHoldFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{Identify: identifyHere, Unwatched: true})
		defer r.Close()
		opened, err := os.Open("/proc/self/exe")
		require.NoError(t, err)
		f := &file{}
		r.mu.Lock()
		r.hold(f, opened)
		r.mu.Unlock()
		open := func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return f.open != nil
		}
		time.Sleep(holdFor - time.Second/2)
		synctest.Wait()
		require.True(t, open())
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.False(t, open())
		_, err = opened.Stat()
		require.ErrorIs(t, err, os.ErrClosed)
	})
}

// TestHold checks the maximum number of open files.
func TestHold(t *testing.T) {
	r := bare()
	for range 2 * maxOpen {
		opened, err := os.Open("/proc/self/exe")
		require.NoError(t, err)
		r.hold(&file{}, opened)
		require.LessOrEqual(t, len(r.heldFiles), maxOpen)
	}
	for _, h := range r.heldFiles {
		require.NotNil(t, h.f.open)
	}
	first := r.heldFiles[0].f
	again := first.again()
	require.NotNil(t, again)
	require.NoError(t, again.Close())
	r.release(len(r.heldFiles))
	require.Nil(t, first.again())
	r.closeFiles(t.Context())
	require.Empty(t, r.heldFiles)
}
