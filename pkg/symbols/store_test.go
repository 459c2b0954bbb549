package symbols

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/debuginfod"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// onDisk writes a file and returns a Request for it.
func onDisk(t *testing.T, content []byte) Request {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return Request{ID: symtab.IdentifyStat(&st), Path: path, Open: func() (*os.File, error) { return os.Open(path) }}
}

func newStore(t *testing.T, o Options) *Store {
	t.Helper()
	if o.Reader == nil {
		o.Reader = newApart(t)
	}
	s := NewStore(o)
	t.Cleanup(s.Close)
	return s
}

// held returns the number of a Store's files, and their bytes.
func held(s *Store) (files int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries), s.bytes
}

// awaitFetch waits until a file's debug file is no longer being fetched.
func awaitFetch(t *testing.T, s *Store, id symtab.FileID) {
	t.Helper()
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.entries[id].fetched
	}, 10*time.Second, time.Millisecond)
}

// stateAfter requests a file, waits until it was read, and returns the state of a lookup.
func stateAfter(t *testing.T, s *Store, r Request) symtab.State {
	t.Helper()
	s.Request(r)
	require.True(t, s.Wait(t.Context(), r.ID))
	_, state := s.Lookup(r.ID, 0x1000)
	return state
}

// The state of a file without names must be the reason. The file must not be read again.
func TestStoreReasons(t *testing.T) {
	s := newStore(t, Options{Limits: elftest.Small})
	gone := onDisk(t, nil)
	gone.Open = func() (*os.File, error) { return nil, os.ErrNotExist }
	changed := onDisk(t, elftest.Example().Bytes())
	changed.ID.MtimeNS++
	bad := onDisk(t, elftest.Example().Bytes()[:40])
	panics := onDisk(t, nil)
	panics.Open = func() (*os.File, error) { panic("a reader that is wrong") }
	bare := new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 16))
	var many []elftest.TestSymbol
	for i := range elftest.Small.Symbols + 1 {
		many = append(many, elftest.Function("f", 0x1000+uint64(i%16), 1))
	}
	for name, c := range map[string]struct {
		request Request
		want    symtab.State
		err     string
	}{
		"named":      {onDisk(t, elftest.Example().Bytes()), symtab.Named, ""},
		"no symbols": {onDisk(t, bare.Bytes()), symtab.NoSymbols, ""},
		"gone":       {gone, symtab.Gone, "file does not exist"},
		"changed":    {changed, symtab.Gone, "not the one that was mapped"},
		"text":       {onDisk(t, []byte("#!/bin/sh\nexec something\n")), symtab.NotELF, "not an ELF file"},
		"cut":        {bad, symtab.Malformed, "is inconsistent"},
		"panics":     {panics, symtab.Malformed, "a reader that is wrong"},
		"too large":  {onDisk(t, new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 16)).Symbols(".symtab", elf.SHT_SYMTAB, many...).Bytes()), symtab.TooLarge, "more than 4096 symbols"},
	} {
		t.Run(name, func(t *testing.T) {
			opened := 0
			open := c.request.Open
			c.request.Open = func() (*os.File, error) { opened++; return open() }
			require.Equal(t, c.want, stateAfter(t, s, c.request))
			if c.err != "" {
				require.ErrorContains(t, s.LastError(), c.err)
				require.ErrorContains(t, s.LastError(), c.request.Path)
			}
			require.Equal(t, c.want, stateAfter(t, s, c.request), "the second time")
			if c.want != symtab.Gone {
				pass(s, c.request.ID, time.Hour)
				require.Equal(t, c.want, stateAfter(t, s, c.request), "the result is final")
			}
			require.Equal(t, 1, opened)
		})
	}
}

