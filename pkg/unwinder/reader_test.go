package unwinder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// The test's own executable also replaces the process that reads files. The memory limit sets its role.
const (
	readWell    = 256<<20 + iota
	readGarbage // writes invalid answers
	readCulprit // exits on files of a certain size
	readSilent  // never answers
)

// culprit is the size in bytes of a file that ends the process.
const culprit = 4711

// playReader acts as the reading process. It returns if this process is not a reader.
func playReader() {
	at := slices.Index(os.Args, "-memory")
	if at < 0 || !slices.Contains(os.Args, "-read") {
		return
	}
	memory, _ := strconv.ParseInt(os.Args[at+1], 10, 64)
	switch memory {
	case readGarbage:
		_, _ = os.NewFile(3, "socket").Write(bytes.Repeat([]byte{0xff}, 1<<10))
		time.Sleep(time.Hour)
	case readSilent:
		time.Sleep(time.Hour)
	}
	conn, err := symtab.NewConn(os.NewFile(3, "socket"))
	if err == nil {
		err = conn.Serve(readWell, func(ctx context.Context, t *symtab.Task) (*symtab.Table, error) {
			if memory == readCulprit && t.Size == culprit {
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			}
			table, _, err := parse.Here{}.Read(ctx, t)
			return table, err
		}, decodeTwice)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func newTestReader(memory uint64) (*Reader, *logged) {
	l := &logged{}
	r := NewReader(l, nil)
	r.path, r.memory, r.firstBackoff = os.Executable, memory, 10*time.Millisecond
	return r, l
}

// fileRequest returns a request for a file.
func fileRequest(t *testing.T, path string) symbols.Request {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	id, err := symtab.Identify(f)
	require.NoError(t, err)
	return symbols.Request{ID: id, Path: path, Open: func() (*os.File, error) { return os.Open(path) }}
}

// stateOf returns the state of a file after it was read.
func stateOf(t *testing.T, s *symbols.Store, r symbols.Request) symtab.State {
	t.Helper()
	s.Request(r)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.True(t, s.Wait(ctx, r.ID))
	return s.Request(r)
}

// ownFile requests this test's executable, a Go program.
func ownFile(t *testing.T) symbols.Request {
	path, err := os.Executable()
	require.NoError(t, err)
	return fileRequest(t, path)
}

func culpritFile(t *testing.T) symbols.Request {
	path := filepath.Join(t.TempDir(), "culprit")
	require.NoError(t, os.WriteFile(path, make([]byte, culprit), 0o600))
	return fileRequest(t, path)
}

// TestReader checks that names come from another process, which exits when it is idle and is started again.
func TestReader(t *testing.T) {
	r, l := newTestReader(readWell)
	s := symbols.NewStore(symbols.Options{Reader: r})
	defer s.Close()
	require.Equal(t, symtab.Named, stateOf(t, s, ownFile(t)))
	first := r.run.cmd.Process.Pid
	require.NotEqual(t, os.Getpid(), first)
	r.rest()
	require.Nil(t, r.run)
	require.Equal(t, symtab.NotELF, stateOf(t, s, culpritFile(t)), "this program reads it")
	require.NotEqual(t, first, r.run.cmd.Process.Pid)
	require.NotContains(t, l.String(), "warning")
}

// TestReaderCulprit checks that a file is skipped after it crashed the process twice, and that other files are still read.
func TestReaderCulprit(t *testing.T) {
	r, l := newTestReader(readCulprit)
	s := symbols.NewStore(symbols.Options{Reader: r})
	defer s.Close()
	bad := culpritFile(t)
	for i, want := range []symtab.State{symtab.Unreadable, symtab.Unreadable, symtab.Malformed} {
		other := symbols.NewStore(symbols.Options{Reader: unclosed{r}}) // this Store has not tried it recently
		require.Equal(t, want, stateOf(t, other, bad), i)
		require.Equal(t, want == symtab.Unreadable, errors.Is(other.LastError(), symtab.ErrReader))
		other.Close()
	}
	require.Contains(t, l.String(), "skipped from now on")
	require.Contains(t, l.String(), "SIGKILL")
	require.Equal(t, symtab.Named, stateOf(t, s, ownFile(t)))
}

// TestReaderEnds checks that each kind of run logs which data is missing during a restart, and that its CPU time is charged.
func TestReaderEnds(t *testing.T) {
	r, l := newTestReader(readCulprit)
	defer r.Close()
	bad := culpritFile(t)
	for _, c := range []struct {
		runs *runs
		task symtab.Task
		want string
	}{
		{r.runs, symtab.Task{}, "until then, no names are read"},
		{r.facts, symtab.Task{Kind: symtab.ReadFact}, "until then, no build IDs are read"},
		{r.lines, symtab.Task{Kind: symtab.ReadLines}, "until then, no source lines are read"},
	} {
		c.runs.path, c.runs.memory = os.Executable, readCulprit
		f, err := bad.Open()
		require.NoError(t, err)
		defer f.Close()
		c.task.ID, c.task.Opened, c.task.Size = bad.ID, f, bad.ID.Size
		_, used, err := r.Read(t.Context(), &c.task)
		require.ErrorIs(t, err, symtab.ErrReader)
		require.Contains(t, l.String(), c.want)
		require.Positive(t, used)
	}
}

// unclosed is a Reader that belongs to another Store.
type unclosed struct{ symtab.Reader }

func (unclosed) Close() {}

// TestReaderKilled checks that killing an idle process loses no names.
func TestReaderKilled(t *testing.T) {
	r, l := newTestReader(readWell)
	s := symbols.NewStore(symbols.Options{Reader: r})
	defer s.Close()
	require.Equal(t, symtab.NotELF, stateOf(t, s, culpritFile(t)))
	run := r.run
	require.NoError(t, run.cmd.Process.Kill())
	<-run.ended
	require.Equal(t, symtab.Named, stateOf(t, s, ownFile(t)))
	require.Contains(t, l.String(), "SIGKILL")
}

// TestReaderWrong checks that an invalid answer is refused, and that a process that does not answer is ended.
func TestReaderWrong(t *testing.T) {
	t.Parallel() // an answer may be two seconds late
	for _, role := range []uint64{readGarbage, readSilent} {
		r, l := newTestReader(role)
		s := symbols.NewStore(symbols.Options{Reader: r, Timeout: 100 * time.Millisecond})
		require.Equal(t, symtab.Unreadable, stateOf(t, s, ownFile(t)))
		require.ErrorIs(t, s.LastError(), symtab.ErrReader)
		require.Contains(t, l.String(), "restarting the file reader")
		s.Close()
	}
}

// TestReaderMissing checks that files have no names without the unwinder, and that this is logged once with the remedy.
func TestReaderMissing(t *testing.T) {
	r, l := newTestReader(readWell)
	r.path = find
	s := symbols.NewStore(symbols.Options{Reader: r})
	defer s.Close()
	require.Equal(t, symtab.Unreadable, stateOf(t, s, ownFile(t)))
	require.Equal(t, symtab.Unreadable, stateOf(t, s, culpritFile(t)))
	require.Equal(t, 1, len(l.lines), l)
	require.Contains(t, l.String(), "make build does so")
}

// decodeTwice acts as the decoder. Certain bytes make it exit or panic.
func decodeTwice(b []byte) []byte {
	switch string(b) {
	case "die":
		os.Exit(1)
	case "panic":
		panic("by the bytes")
	}
	return append(bytes.Clone(b), b...)
}

// TestAsk checks that data of a process is decoded in the reader, and that a process whose data ends the reader twice is
// skipped.
func TestAsk(t *testing.T) {
	r, l := newTestReader(readWell)
	defer r.Close()
	ask := func(pid uint32, text string) (string, error) {
		r.Wait(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b, _, err := r.Ask(ctx, pid, 1, []byte(text))
		return string(b), err
	}
	for _, c := range []struct{ text, want string }{{"ab", "abab"}, {"panic", ""}, {"cd", "cdcd"}} {
		got, err := ask(1, c.text)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	for range 2 {
		_, err := ask(2, "die")
		require.ErrorIs(t, err, symtab.ErrReader)
	}
	_, err := ask(2, "ab")
	require.ErrorIs(t, err, symtab.ErrMalformed)
	got, err := ask(1, "ab")
	require.NoError(t, err)
	require.Equal(t, "abab", got)
	require.Contains(t, l.String(), "skipped from now on")
	_, err = ask(1, string(make([]byte, 200<<10)))
	require.Error(t, err, "more than it takes")
}
