package symbols

import (
	"bytes"
	"context"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// pass simulates that d has passed since a file's read failed.
func pass(s *Store, id symtab.FileID, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[id]; !e.retry.IsZero() {
		e.retry = e.retry.Add(-d)
	}
}

// The cause of a failed read can be temporary. After a wait, the next request must read the file with its own Open. Each
// failure doubles the wait, up to a limit.
func TestStoreFailedReadIsNotForEver(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want symtab.State
	}{"its process has ended": {os.ErrNotExist, symtab.Gone}, "no file descriptor was left": {syscall.EMFILE, symtab.Unreadable}} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Options{Limits: elftest.Small})
			good := onDisk(t, elftest.Example().Bytes())
			bad := good
			opened := 0
			bad.Open = func() (*os.File, error) { opened++; return nil, c.err }
			for i, wait := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 8 * time.Minute} {
				require.Equal(t, symtab.Pending, s.Request(bad))
				require.Equal(t, c.want, stateAfter(t, s, bad))
				require.Equal(t, i+1, opened)
				pass(s, good.ID, wait-10*time.Second)
				require.Equal(t, c.want, stateAfter(t, s, bad), "not yet")
				require.Equal(t, i+1, opened)
				pass(s, good.ID, 10*time.Second)
				_, state := s.Lookup(good.ID, 0x1000)
				require.Equal(t, symtab.Unknown, state, "whoever looks up has to request it")
			}
			require.Equal(t, symtab.Named, stateAfter(t, s, good))
			s.mu.Lock()
			defer s.mu.Unlock()
			require.Len(t, s.entries, 1)
			e := s.entries[good.ID]
			require.Zero(t, e.retry)
			e.failed(c.err)
			require.Equal(t, e.read.Add(30*time.Second), e.retry, "after a success, the wait is short again")
		})
	}
}

// A file must be pending while it is read again.
func TestStoreAgainIsPending(t *testing.T) {
	s := newStore(t, Options{Limits: elftest.Small})
	r := onDisk(t, elftest.Example().Bytes())
	open := r.Open
	r.Open = func() (*os.File, error) { return nil, os.ErrNotExist }
	require.Equal(t, symtab.Gone, stateAfter(t, s, r))
	pass(s, r.ID, time.Hour)
	began, stuck := make(chan struct{}), make(chan struct{})
	r.Open = func() (*os.File, error) { close(began); <-stuck; return open() }
	require.Equal(t, symtab.Pending, s.Request(r))
	<-began
	_, state := s.Lookup(r.ID, 0x1000)
	require.Equal(t, symtab.Pending, state)
	require.Equal(t, symtab.Pending, s.Request(r))
	close(stuck)
	require.True(t, s.Wait(t.Context(), r.ID))
	_, state = s.Lookup(r.ID, 0x1000)
	require.Equal(t, symtab.Named, state)
}

// A file that was not read in time must not count as too large, because the machine can be faster later.
func TestStoreTooSlow(t *testing.T) {
	s := newStore(t, Options{Limits: elftest.Small, Timeout: time.Nanosecond})
	r := onDisk(t, elftest.Example().Bytes())
	require.Equal(t, symtab.Unreadable, stateAfter(t, s, r))
	require.ErrorContains(t, s.LastError(), "takes too long")
	pass(s, r.ID, time.Hour)
	require.Equal(t, symtab.Pending, s.Request(r))
	require.True(t, s.Wait(t.Context(), r.ID))
	require.Equal(t, symtab.Unreadable, stateOf(context.DeadlineExceeded))
}

// Renaming, linking or changing the mode of a running file changes only its ctime, so it must still count as the mapped file. A
// file whose content has changed must not, even with the same size and time.
func TestStoreChangedTimeOnly(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	content, err := os.ReadFile(exe)
	require.NoError(t, err)
	all := tableOf(t, exe)
	addr := func(i int) uint64 { return all.Golang.Text + uint64(all.Golang.Start[i]) }
	for name, c := range map[string]struct {
		change func(t *testing.T, path string)
		want   symtab.State
	}{
		"renamed": {func(t *testing.T, path string) {
			require.NoError(t, os.Rename(path, path+".old"))
			require.NoError(t, os.Symlink(path+".old", path)) // so that the test's Open still finds the same file, like a mapping
		}, symtab.Named},
		"mode":   {func(t *testing.T, path string) { require.NoError(t, os.Chmod(path, 0o755)) }, symtab.Named},
		"linked": {func(t *testing.T, path string) { require.NoError(t, os.Link(path, path+".link")) }, symtab.Named},
		"written to": {func(t *testing.T, path string) {
			st, err := os.Stat(path)
			require.NoError(t, err)
			require.NoError(t, os.Chtimes(path, time.Time{}, st.ModTime().Add(time.Second)))
		}, symtab.Gone},
		"its build ID changed, and its time set back": {func(t *testing.T, path string) {
			st, err := os.Stat(path)
			require.NoError(t, err)
			other := slices.Clone(content)
			info, err := parse.ReadInfo(t.Context(), bytes.NewReader(content), int64(len(content)))
			require.NoError(t, err)
			other[bytes.Index(other, []byte(info.Go))]++
			require.NoError(t, os.WriteFile(path, other, 0o600))
			require.NoError(t, os.Chtimes(path, st.ModTime(), st.ModTime()))
		}, symtab.Gone},
		"its end changed, and its time set back": {func(t *testing.T, path string) {
			st, err := os.Stat(path)
			require.NoError(t, err)
			other := slices.Clone(content)
			other[len(other)-1]++
			require.NoError(t, os.WriteFile(path, other, 0o600))
			require.NoError(t, os.Chtimes(path, st.ModTime(), st.ModTime()))
		}, symtab.Gone},
	} {
		t.Run(name, func(t *testing.T) {
			r := onDisk(t, content)
			info, err := parse.ReadInfo(t.Context(), bytes.NewReader(content), int64(len(content)))
			require.NoError(t, err)
			r.Info, r.Address = info, addr(100)
			s := newStore(t, Options{})
			s.Request(r)
			require.True(t, s.Wait(t.Context(), r.ID))
			_, state := s.Lookup(r.ID, addr(100))
			require.Equal(t, symtab.Named, state)
			c.change(t, r.Path)
			for changed := r.ID; changed.CtimeNS == r.ID.CtimeNS; { // file systems have a coarse clock
				require.NoError(t, os.Chmod(r.Path, 0o755))
				var st unix.Stat_t
				require.NoError(t, unix.Stat(r.Path, &st))
				changed = symtab.IdentifyStat(&st)
			}
			look := func(s *Store, r Request) symtab.State {
				s.Request(r)
				require.True(t, s.Wait(t.Context(), r.ID))
				_, state := s.Lookup(r.ID, r.Address)
				return state
			}
			_, state = s.Lookup(r.ID, addr(200))
			require.Equal(t, symtab.Unknown, state, "that function was not read yet")
			r.Address = addr(200)
			require.Equal(t, c.want, look(s, r), "a function more")
			require.Equal(t, c.want, look(newStore(t, Options{}), r), "all of it")
			r.Info = buildid.Info{}
			require.Equal(t, symtab.Gone, look(newStore(t, Options{}), r), "nobody knows what was in it")
		})
	}
}