// TestStoreClosesRoots requires that a failed read leaves no descriptor of the file system's root open.
func TestStoreClosesRoots(t *testing.T) {
	s := newStore(t, Options{Limits: elftest.Small})
	r := onDisk(t, elftest.Example().Bytes()[:40])
	dir, err := filepath.EvalSymlinks(filepath.Dir(r.Path))
	require.NoError(t, err)
	r.Root = func() (*os.File, error) { return os.Open(dir) }
	require.Equal(t, symtab.Malformed, stateAfter(t, s, r))
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range open {
		target, _ := os.Readlink("/proc/self/fd/" + fd.Name()) // the descriptor of ReadDir is closed
		require.NotEqual(t, dir, target)
	}
}

// All tables together must stay within the limit, and the most recently used tables must stay.
func TestStoreBytes(t *testing.T) {
	s := newStore(t, Options{Bytes: 100 << 10, Limits: elftest.Small})
	manyNames := func(i int) []byte {
		var all []elftest.TestSymbol
		for j := range 200 {
			all = append(all, elftest.Function(fmt.Sprintf("function%d_%d", i, j), 0x1000+uint64(j), 1))
		}
		return new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x100)).Symbols(".symtab", elf.SHT_SYMTAB, all...).Bytes()
	}
	first := onDisk(t, manyNames(0))
	require.Equal(t, symtab.Named, stateAfter(t, s, first))
	for i := range 100 {
		r := onDisk(t, manyNames(i+1))
		require.Equal(t, symtab.Named, stateAfter(t, s, r))
		_, state := s.Lookup(first.ID, 0x1000)
		require.Equal(t, symtab.Named, state, "it is used all the time")
		_, bytes := held(s)
		require.LessOrEqual(t, bytes, int64(100<<10))
	}
	files, bytes := held(s)
	require.Less(t, files, 50)
	sum := int64(0)
	for _, e := range s.entries {
		sum += e.size
	}
	require.Equal(t, sum, bytes)
	// A table that exceeds the limit must not be kept, and lookups return TooLarge.
	s = newStore(t, Options{Bytes: 2000, Limits: elftest.Small})
	require.Equal(t, symtab.TooLarge, stateAfter(t, s, first))
	// A table that fits only without its entry must not be kept either.
	s = newStore(t, Options{Limits: elftest.Small})
	require.Equal(t, symtab.Named, stateAfter(t, s, first))
	_, bytes = held(s)
	s = newStore(t, Options{Bytes: bytes - entryBytes, Limits: elftest.Small})
	require.Equal(t, symtab.TooLarge, stateAfter(t, s, first))
}

// Lookups and requests must never block, even if a file takes long to read.
func TestStoreBusy(t *testing.T) {
	s := newStore(t, Options{Limits: elftest.Small})
	stuck, began := make(chan struct{}), make(chan struct{})
	r := onDisk(t, elftest.Example().Bytes())
	open := r.Open
	r.Open = func() (*os.File, error) { close(began); <-stuck; return open() }
	require.Equal(t, symtab.Pending, s.Request(r))
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.False(t, s.Wait(ctx, r.ID))
	busy := 0
	for i := range maxQueue + 10 {
		other := Request{ID: symtab.FileID{Inode: uint64(i)}, Open: func() (*os.File, error) { return nil, os.ErrNotExist }}
		if s.Request(other) == symtab.Busy {
			busy++
		}
	}
	require.Equal(t, 10, busy)
	_, state := s.Lookup(r.ID, 0x1000)
	require.Equal(t, symtab.Pending, state)
	close(stuck)
	require.True(t, s.Wait(t.Context(), r.ID, symtab.FileID{Inode: maxQueue - 1}, symtab.FileID{Inode: 1 << 40}))
}

// Closing a Store must end all waits.
func TestStoreClose(t *testing.T) {
	s := NewStore(Options{Reader: parse.Here{}})
	began, stuck := make(chan struct{}), make(chan struct{})
	s.Request(Request{ID: symtab.FileID{Inode: 1}, Open: func() (*os.File, error) { close(began); <-stuck; return nil, os.ErrNotExist }})
	<-began
	s.Request(Request{ID: symtab.FileID{Inode: 2}, Open: func() (*os.File, error) { return nil, os.ErrNotExist }})
	go func() { // while Close waits
		for closed := false; !closed; runtime.Gosched() {
			s.mu.Lock()
			closed = s.closed
			s.mu.Unlock()
		}
		close(stuck)
	}()
	s.Close()
	s.Close()
	require.True(t, s.Wait(t.Context(), symtab.FileID{Inode: 1}, symtab.FileID{Inode: 2}))
	require.Equal(t, symtab.Busy, s.Request(Request{ID: symtab.FileID{Inode: 3}}))
}

