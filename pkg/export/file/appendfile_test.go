package file

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// An incomplete record, as a full disk leaves it, is truncated.
func TestHalfWrittenRecordIsCutOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	r := newAppendFile(path, config.Rotation{}, lineEnd, func(err error) { t.Error(err) })
	require.NoError(t, r.write(t.Context(), []byte("{whole}\n")))

	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &limit))
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 100, Max: limit.Max}))
	err := r.write(t.Context(), bytes.Repeat([]byte("x"), 200))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &limit))
	require.ErrorIs(t, err, unix.EFBIG)

	require.NoError(t, r.write(t.Context(), []byte("{next}\n")))
	require.NoError(t, r.close())
	require.ErrorIs(t, r.write(t.Context(), []byte("late\n")), os.ErrClosed)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "{whole}\n{next}\n", string(data))
}

// Each limit must remove the oldest files, and no more than necessary. Only files with the exporter's names count.
func TestPruneFiles(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		limit    config.Rotation
		reserved int64
		want     string
	}{
		{config.Rotation{}, 0, "other p-1 p-2 p-3 p-4"},
		{config.Rotation{MaxBackups: 3}, 0, "other p-2 p-3 p-4"},
		{config.Rotation{MaxDays: 2}, 0, "other p-3 p-4"},
		{config.Rotation{MaxTotalMegabytes: 2}, 0, "other p-1 p-3 p-4"}, // without p-2, p-1 has room
		{config.Rotation{MaxTotalMegabytes: 2}, 1 << 20, "other p-3 p-4"},
		{config.Rotation{MaxTotalMegabytes: 2}, 5 << 20, "other p-4"},
	} {
		dir := t.TempDir()
		for i, file := range []struct {
			name string
			size int64
		}{{"other", 9 << 20}, {"p-1", 1 << 18}, {"p-2", 3 << 20}, {"p-3", 1 << 19}, {"p-4", 1 << 19}} {
			path := filepath.Join(dir, file.name)
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			require.NoError(t, os.Truncate(path, file.size))
			at := now.Add(-time.Duration(5-i) * 20 * time.Hour)
			require.NoError(t, os.Chtimes(path, at, at))
		}
		pruneFiles(dir, regexp.MustCompile("^p-"), tt.limit, tt.reserved, now, func(err error) { t.Error(err) })
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		var left []string
		for _, e := range entries {
			left = append(left, e.Name())
		}
		require.Equal(t, tt.want, strings.Join(left, " "), "%+v", tt)
	}
}

// A slow reader must get each record once and completely.
func TestPipeWhoseReaderRests(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	in, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer in.Close()
	problems := make(chan error, 10)
	r := newAppendFile(path, config.Rotation{}, lineEnd, func(err error) { problems <- err })
	r.patience = time.Millisecond
	record := func(i int) []byte {
		return append(bytes.Repeat([]byte(fmt.Sprint(i)), 1<<20), '\n')
	}
	written := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < 3 && err == nil; i++ {
			err = r.write(t.Context(), record(i))
		}
		written <- err
	}()
	require.ErrorContains(t, <-problems, "the reader is blocked")
	lines := bufio.NewReader(in)
	for i := range 3 {
		line, err := lines.ReadBytes('\n')
		require.NoError(t, err)
		require.True(t, bytes.Equal(record(i), line), "records are whole")
	}
	require.NoError(t, <-written)
	require.NoError(t, r.close())
	_, err = lines.ReadByte()
	require.Error(t, err, "a record came twice")
}

// TestPipeWithNewReader requires that a new reader of a pipe does not get the rest of a record that the last reader left.
func TestPipeWithNewReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	read := func() *os.File {
		in, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		require.NoError(t, err)
		return in
	}
	problems := make(chan error, 10)
	r := newAppendFile(path, config.Rotation{}, lineEnd, func(err error) { problems <- err })
	r.patience = time.Millisecond
	record := append(bytes.Repeat([]byte("x"), 1<<20), '\n')
	written := make(chan error, 1)
	first := read()
	go func() { written <- r.write(t.Context(), record) }()
	require.ErrorContains(t, <-problems, "the reader is blocked") // the pipe is full
	require.NoError(t, first.Close())
	require.ErrorIs(t, <-written, unix.EPIPE)

	second := read()
	defer second.Close()
	go func() { written <- r.write(t.Context(), record) }()
	var line []byte
	for b := make([]byte, 1<<16); !bytes.HasSuffix(line, []byte("\n")); {
		n, err := second.Read(b)
		if err != nil { // EOF, until the writer has opened the pipe
			require.ErrorIs(t, err, io.EOF)
			time.Sleep(time.Millisecond)
		}
		line = append(line, b[:n]...)
	}
	require.Len(t, line, len(record))
	require.NoError(t, <-written)
	require.NoError(t, r.close())
}

// TestFileThatCannotBeRenamed requires that a full file that cannot be renamed grows, with one warning.
func TestFileThatCannotBeRenamed(t *testing.T) {
	out, err := os.OpenFile(filepath.Join(t.TempDir(), "out"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	defer out.Close()
	var problems []error
	r := newAppendFile(fmt.Sprintf("/dev/fd/%d", out.Fd()), config.Rotation{MaxMegabytes: 1}, lineEnd, func(err error) { problems = append(problems, err) })
	for range 4 {
		require.NoError(t, r.write(t.Context(), append(bytes.Repeat([]byte("x"), 600<<10), '\n')))
	}
	require.NoError(t, r.close())
	info, err := out.Stat()
	require.NoError(t, err)
	require.EqualValues(t, 4*(600<<10+1), info.Size())
	require.Len(t, problems, 1)
	require.ErrorContains(t, problems[0], "grows beyond rotation.max_megabytes")
}
