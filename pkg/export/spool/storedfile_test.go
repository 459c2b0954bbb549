package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

func TestStoredRoundTrip(t *testing.T) {
	s, _, err := Open(filepath.Join(t.TempDir(), "q"), wire.Today)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	now := time.Unix(0, time.Now().UnixNano())
	for i, m := range []wire.Message{
		{},
		{Body: []byte("body"), Rows: 1, Samples: 2, Profiles: 3, Start: now, End: now.Add(time.Second), Owner: "ns/pod"},
		{Body: make([]byte, 1<<20), Owner: strings.Repeat("o", 100_000)},
	} {
		require.NoError(t, s.Write(uint64(i), m))
		head, err := s.readHead(uint64(i))
		require.NoError(t, err)
		require.Equal(t, int64(len(m.Body)), head.Size)
		body, err := s.Read(uint64(i))
		require.NoError(t, err)
		require.True(t, bytes.Equal(m.Body, body))
		m.Owner = m.Owner[:min(len(m.Owner), maxOwner)]
		m.Body = nil
		require.Equal(t, m, head.Message)
	}
}

// storedSeeds adds files that a folder can contain.
func storedSeeds(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte(storeMagic))
	f.Add(encodeHead(wire.Message{Rows: 1, Owner: "a"}))
	f.Add(resealed(append(encodeHead(wire.Message{Rows: 1, Body: []byte("body")}), "body...."...)))
	f.Add(append(encodeHead(wire.Message{Rows: -1}), 0, 0, 0, 0))
	longer := append(encodeHead(wire.Message{}), 0, 0, 0, 0)
	longer[storePrefix+storeFixed]++ // the layout is longer than the rest
	f.Add(resealed(longer))
}

// resealed returns data with valid checksums at the places that its lengths determine. So a fuzzer can pass the checksum tests.
func resealed(data []byte) []byte {
	data = slices.Clone(data)
	if len(data) < storePrefix {
		return data
	}
	end := storePrefix + int(binary.BigEndian.Uint16(data[len(storeMagic)+2:]))
	if len(data) < end+8 {
		return data
	}
	binary.BigEndian.PutUint32(data[end:], crc32.Checksum(data[:end], castagnoli))
	body := data[end+4 : len(data)-4]
	binary.BigEndian.PutUint32(data[len(data)-4:], crc32.Checksum(body, castagnoli))
	return data
}

// FuzzStorage reads any bytes as a stored message. The result must be a message that Write would write, a corrupt file, or a
// file of a later version.
func FuzzStorage(f *testing.F) {
	storedSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, data := range [][]byte{data, resealed(data)} {
			head, body, err := readRecord(bytes.NewReader(data))
			if err != nil {
				require.True(t, errors.Is(err, ErrCorrupt) || errors.Is(err, errUnknownFormat), err)
				continue
			}
			m := head.msg
			m.Body = body
			if binary.BigEndian.Uint16(data[len(storeMagic):]) != storeVersion || head.layout != wire.Today {
				continue
			}
			require.True(t, bytes.HasPrefix(data, encodeHead(m)))
			require.GreaterOrEqual(t, len(data), len(encodeHead(m))+len(body)+4)
		}
	})
}

// FuzzStorageFolder puts any bytes into a folder next to a valid message, which must survive.
func FuzzStorageFolder(f *testing.F) {
	storedSeeds(f)
	dir := f.TempDir()
	require.NoError(f, os.Chmod(dir, 0o700))
	f.Fuzz(func(t *testing.T, data []byte) {
		bad := filepath.Join(dir, fmt.Sprintf("%020d%s", 1, storeSuffix))
		require.NoError(t, os.WriteFile(bad, data, 0o600))
		good := filepath.Join(dir, fmt.Sprintf("%020d%s", 2, storeSuffix))
		require.NoError(t, os.WriteFile(good, append(encodeHead(wire.Message{Rows: 5}), 0, 0, 0, 0), 0o600))
		s, inv, err := Open(dir, wire.Today)
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		found := inv.Messages
		require.Equal(t, 2, len(found)+int(inv.Damaged+inv.Unknown))
		require.Equal(t, uint64(2), found[len(found)-1].Seq)
		_, err = s.Read(2)
		require.NoError(t, err)
		if len(found) == 2 {
			if _, err := s.Read(1); err != nil {
				require.ErrorIs(t, err, ErrCorrupt)
			}
		}
	})
}