// A file must not be forgotten while its debug file is fetched.
func TestStoreKeepsWhatIsFetched(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	s := newStore(t, Options{Limits: elftest.Small, Fetch: func(context.Context, string) (*os.File, error) {
		close(began)
		<-goOn
		return nil, errors.New("no")
	}})
	r := onDisk(t, elftest.WithNote().Bytes())
	stateAfter(t, s, r)
	<-began
	s.forgetOld(time.Now().Add(2 * defaultKeep))
	files, _ := held(s)
	require.Equal(t, 1, files)
	close(goOn)
	awaitFetch(t, s, r.ID)
	s.forgetOld(time.Now().Add(2 * defaultKeep))
	files, _ = held(s)
	require.Zero(t, files)
}

// A file without symbols must later get the symbols of its debug file, which comes from a server.
func TestStoreFetch(t *testing.T) {
	debug := elftest.WithNote().Symbols(".symtab", elf.SHT_SYMTAB, elftest.Function("hidden", 0x1000, 0x10)).Bytes()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, elftest.NoteID) {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(debug)
	}))
	defer server.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client, err := debuginfod.New(debuginfod.Options{URLs: []string{server.URL}, Dir: t.TempDir(), DirBytes: 1 << 20, Timeout: time.Minute, HTTP: transport, Info: func(ctx context.Context, f *os.File) (buildid.Info, time.Duration, error) {
		return Info(ctx, parse.Here{}, f)
	}})
	require.NoError(t, err)
	s := newStore(t, Options{Limits: elftest.Small, Fetch: client.Fetch})
	r := onDisk(t, elftest.WithNote().Symbols(".dynsym", elf.SHT_DYNSYM, elftest.Function("shown", 0x1080, 0x10)).Bytes())
	require.Contains(t, []symtab.State{symtab.Pending, symtab.Named}, stateAfter(t, s, r))
	require.Eventually(t, func() bool { got, _ := s.Lookup(r.ID, 0x1000); return got.Name == "hidden" }, 10*time.Second, time.Millisecond)
	got, _ := s.Lookup(r.ID, 0x1008)
	require.Equal(t, symtab.SourceDebugFile, got.Source)
	got, _ = s.Lookup(r.ID, 0x1088)
	require.Equal(t, "shown", got.Name)
	s.forgetOld(time.Now().Add(2 * defaultKeep))
	_, bytes := held(s)
	require.Zero(t, bytes)

	// If the server has no useful debug file, the file's table must stay unchanged.
	for _, fetch := range []func() (*os.File, error){
		func() (*os.File, error) { return nil, errors.New("no") },
		func() (*os.File, error) { panic("no") },
		r.Open,
	} {
		asked := 0
		failing := newStore(t, Options{Limits: elftest.Small, Fetch: func(context.Context, string) (*os.File, error) { asked++; return fetch() }})
		stateAfter(t, failing, r)
		awaitFetch(t, failing, r.ID)
		require.Equal(t, 1, asked)
		_, state := failing.Lookup(r.ID, 0x1000)
		require.Equal(t, symtab.Outside, state)
	}
}

