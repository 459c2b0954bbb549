package procmap

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// self is the process of the test, as the kernel would see it.
func self(t *testing.T) Process {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/exe", &st))
	return Process{PID: uint32(os.Getpid()), ExeInode: st.Ino, Space: 1}
}

func newResolver(t *testing.T) *Resolver {
	t.Helper()
	if _, err := os.Stat("/proc/self/map_files"); err != nil {
		t.Skipf("no map_files: %v", err)
	}
	r := New(Options{})
	t.Cleanup(r.Close)
	return r
}

// known annotates until nothing more is to come.
func known(t *testing.T, r *Resolver, p Process, seen uint64, frames ...profile.Frame) []profile.Frame {
	t.Helper()
	require.Eventually(t, func() bool { return !r.Annotate(p, seen, false, frames) }, 20*time.Second, 5*time.Millisecond)
	return frames
}

func bootTime(t *testing.T) uint64 {
	t.Helper()
	var now unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &now))
	return uint64(now.Nano())
}

func TestOwnProcess(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	content, err := os.ReadFile(exe)
	require.NoError(t, err)
	want, err := buildid.Read(bytes.NewReader(content), int64(len(content)))
	require.NoError(t, err)
	require.NotEmpty(t, want.Go)

	r := newResolver(t)
	addr := uint64(reflect.ValueOf(TestOwnProcess).Pointer())
	name := runtime.FuncForPC(uintptr(addr)).Name()
	frames := known(t, r, self(t), bootTime(t),
		profile.Frame{Name: name, Address: addr, Type: profile.FrameNative},
		profile.Frame{Address: addr + 1, Type: profile.FrameNative}, // where a call returns to
		profile.Frame{Name: "c_function", Address: addr + 1, Type: profile.FrameNative},
		profile.Frame{Name: "vfs_read", Address: addr, Type: profile.FrameKernel},
		profile.Frame{Name: "nowhere", Address: 1, Type: profile.FrameNative},
		profile.Frame{Name: "interpreted"},
	)
	mapping := profile.Mapping{File: exe, GNUBuildID: want.GNU, GoBuildID: want.Go, HTLHash: want.HTLHash, Symbolized: true}
	offset := frames[0].Address
	require.Equal(t, profile.Frame{Name: name, Address: offset, Mapping: mapping, Type: profile.FrameGo}, frames[0])
	// The offset is where the code is in the file.
	code := (*[8]byte)(reflect.ValueOf(TestOwnProcess).UnsafePointer())[:]
	require.Equal(t, code, content[offset:offset+8])
	virtual := []profile.Frame{{Name: name, Address: addr, Type: profile.FrameNative}}
	require.False(t, r.Annotate(self(t), 0, true, virtual))
	symbol, ok := want.Virtual(offset)
	require.True(t, ok)
	if e, err := elf.NewFile(bytes.NewReader(content)); err == nil && e.Type == elf.ET_EXEC {
		require.Equal(t, addr, symbol, "a program that lies where it was linked to")
	}
	require.Equal(t, profile.Frame{Name: name, Address: symbol, Mapping: mapping, Type: profile.FrameGo}, virtual[0])
	bare := mapping
	bare.Symbolized = false
	require.Equal(t, profile.Frame{Address: offset, Mapping: bare, Type: profile.FrameNative}, frames[1])
	require.Equal(t, profile.FrameNative, frames[2].Type)
	require.Equal(t, profile.Frame{Name: "vfs_read", Address: addr, Type: profile.FrameKernel}, frames[3])
	require.Equal(t, profile.Frame{Name: "nowhere", Address: 1, Type: profile.FrameNative}, frames[4])
	require.Equal(t, profile.Frame{Name: "interpreted"}, frames[5])

	if want.GNU != "" {
		f := known(t, r, self(t), 0, profile.Frame{Name: name, Address: 0x42, Mapping: profile.Mapping{GNUBuildID: want.GNU, Symbolized: true}})
		require.Equal(t, mapping, f[0].Mapping)
		require.EqualValues(t, 0x42, f[0].Address, "it is an offset already")
	}
}

// Another process that has the number by now gives nothing away.
func TestOtherProcess(t *testing.T) {
	r := newResolver(t)
	addr := uint64(reflect.ValueOf(TestOtherProcess).Pointer())
	frame := profile.Frame{Name: "f", Address: addr, Type: profile.FrameNative}
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
			require.Equal(t, []profile.Frame{frame}, known(t, r, p, seen, frame))
		})
	}
}

// A process that ends leaves what is known of it; one that maps more is read again.
func TestEndedProcess(t *testing.T) {
	r := newResolver(t)
	cmd := exec.Command("sleep", "600")
	require.NoError(t, cmd.Start())
	exe := fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid)
	var st unix.Stat_t
	var own unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/exe", &own))
	require.Eventually(t, func() bool { // it runs this program until it has called execve
		return unix.Stat(exe, &st) == nil && st.Ino != own.Ino
	}, 10*time.Second, time.Millisecond)
	p := Process{PID: uint32(cmd.Process.Pid), ExeInode: st.Ino, Space: 7}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(exe), "maps"))
	require.NoError(t, err)
	areas := parseMaps(text)
	require.NotEmpty(t, areas)
	frame := profile.Frame{Address: areas[0].start + 8}
	first := known(t, r, p, 0, frame)
	require.Len(t, first[0].Mapping.HTLHash, 32)
	require.Equal(t, areas[0].offset+8, first[0].Address)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	require.Equal(t, first, known(t, r, p, 0, frame))
}

