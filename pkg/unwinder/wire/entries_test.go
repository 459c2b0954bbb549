package wire

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func socketpair(t *testing.T) (ours, theirs int) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(ends[0]) })
	return ends[0], ends[1]
}

// descriptors returns the number of open descriptors of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(open)
}

func TestEntries(t *testing.T) {
	ours, theirs := socketpair(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	require.NoError(t, SendEntries(theirs, Entries{
		Descriptors: map[ChainKind]int{ChainPerfEvent: int(r.Fd()), ChainKprobe: int(w.Fd())},
		Refused:     map[ChainKind]string{ChainTracepoint: "line 1\nraw_tp is well", ChainRawTracepoint: strings.Repeat("x", 1000)},
	}))
	sent, err := ReceiveEntries(ours)
	require.NoError(t, err)
	got := sent.Descriptors
	require.Len(t, got, 2)
	require.Equal(t, map[ChainKind]string{ChainTracepoint: "line 1\uFFFDraw_tp is well", ChainRawTracepoint: strings.Repeat("x", maxRefused)}, sent.Refused)
	// Each descriptor arrives under its own kind.
	kprobe, perf := os.NewFile(uintptr(got[ChainKprobe]), ""), os.NewFile(uintptr(got[ChainPerfEvent]), "")
	_, err = kprobe.WriteString("x")
	require.NoError(t, err)
	buf := make([]byte, 1)
	_, err = perf.Read(buf)
	require.NoError(t, err)
	require.NoError(t, kprobe.Close())
	require.NoError(t, perf.Close())
	require.NoError(t, unix.Close(theirs))
	_, err = ReceiveEntries(ours)
	require.ErrorIs(t, err, io.EOF)
}

func TestAskedChains(t *testing.T) {
	ours, theirs := socketpair(t)
	require.NoError(t, AskChains(ours, []ChainKind{ChainRawTracepoint, ChainOtelPerf}))
	kinds, err := ReceiveAsked(theirs)
	require.NoError(t, err)
	require.Equal(t, []ChainKind{ChainRawTracepoint, ChainOtelPerf}, kinds)
	require.NoError(t, unix.Sendmsg(ours, []byte("chains 2 perf"), nil, nil, 0))
	_, err = ReceiveAsked(theirs)
	require.ErrorIs(t, err, ErrProtocol)
	require.NoError(t, unix.Shutdown(ours, unix.SHUT_RDWR))
	_, err = ReceiveAsked(theirs)
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, unix.Close(theirs))
}

// TestEntriesOfSomebodyElse checks that no descriptor stays open, whatever a hostile sender sends.
func TestEntriesOfSomebodyElse(t *testing.T) {
	f, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer f.Close()
	fd := int(f.Fd())
	for text, rights := range map[string][]int{
		"":                             {fd},
		"entries 1 kprobe":             {fd},
		"entries 2 kprobe":             nil,
		"entries 2 kprobe raw_tp":      {fd},
		"entries 2 kprobe kprobe":      {fd, fd},
		"entries 2 uprobe":             {fd},
		"entries 2\nkprobe":            {fd},
		"entries 2":                    {fd},
		"entries 2 kprobe raw_tp perf": {fd, fd, fd, fd, fd, fd, fd, fd, fd},
		"entries 2 perf" + string(make([]byte, maxEntries)): {fd},
	} {
		ours, theirs := socketpair(t)
		before := descriptors(t)
		require.NoError(t, unix.Sendmsg(theirs, []byte(text), unix.UnixRights(rights...), nil, 0))
		_, err := ReceiveEntries(ours)
		require.ErrorIs(t, err, ErrProtocol, text)
		require.Equal(t, before, descriptors(t), text)
		require.NoError(t, unix.Close(theirs))
	}
}