// The Store must read only the requested functions of a Go program. It reads functions that are requested later, but not from
// another file.
func TestStoreGoFunctions(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(exe, &st))
	all := tableOf(t, exe)
	s := newStore(t, Options{})
	opened, fail := 0, false
	r := Request{ID: symtab.IdentifyStat(&st), Path: exe, Open: func() (*os.File, error) {
		opened++
		if fail {
			return nil, os.ErrNotExist
		}
		return os.Open(exe)
	}}
	ask := func(i int) (symtab.Symbol, symtab.State) {
		addr := all.Golang.Text + uint64(all.Golang.Start[i])
		want, _ := all.Lookup(addr)
		got, state := s.Lookup(r.ID, addr)
		if state == symtab.Unknown {
			r.Address = addr
			require.Equal(t, symtab.Pending, s.Request(r))
			require.True(t, s.Wait(t.Context(), r.ID))
			got, state = s.Lookup(r.ID, addr)
		}
		if state == symtab.Named {
			require.Equal(t, want, got)
		}
		return got, state
	}
	n := len(all.Golang.Start) - 1
	for i := 100; i < n-100; i += n / 20 {
		_, state := ask(i)
		require.Equal(t, symtab.Named, state)
	}
	require.Equal(t, 20, opened)
	_, bytes := held(s)
	require.Less(t, 10*bytes, all.Bytes(), "most functions are not held")
	fail = true
	_, state := ask(50)
	require.Equal(t, symtab.Gone, state, "meanwhile")
	_, state = ask(51)
	require.Equal(t, symtab.Gone, state)
	require.Equal(t, 21, opened, "it is not tried again at once")
	_, state = ask(100)
	require.Equal(t, symtab.Named, state, "what was read stays")

	// Another function is requested while the file is read.
	s, opened, fail = newStore(t, Options{}), 0, false
	asked := make(chan struct{})
	open := r.Open
	r.Open = func() (*os.File, error) { <-asked; return open() }
	for _, i := range []int{200, 300} {
		r.Address = all.Golang.Text + uint64(all.Golang.Start[i])
		require.Equal(t, symtab.Pending, s.Request(r))
	}
	close(asked)
	require.True(t, s.Wait(t.Context(), r.ID))
	for _, i := range []int{200, 300} {
		_, state = ask(i)
		require.Equal(t, symtab.Named, state)
	}
	require.Equal(t, 1, opened)

	// One request is enough for all functions that were looked up.
	r.Address = 0
	for i := range 2000 {
		s.Lookup(r.ID, all.Golang.Text+uint64(all.Golang.Start[i]))
	}
	require.Equal(t, symtab.Pending, s.Request(r))
	require.True(t, s.Wait(t.Context(), r.ID))
	for i := range 2000 {
		_, state = ask(i)
		require.Equal(t, symtab.Named, state)
	}
	require.Equal(t, 2, opened)
}

// A failed read must also count, so callers do not wait for the next read.
func TestStoreReadSince(t *testing.T) {
	s, id, before := newStore(t, Options{}), symtab.FileID{Inode: 1, Process: 1}, time.Now()
	require.False(t, s.ReadSince(id, before))
	require.Equal(t, symtab.Pending, s.Request(Request{ID: id, Open: func() (*os.File, error) { return nil, os.ErrNotExist }}))
	require.True(t, s.Wait(t.Context(), id))
	require.True(t, s.ReadSince(id, before))
	require.False(t, s.ReadSince(id, time.Now()))
}

// If lines do not fit, a file must lose its lines but not its names.
func TestStoreLinesTooLarge(t *testing.T) {
	r, whole := onDisk(t, withLines()), newStore(t, Options{Limits: elftest.Small, Lines: true})
	require.Equal(t, symtab.Named, stateAfter(t, whole, r))
	with := whole.entries[r.ID].table
	require.NotNil(t, with.Lines)
	for bytes, want := range map[int64]string{with.Bytes() + entryBytes: "/src/main.c", with.Bytes() + entryBytes - 1: ""} {
		s := newStore(t, Options{Bytes: bytes, Limits: elftest.Small, Lines: true})
		e := &entry{id: symtab.FileID{Inode: 1}, queued: true, done: make(chan struct{})}
		s.finish(e, with, nil, 0, 0)
		require.Equal(t, symtab.Named, e.state)
		got, _ := e.table.Lookup(0x1000)
		require.Equal(t, "outer", got.Name)
		require.Equal(t, want, got.File)
	}
	require.NotNil(t, with.Lines, "a table does not change")
}
