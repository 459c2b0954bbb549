package spool

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// Open must read only the headers of stored messages, not the bodies.
func TestHeadersAreReadAlone(t *testing.T) {
	m := wire.Message{Body: make([]byte, 100_000), Rows: 10, Owner: "ns/pod"}
	head := encodeHead(m)
	r := bytes.NewReader(append(slices.Clone(head), m.Body...))
	got, err := readHeadFrom(r)
	require.NoError(t, err)
	require.Equal(t, "ns/pod", got.msg.Owner)
	require.Equal(t, len(head), got.len)
	require.Equal(t, int64(len(m.Body)), got.body)
	require.Equal(t, len(m.Body), r.Len(), "nothing behind the header is read")
	for n := range len(head) {
		_, err := readHeadFrom(bytes.NewReader(head[:n]))
		require.ErrorIs(t, err, ErrCorrupt)
	}
}

// Adopted messages of an exited process must get higher numbers than the folder's messages. The numbers can have gaps.
func TestAdoptedMessagesReplaceNone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "queue")
	for _, had := range []struct {
		dir, owner string
		seqs       []uint64
	}{{dir, "own", []uint64{3}}, {filepath.Join(dir, "2"), "left", []uint64{1, 2}}} {
		s, _, err := Open(had.dir, wire.Today)
		require.NoError(t, err)
		for _, seq := range had.seqs {
			require.NoError(t, s.Write(seq, wire.Message{Owner: had.owner}))
		}
		require.NoError(t, s.Close())
	}
	s, found, err := Open(dir, wire.Today)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	var owners []string
	for _, m := range found.Messages {
		owners = append(owners, m.Message.Owner)
	}
	require.Equal(t, []string{"own", "left", "left"}, owners)
	require.EqualValues(t, 5, found.Last)
}

// A file that cannot be read must not count as damaged. It stays until an exporter can read it.
func TestStoredFileThatCannotBeRead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("taking a file from oneself needs root")
	}
	dir := filepath.Join(t.TempDir(), "queue")
	s, _, err := Open(dir, wire.Today)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	m := wire.Message{Body: []byte("body"), Rows: 10}
	for seq := range uint64(3) {
		require.NoError(t, s.Write(seq, m))
	}
	for _, path := range []string{filepath.Dir(filepath.Dir(dir)), filepath.Dir(dir), dir, s.path(0), s.path(1)} {
		require.NoError(t, os.Chown(path, 65534, 65534))
	}
	// The folder and one of the files have different owners.
	done := make(chan Inventory)
	go func() {
		runtime.LockOSThread() // not unlocked, so the thread ends with the goroutine
		if err := unix.Setfsuid(65534); err != nil {
			t.Error(err)
		}
		inv, err := s.scan()
		if err != nil {
			t.Error(err)
		}
		done <- inv
	}()
	inv := <-done
	require.Len(t, inv.Messages, 2)
	require.Zero(t, inv.Damaged)
	require.Equal(t, int64(1), inv.Unreadable)
	require.ErrorIs(t, inv.ReadErr, os.ErrPermission)
	require.EqualValues(t, 2, inv.Last)
	require.FileExists(t, s.path(2))
}

// If a file stays, no other message must get its number, even if a later version wrote the file. A damaged file's number is
// free.
func TestLastOfUnknownFormat(t *testing.T) {
	s, _, err := Open(filepath.Join(t.TempDir(), "queue"), wire.Today)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.Write(1, wire.Message{}))
	for seq, content := range map[uint64]string{2: storeMagic + "\xff\xff\x00\x00", 3: "damaged"} {
		require.NoError(t, os.WriteFile(s.path(seq), []byte(content), 0o600))
	}
	inv, err := s.scan()
	require.NoError(t, err)
	require.EqualValues(t, 1, inv.Unknown)
	require.EqualValues(t, 1, inv.Damaged)
	require.EqualValues(t, 2, inv.Last)
}
