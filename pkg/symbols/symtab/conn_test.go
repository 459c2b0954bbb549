package symtab

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The other end must decode bytes regardless of answers about files, and vice versa.
func TestAskBytes(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	here, err := NewConn(os.NewFile(uintptr(fds[0]), "here"))
	require.NoError(t, err)
	defer here.Close()
	there, err := NewConn(os.NewFile(uintptr(fds[1]), "there"))
	require.NoError(t, err)
	defer there.Close()
	done := make(chan error, 1)
	go func() { err := there.Serve(64<<20, nil, bytes.ToUpper); there.Close(); done <- err }()
	for _, text := range []string{"ab", "", strings.Repeat("c", maxAnswer)} {
		answer, _, err := here.Ask(t.Context(), []byte(text))
		require.NoError(t, err)
		require.Equal(t, strings.ToUpper(text), string(answer))
	}
	_, _, err = here.Ask(t.Context(), make([]byte, maxBytes+1))
	require.ErrorIs(t, err, ErrReader, "the other end ends")
	require.ErrorIs(t, <-done, ErrCodec)
}
