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

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
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

	elsewhere := New(Options{HostRoot: t.TempDir(), Unwatched: true, Tables: n.tables})
	t.Cleanup(elsewhere.Close)
	p.PID = uint32(os.Getpid())
	require.Equal(t, Gone, elsewhere.ResolveWithin(nil, time.Minute, p, 0, addrs[:1])[0].State, "the host is below another folder")
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

// The reason why code has no name must be the reason that procmap or the store gave.
func TestReasons(t *testing.T) {
	n := newNamer(t)
	t.Cleanup(n.Close)
	failed := func(inode uint64, err error) procmap.Place {
		id := symtab.FileID{Inode: inode}
		n.store.Request(symbols.Request{ID: id, Open: func() (*os.File, error) { return nil, err }})
		require.True(t, n.store.Wait(t.Context(), id))
		return procmap.Place{State: procmap.Known, File: &procmap.File{ID: id}}
	}
	for _, tt := range []struct {
		place procmap.Place
		want  State
	}{
		{procmap.Place{State: procmap.Pending}, Pending},
		{procmap.Place{State: procmap.Unreadable, File: &procmap.File{Path: "/a"}}, Unreadable},
		{procmap.Place{State: procmap.Gone}, Gone},
		{procmap.Place{State: procmap.Unmapped}, NotCode},
		{procmap.Place{State: procmap.Generated}, Generated},
		{failed(1, os.ErrNotExist), Replaced},
		{failed(2, symtab.ErrNoSymbols), NoSymbols},
		{failed(3, os.ErrPermission), BadSymbols},
	} {
		frame, grows := n.frame(&tt.place, 1, false)
		require.Equal(t, tt.want, frame.State)
		require.Equal(t, tt.place.File, frame.File)
		require.False(t, grows)
	}
	n.store.Close() // it queues no file from now on
	frame, _ := n.frame(&procmap.Place{State: procmap.Known, File: &procmap.File{}, Address: 0x2000}, 0, false)
	require.Equal(t, Unread, frame.State, "it is looked up again")
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

// A function is in Go if Go's own table names it, or if the file is a Go program.
func TestGo(t *testing.T) {
	golang := &procmap.File{Info: buildid.Info{Go: "id"}}
	for _, tt := range []struct {
		frame Frame
		name  string
		want  bool
	}{
		{Frame{Symbol: symtab.Symbol{Name: "main.f", Source: symtab.SourcePclntab}}, "main.f", true},
		{Frame{Symbol: symtab.Symbol{Name: "memeqbody", Source: symtab.SourcePclntab}}, "memeqbody", false},
		{Frame{Symbol: symtab.Symbol{Name: "main.f", Source: symtab.SourcePclntab}}, "main.inlined", false},
		{Frame{Symbol: symtab.Symbol{Name: "main.f"}}, "main.f", false},
		{Frame{Symbol: symtab.Symbol{Name: "main.f"}, File: &procmap.File{}}, "main.f", false},
		{Frame{Symbol: symtab.Symbol{Name: "main.f"}, File: golang}, "main.f", true},
		{Frame{Symbol: symtab.Symbol{Name: "puts"}, File: golang}, "puts", false},
	} {
		require.Equal(t, tt.want, tt.frame.Go(tt.name), "%s in %+v", tt.name, tt.frame)
	}
}

func TestIsGoName(t *testing.T) {
	for name, want := range map[string]bool{
		"main.work": true, "main.main.func1": true, "example.com/a.b/pkg.(*T).Method": true, "runtime.mallocgc": true,
		"main.f[go.shape.struct { A example.com/x.T }]": true, "type:.eq.main.T": true,
		"work": false, "memeqbody": false, "": false, "f.cold": false, "f.isra.0": false, "f.constprop.0.isra.1": false, "f.part.0": false, "f.llvm.12": false,
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
	return New(Options{Unwatched: true, Tables: symbols.NewShared(func() symbols.Options { return symbols.Options{Reader: parse.Here{}} })})
}
