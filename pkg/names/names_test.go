package names

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOwnProcess(t *testing.T) {
	n := newNamer(t)
	t.Cleanup(n.Close)
	var st unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/exe", &st))
	p := procmap.Process{PID: uint32(os.Getpid()), ExeInode: st.Ino, Space: 1}
	addr := uint64(reflect.ValueOf(TestOwnProcess).Pointer())
	addrs := []uint64{addr, addr + 1, 1}
	_, pending := n.Resolve(nil, p, 0, addrs)
	require.True(t, pending, "whoever asks does not wait")
	frames := n.ResolveWithin(nil, time.Minute, p, 0, addrs)
	require.Len(t, frames, 3)
	const name = "github.com/ig-otel-profiles/ig-otel-profiles/pkg/names.TestOwnProcess"
	require.Equal(t, name, frames[0].Symbol.Name)
	require.Equal(t, name, frames[1].Symbol.Name, "a call returns to the byte after it")
	require.Equal(t, frames[0].Address, frames[1].Address)
	require.Positive(t, frames[0].Symbol.Line)
	require.True(t, frames[0].Go(name))
	require.Equal(t, NotCode, frames[2].State)

	// This process does not exist.
	p.PID, p.Space = 1<<31, 2
	frames = n.ResolveWithin(nil, time.Minute, p, 0, addrs[:1])
	require.Equal(t, []Frame{{State: Gone}}, frames)
}

// A signal handler returns to the first byte of a function that nobody has called. Before any other function, the code has no
// name.
func TestRestorers(t *testing.T) {
	n := newNamer(t)
	t.Cleanup(n.Close)
	path := filepath.Join(t.TempDir(), "functions")
	require.NoError(t, os.WriteFile(path, []byte("2000 10 __restore_rt\n3000 10 other\n"), 0o600)) // a perf map is the shortest table
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	id, err := symtab.Identify(f)
	require.NoError(t, err)
	id = symtab.FileID{Dev: id.Dev, Inode: id.Inode, Process: 1}
	require.Equal(t, symtab.Pending, n.store.Request(symbols.Request{ID: id, Open: func() (*os.File, error) { return os.Open(path) }}))
	require.True(t, n.store.Wait(t.Context(), id))
	at := func(address uint64, caller bool) Frame {
		place := procmap.Place{State: procmap.Known, File: &procmap.File{ID: id}, Address: address, Offset: address - 0x1000}
		frame, _ := n.frame(&place, 0, caller)
		return frame
	}
	got := at(0x1fff, true)
	require.Equal(t, "__restore_rt", got.Symbol.Name)
	require.Equal(t, []uint64{0x2000, 0x1000}, []uint64{got.Address, got.Offset})
	require.Equal(t, Outside, at(0x1fff, false).State, "nothing returns there")
	require.Equal(t, Outside, at(0x2fff, true).State)
}

// A file that the store cannot queue for reading must be looked up again.
func TestBusyStore(t *testing.T) {
	n := newNamer(t)
	t.Cleanup(n.Close)
	n.store.Close() // it queues no file from now on
	frame, _ := n.frame(&procmap.Place{State: procmap.Known, File: &procmap.File{}, Address: 0x2000}, 0, false)
	require.Equal(t, Unread, frame.State)
}

// A running program keeps its names when its file gets another mode, name or link. Functions that nobody has requested before
// must also get names.
func TestFileTimeChanges(t *testing.T) {
	n := newNamer(t)
	t.Cleanup(n.Close)
	var st unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/exe", &st))
	p := procmap.Process{PID: uint32(os.Getpid()), ExeInode: st.Ino, Space: 1}
	name := func(function any) string {
		frames := n.ResolveWithin(nil, time.Minute, p, 0, []uint64{uint64(reflect.ValueOf(function).Pointer())})
		require.Equal(t, Named, frames[0].State)
		return frames[0].Symbol.Name
	}
	const pkg = "github.com/ig-otel-profiles/ig-otel-profiles/pkg/names."
	require.Equal(t, pkg+"TestStates", name(TestStates))
	for now := st; now.Ctim == st.Ctim; { // the clock of file systems is coarse
		require.NoError(t, os.Chmod("/proc/self/exe", os.FileMode(st.Mode&0o777)))
		require.NoError(t, unix.Stat("/proc/self/exe", &now))
	}
	require.Equal(t, pkg+"TestIsGoName", name(TestIsGoName))
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

func TestStates(t *testing.T) {
	seen := map[string]bool{}
	for s := range NumStates {
		require.NotEmpty(t, s.String())
		require.NotContains(t, seen, s.String())
		seen[s.String()] = true
		file := s == Unread || s == Outside || s == NoSymbols || s == BadSymbols || s == Replaced || s == Unreadable
		require.Equal(t, file, s.FileOnly(), s)
	}
}

// newNamer returns a Namer that reads files in this process.
func newNamer(t testing.TB) *Namer {
	t.Helper()
	store := symbols.NewStore(symbols.Options{Reader: parse.Here{}})
	t.Cleanup(store.Close)
	return New(Options{Unwatched: true, Store: store})
}
