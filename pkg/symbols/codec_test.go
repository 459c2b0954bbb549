package symbols

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// conns returns both ends of a socket.
func conns(t testing.TB) (here, there *symtab.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	here, err = symtab.NewConn(os.NewFile(uintptr(fds[0]), "here"))
	require.NoError(t, err)
	there, err = symtab.NewConn(os.NewFile(uintptr(fds[1]), "there"))
	require.NoError(t, err)
	t.Cleanup(func() { here.Close(); there.Close() })
	return here, there
}

// apart is a Reader that uses the process at the other end of a socket.
type apart struct {
	c    *symtab.Conn
	done chan error
}

func newApart(t testing.TB) *apart {
	here, there := conns(t)
	a := &apart{here, make(chan error, 1)}
	go func() { a.done <- parse.Here{}.Serve(there, 64<<20, nil) }()
	return a
}

func (a *apart) Read(ctx context.Context, t *symtab.Task) (*symtab.Table, time.Duration, error) {
	return a.c.Exchange(ctx, t)
}

func (a *apart) Wait(context.Context) {}

func (a *apart) Close() {
	a.c.Close()
	select {
	case <-a.done:
	case <-time.After(time.Minute):
		panic("it does not end")
	}
}

// The other process must only get debug files that the finder would open.
func TestAskForDebugFile(t *testing.T) {
	dir := t.TempDir()
	id := "0123456789abcdef0123456789abcdef01234567"
	debug := filepath.Join(dir, "usr/lib/debug/.build-id", id[:2], id[2:]+".debug")
	require.NoError(t, os.MkdirAll(filepath.Dir(debug), 0o700))
	require.NoError(t, os.WriteFile(debug, []byte("content"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("content"), 0o600))
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	find := &finder{path: "/bin/program", roots: []root{{fd, true}}}
	defer find.close()
	here, there := conns(t)
	go func() {
		for {
			in := symtab.Coder{R: here.R, Left: symtab.Slack}
			answer := uint8(0)
			if symtab.Number(&in, &answer, symtab.NumAnswers); in.Err != nil || here.AnswerAsk(&in, find) != nil {
				return
			}
		}
	}()
	for key, want := range map[symtab.DebugKey]bool{
		{ID: id}:                      true,
		{ID: "0123"}:                  false,
		{ID: "../../../../../secret"}: false,
		{Link: "../../../../secret"}:  false,
		{Link: ".."}:                  false,
		{Link: "secret"}:              false,
		{Link: "a\x00b"}:              false,
		{}:                            false,
		{ID: id, Link: "secret"}:      false,
	} {
		f, size, _ := symtab.Asked{C: there}.Candidate(key, 0)
		require.Equal(t, want, f != nil, "%+v", key)
		if want {
			b, err := io.ReadAll(f)
			require.NoError(t, err)
			require.EqualValues(t, len(b), size)
			f.Close()
			f, _, last := symtab.Asked{C: there}.Candidate(key, 1)
			require.Nil(t, f)
			require.True(t, last)
		}
	}
}
