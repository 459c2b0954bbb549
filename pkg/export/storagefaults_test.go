package export

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
)

// A damaged file must lose only its own message, which is counted.
func TestDamagedFilesCostJustThemselves(t *testing.T) {
	cfg := withStorage(t, "127.0.0.1:1")
	e, _ := open(t, cfg)
	for i := range 8 {
		e.Enqueue(message(t, strconv.Itoa(i), 1000))
	}
	settled(t, e)
	stop(t, e)
	files := storedFiles(t, cfg.Queue.Storage)
	require.Len(t, files, 8)
	change := func(i int, f func([]byte) []byte) {
		data, err := os.ReadFile(files[i])
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(files[i], f(data), 0o600))
	}
	change(0, func([]byte) []byte { return nil })
	change(1, func(b []byte) []byte { return b[:len(b)/2] })
	change(2, func(b []byte) []byte { b[20] ^= 1; return b })       // in the header
	change(3, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }) // in the body
	change(4, func(b []byte) []byte { return append(b, 'x') })
	change(5, func(b []byte) []byte { b[5] = 0; return b }) // this format never existed
	writeFile(t, files[0]+".tmp", []byte("half"))

	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{})
	cfg.Endpoint = r.Addr
	e, logs := open(t, cfg)
	drainAll(t, e)
	s := balanced(t, e)
	require.ElementsMatch(t, []string{"6", "7"}, r.Names())
	require.Equal(t, int64(6), s.CorruptFiles)
	require.Equal(t, int64(30), s.Rows.Recovered, "a header that can be read says how many rows are lost")
	require.Equal(t, int64(20), s.Rows.Delivered)
	require.Equal(t, map[Reason]int64{ReasonCorrupt: 10}, s.Rows.Dropped)
	stop(t, e)
	left, err := os.ReadDir(cfg.Queue.Storage)
	require.NoError(t, err)
	require.Len(t, left, 1, "only the lock")
	require.Contains(t, logs.String(), "5 files")
	require.Contains(t, logs.String(), "wrong checksum of the body")
}

// Messages stored by a later version stay after a rollback. They are not sent, removed or overwritten. When the later version
// runs again, it sends them.
func TestUnknownFormatIsKept(t *testing.T) {
	cfg := withStorage(t, "127.0.0.1:1")
	e, _ := open(t, cfg)
	for i := range 3 {
		e.Enqueue(message(t, strconv.Itoa(i), 1000))
	}
	settled(t, e)
	stop(t, e)
	files := storedFiles(t, cfg.Queue.Storage)
	require.Len(t, files, 3)
	// The first file has an unknown header. The last file has an unknown layout in a known header.
	later, err := os.ReadFile(files[0])
	require.NoError(t, err)
	known := slices.Clone(later)
	later[5] = 3
	writeFile(t, files[0], later)
	future := inLayout(message(t, "layout of the future", 1000), "2.0")
	writeFile(t, files[2], future)

	for range 2 { // a second start finds the same files
		e, logs := open(t, cfg)
		e.Enqueue(message(t, "new", 1000)) // must not take the name of a file that stays
		settled(t, e)
		s := balanced(t, e)
		require.Zero(t, s.CorruptFiles)
		stop(t, e)
		require.Contains(t, logs.String(), "2 files in the storage folder")
		require.Contains(t, logs.String(), "unknown format and are kept")
		require.Contains(t, logs.String(), `otlp_version \"2.0\"`)
		for i, want := range map[int][]byte{0: later, 2: future} {
			got, err := os.ReadFile(files[i])
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}

	// The version that knows the format returns.
	writeFile(t, files[0], known)
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{})
	cfg.Endpoint = r.Addr
	e, _ = open(t, cfg)
	drainAll(t, e)
	require.ElementsMatch(t, []string{"0", "1", "new", "new"}, r.Names())
	require.FileExists(t, files[2])
}

// A message that cannot be stored must be held in memory and sent from there.
func TestStorageThatCannotBeWritten(t *testing.T) {
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{})
	cfg := withStorage(t, r.Addr)
	cfg.Queue.StorageSize = 5000
	e, logs := open(t, cfg)
	e.Enqueue(message(t, "large", 10_000))
	drainAll(t, e)
	require.Equal(t, int64(10), balanced(t, e).Rows.Delivered)
	require.NoError(t, os.RemoveAll(cfg.Queue.Storage))
	e.Enqueue(message(t, "small", 0))
	drainAll(t, e)
	s := balanced(t, e)
	require.Equal(t, int64(20), s.Rows.Delivered)
	require.True(t, s.NotStored)
	require.NoError(t, os.MkdirAll(cfg.Queue.Storage, 0o700)) // the disk works again
	e.Enqueue(message(t, "again", 0))
	drainAll(t, e)
	require.False(t, balanced(t, e).NotStored)
	stop(t, e)
	require.Contains(t, logs.String(), "only in memory")
}

// A disk that hangs must not block callers, and memory must stay within its limit.
func TestStorageThatHangs(t *testing.T) {
	cfg := withStorage(t, "127.0.0.1:1")
	cfg.Queue.Size = 256 << 10
	e, _ := open(t, cfg)
	// Opening a pipe for writing waits for a reader.
	pipe := filepath.Join(cfg.Queue.Storage, fmt.Sprintf("%020d%s%s", 1, ".msg", ".tmp"))
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	for i := range 4_000 {
		e.Enqueue(Message{Body: make([]byte, 1000), Rows: 1})
		if i == 0 {
			require.Eventually(t, func() bool { return inFlight(e) == 1 }, 20*time.Second, time.Millisecond)
		}
	}
	s := balanced(t, e)
	require.LessOrEqual(t, s.QueueBytes, cfg.Queue.Size)
	require.Positive(t, s.Rows.Dropped[ReasonQueueFull])
	e.mu.Lock()
	require.Less(t, len(e.unsaved), 1025+2*int(e.memory.entries)+2)
	e.mu.Unlock()
	f, err := os.Open(pipe)
	require.NoError(t, err)
	settledOrSendable := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.unsaved) == 0 && e.memory.entries <= 1
	}
	require.Eventually(t, settledOrSendable, 20*time.Second, time.Millisecond, "the others are stored once the disk is back")
	require.NoError(t, f.Close())
}