// Where no process can be read, the reason is told; one that can be read clears it.
func TestErr(t *testing.T) {
	r := newResolver(t)
	for i := range suspicious {
		require.NoError(t, r.Err())
		known(t, r, Process{PID: 1<<31 + uint32(i), ExeInode: 1}, 0, profile.Frame{Address: 1})
	}
	require.ErrorIs(t, r.Err(), os.ErrNotExist)
	known(t, r, self(t), 0, profile.Frame{Address: 1})
	require.NoError(t, r.Err())
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
`))
	require.Equal(t, []area{
		{0x401000, 0x402000, 0x1000, "fd:01", 12, "/usr/bin/app"},
		{0x7f0000000000, 0x7f0000001000, 0, "00:2a", 13, "/a file with  spaces"},
	}, areas)
	line := "00401000-00402000 r-xp 00001000 fd:01 12 /usr/bin/app\n"
	require.Len(t, parseMaps([]byte(strings.Repeat(line, maxRanges+1))), maxRanges)
}

func TestStartTime(t *testing.T) {
	n, ok := startTime([]byte("42 (a) S 1 (b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20\n"))
	require.True(t, ok)
	require.EqualValues(t, 4711, n)
	for _, text := range []string{"", "42 (a)", "42 (a) S 1", "42"} {
		_, ok := startTime([]byte(text))
		require.False(t, ok, text)
	}
}

// Files that a process or a network would have to answer for are not opened.
func TestAvoided(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mountinfo"), []byte(
		"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"+
			"37 35 0:52 / /mnt3 rw - fuse.sshfs host: rw\n38 35 0:300 / /mnt4 rw - nfs4 host: rw\nnonsense\n"), 0o600))
	fd, err := unix.Open(dir, unix.O_PATH, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	avoid := avoided(fd)
	require.Equal(t, map[string]bool{"00:34": true, "00:12c": true}, avoid)
	r := &Resolver{}
	_, err = r.identify(fd, area{dev: "00:34"}, avoid)
	require.ErrorIs(t, err, errAvoided)
}

func TestBounds(t *testing.T) {
	r := &Resolver{processes: map[Process]*entry{}, queue: make(chan request, 3*maxProcesses)}
	frames := []profile.Frame{{Address: 1}}
	for i := range 2 * maxProcesses {
		require.True(t, r.Annotate(Process{PID: uint32(i + 1), ExeInode: 1}, 0, false, frames))
		require.LessOrEqual(t, len(r.processes), maxProcesses)
	}
	require.Contains(t, r.processes, Process{PID: 2 * maxProcesses, ExeInode: 1}, "the newest stays")

	r = &Resolver{processes: map[Process]*entry{}, queue: make(chan request, 1)}
	require.True(t, r.Annotate(Process{PID: 1, ExeInode: 1}, 0, false, frames))
	require.True(t, r.Annotate(Process{PID: 1, ExeInode: 1}, 0, false, frames), "it is under way")
	require.False(t, r.Annotate(Process{PID: 2, ExeInode: 1}, 0, false, frames), "the queue is full")
}

// Processes with very many mappings of files with long paths are not all held.
func TestHeldBytes(t *testing.T) {
	r := &Resolver{processes: map[Process]*entry{}}
	path := "/" + strings.Repeat("x", maxPath-1)
	began := time.Now()
	for pid := range uint32(100) {
		ranges := make([]mapped, 1000)
		for i := range ranges {
			ranges[i].file = &file{path: path}
		}
		e := &entry{used: began.Add(time.Duration(pid) * time.Second)}
		p := Process{PID: pid}
		r.processes[p] = e
		r.keep(e, ranges)
		r.keep(e, ranges) // read again
		require.LessOrEqual(t, r.held, maxHeld)
		require.Contains(t, r.processes, p, "the newest stays")
	}
	sum := 0
	for _, e := range r.processes {
		sum += e.size
	}
	require.Equal(t, sum, r.held)
	require.Greater(t, len(r.processes), 1)
}

func TestIsGoName(t *testing.T) {
	for name, want := range map[string]bool{
		"main.work": true, "main.main.func1": true, "example.com/a.b/pkg.(*T).Method": true, "runtime.mallocgc": true,
		"main.f[go.shape.struct { A example.com/x.T }]": true, "type:.eq.main.T": true,
		"work": false, "memeqbody": false, "": false, "f.cold": false, "f.isra.0": false, "f.constprop.0.isra.1": false,
		"_ZN3foo3barEv.llvm.123": false, "_cgo_x.y": false, ".L1": false, "a/b": false,
	} {
		require.Equal(t, want, isGoName(name), name)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("00401000-00402000 r-xp 00001000 fd:01 12 /usr/bin/app\n"))
	f.Add([]byte("42 (a) S 1 (b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, a := range parseMaps(b) {
			require.Less(t, a.start, a.end)
			require.LessOrEqual(t, len(a.path), maxPath)
		}
		startTime(b)
		isGoName(string(b))
	})
}
