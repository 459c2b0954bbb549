package export

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	colprofiles "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// childEnv makes the test binary a process that stores messages until it is killed.
const childEnv = "EXPORT_TEST_STORE_IN"

// storeUntilKilled never returns. It prints the number of messages that are on disk.
func storeUntilKilled(dir string) {
	cfg := settings(config.TransportGRPC, "127.0.0.1:1")
	cfg.Queue.Storage, cfg.Queue.StorageSize = dir, 1<<30
	cfg.Retry.InitialInterval, cfg.Retry.MaxInterval = time.Hour, time.Hour
	e, err := New(cfg, Options{})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	for {
		e.Enqueue(Message{Body: make([]byte, 10_000), Rows: 7})
		e.mu.Lock()
		onDisk := e.disk.entries
		e.mu.Unlock()
		fmt.Println("stored", onDisk)
	}
}

// withStorage is an exporter's settings with a storage folder.
func withStorage(t testing.TB, endpoint string) config.Exporter {
	cfg := settings(config.TransportGRPC, endpoint)
	cfg.Queue.Storage, cfg.Queue.StorageSize = filepath.Join(t.TempDir(), "queue"), 1<<30
	return cfg
}

// settled waits until e's messages are all on disk and the receiver is known to be down.
func settled(t testing.TB, e *Exporter) {
	t.Helper()
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.memory.entries == 0
	}, 20*time.Second, time.Millisecond)
}

func storedFiles(t testing.TB, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*"+storeSuffix))
	require.NoError(t, err)
	return list
}

func TestStorageSurvivesRestart(t *testing.T) {
	cfg := withStorage(t, "127.0.0.1:1")
	cfg.Queue.NumConsumers = 1
	e, _ := open(t, cfg)
	for i := range 20 {
		e.Enqueue(message(t, strconv.Itoa(i), 1000))
	}
	settled(t, e)
	require.NoError(t, e.Shutdown(t.Context()), "on disk is safe, and the receiver is down: no reason to wait")
	require.Equal(t, int64(200), balanced(t, e).Rows.Held)
	require.Len(t, storedFiles(t, cfg.Queue.Storage), 20)
	info, err := os.Stat(cfg.Queue.Storage)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	for _, f := range storedFiles(t, cfg.Queue.Storage) {
		info, err := os.Stat(f)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}

	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{})
	cfg.Endpoint = r.Addr
	cfg.Headers = []config.Header{{Key: "x-scope-orgid", Value: "tenant-2"}}
	e, logs := open(t, cfg)
	e.Enqueue(message(t, "new", 1000))
	drainAll(t, e)
	s := balanced(t, e)
	require.Equal(t, int64(200), s.Rows.Recovered)
	require.Equal(t, int64(210), s.Rows.Delivered)
	require.Equal(t, int64(21), s.SentSamples)
	want := make([]string, 0, 21)
	for i := range 20 {
		want = append(want, strconv.Itoa(i))
	}
	require.Equal(t, append(want, "new"), r.Names(), "what was held before comes first, in order")
	for _, sent := range r.Requests() {
		require.Equal(t, []string{"tenant-2"}, sent.Metadata["x-scope-orgid"], "headers are those of the settings by now")
	}
	stop(t, e)
	require.Empty(t, storedFiles(t, cfg.Queue.Storage), "a worker removes a file after it has counted its rows, and a stop waits for the worker")
	require.Contains(t, logs.String(), "20 messages with 200 rows")
}

func TestStorageFolder(t *testing.T) {
	t.Run("an empty open folder is made private", func(t *testing.T) {
		cfg := withStorage(t, "127.0.0.1:1")
		require.NoError(t, os.Mkdir(cfg.Queue.Storage, 0o755))
		open(t, cfg)
		info, err := os.Stat(cfg.Queue.Storage)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	})
	t.Run("one that others use is refused", func(t *testing.T) {
		cfg := withStorage(t, "127.0.0.1:1")
		require.NoError(t, os.Mkdir(cfg.Queue.Storage, 0o755))
		writeFile(t, filepath.Join(cfg.Queue.Storage, "theirs"), []byte("x"))
		_, err := New(cfg, Options{})
		require.ErrorContains(t, err, "chmod 700")
	})
	t.Run("one that belongs to somebody else is refused", func(t *testing.T) {
		cfg := withStorage(t, "127.0.0.1:1")
		require.NoError(t, os.Mkdir(cfg.Queue.Storage, 0o700))
		if os.Geteuid() != 0 {
			t.Skip("giving a folder away needs root")
		}
		require.NoError(t, os.Chown(cfg.Queue.Storage, 65534, 65534))
		_, err := New(cfg, Options{})
		require.ErrorContains(t, err, "belongs to user 65534")
		require.ErrorContains(t, err, "name a folder of user 0's own")
	})
	t.Run("a file is refused", func(t *testing.T) {
		cfg := withStorage(t, "127.0.0.1:1")
		writeFile(t, cfg.Queue.Storage, []byte("x"))
		_, err := New(cfg, Options{})
		require.ErrorContains(t, err, "sending_queue.storage")
	})
	t.Run("links are not followed", func(t *testing.T) {
		cfg := withStorage(t, "127.0.0.1:1")
		require.NoError(t, os.Mkdir(cfg.Queue.Storage, 0o700))
		target := filepath.Join(t.TempDir(), "target")
		writeFile(t, target, []byte("precious"))
		require.NoError(t, os.Symlink(target, filepath.Join(cfg.Queue.Storage, "00000000000000000001.msg.tmp")))
		require.NoError(t, os.Symlink(target, filepath.Join(cfg.Queue.Storage, "00000000000000000002.msg")))
		e, _ := open(t, cfg)
		e.Enqueue(message(t, "app", 0))
		e.Enqueue(message(t, "app", 0))
		settled(t, e)
		got, err := os.ReadFile(target)
		require.NoError(t, err)
		require.Equal(t, "precious", string(got))
	})
	t.Run("what is not ours stays", func(t *testing.T) {
		cfg := withStorage(t, "127.0.0.1:1")
		require.NoError(t, os.Mkdir(cfg.Queue.Storage, 0o700))
		for _, name := range []string{"notes.txt", "1.msg", "0000000000000000000x.msg", "99999999999999999999.msg", "theirs.tmp", "1.msg.tmp"} {
			writeFile(t, filepath.Join(cfg.Queue.Storage, name), []byte("x"))
		}
		e, _ := open(t, cfg)
		require.Zero(t, e.Stats().CorruptFiles)
		for _, name := range []string{"notes.txt", "1.msg", "0000000000000000000x.msg", "99999999999999999999.msg", "theirs.tmp", "1.msg.tmp"} {
			require.FileExists(t, filepath.Join(cfg.Queue.Storage, name))
		}
	})
}

// Whatever happens to a file, only that message is lost, and counted.
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
	change(5, func(b []byte) []byte { b[5] = 0; return b }) // no format that ever was
	writeFile(t, files[0]+storeTemp, []byte("half"))

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
	require.Contains(t, logs.String(), "checksum of the body")
}

// What a later version has stored stays after a rollback: it is neither sent nor removed, nor written over, and that
// version sends it when it is back.
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
	// The first has another header, the last another wire layout in a header that is known.
	later, err := os.ReadFile(files[0])
	require.NoError(t, err)
	known := slices.Clone(later)
	later[5] = storeVersion + 1
	writeFile(t, files[0], later)
	layout := message(t, "layout of the future", 1000)
	layout.Layout = "2.0"
	future := append(storedHead(layout), layout.Body...)
	future = binary.BigEndian.AppendUint32(future, crc32.Checksum(layout.Body, castagnoli))
	writeFile(t, files[2], future)

	for range 2 { // a second start finds the same
		e, logs := open(t, cfg)
		e.Enqueue(message(t, "new", 1000)) // must not take the name of a file that stays
		settled(t, e)
		s := balanced(t, e)
		require.Zero(t, s.CorruptFiles)
		stop(t, e)
		require.Contains(t, logs.String(), "2 files in the storage folder")
		require.Contains(t, logs.String(), "format that this version does not know")
		require.Contains(t, logs.String(), `otlp_version \"2.0\"`)
		for i, want := range map[int][]byte{0: later, 2: future} {
			got, err := os.ReadFile(files[i])
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}

	// The version that knows the format is back.
	writeFile(t, files[0], known)
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{})
	cfg.Endpoint = r.Addr
	e, _ = open(t, cfg)
	drainAll(t, e)
	require.ElementsMatch(t, []string{"0", "1", "new", "new"}, r.Names())
	require.FileExists(t, files[2])
}

// The start reads the headers of what is stored, not the bodies.
func TestHeadersAreReadAlone(t *testing.T) {
	m := message(t, "app", 100_000)
	m.Owner = "ns/pod"
	head := storedHead(m)
	r := bytes.NewReader(append(slices.Clone(head), m.Body...))
	got, headLen, bodyLen, err := readHeadFrom(r)
	require.NoError(t, err)
	require.Equal(t, "ns/pod", got.Owner)
	require.Equal(t, len(head), headLen)
	require.Equal(t, int64(len(m.Body)), bodyLen)
	require.Equal(t, len(m.Body), r.Len(), "nothing behind the header is read")
	for n := range len(head) {
		_, _, _, err := readHeadFrom(bytes.NewReader(head[:n]))
		require.ErrorIs(t, err, errCorrupt)
	}
}

// A file that cannot be read is not damaged: it stays, for a start at which it can.
func TestStoredFileThatCannotBeRead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("taking a file from oneself needs root")
	}
	dir := filepath.Join(t.TempDir(), "queue")
	s, _, err := openStorage(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.close()) }()
	m := message(t, "app", 0)
	for seq := range uint64(3) {
		require.NoError(t, s.write(seq, m))
	}
	for _, path := range []string{filepath.Dir(filepath.Dir(dir)), filepath.Dir(dir), dir, s.path(0), s.path(2)} {
		require.NoError(t, os.Chown(path, 65534, 65534))
	}
	// The owner of the folder is not that of one of the files.
	done := make(chan inventory)
	go func() {
		runtime.LockOSThread() // and never unlock it: the thread ends with the goroutine
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
	require.Len(t, inv.messages, 2)
	require.Zero(t, inv.damaged)
	require.Equal(t, int64(1), inv.unreadable)
	require.ErrorIs(t, inv.readErr, os.ErrPermission)
	require.FileExists(t, s.path(1))
}

func TestStoredFileThatVanishes(t *testing.T) {
	cfg := withStorage(t, "127.0.0.1:1")
	cfg.Retry.InitialInterval, cfg.Retry.MaxInterval = 300*time.Millisecond, 300*time.Millisecond
	e, logs := open(t, cfg)
	e.Enqueue(message(t, "app", 0))
	settled(t, e)
	for _, f := range storedFiles(t, cfg.Queue.Storage) {
		require.NoError(t, os.Remove(f))
	}
	require.Eventually(t, func() bool { return e.Stats().Rows.Held == 0 }, 20*time.Second, time.Millisecond)
	require.Equal(t, map[Reason]int64{ReasonStorageError: 10}, balanced(t, e).Rows.Dropped)
	stop(t, e)
	require.Contains(t, logs.String(), "cannot be read")
}

func TestStorageIsBounded(t *testing.T) {
	cfg := withStorage(t, "127.0.0.1:1")
	cfg.Queue.StorageSize = 100 << 10
	cfg.Retry.InitialInterval, cfg.Retry.MaxInterval = time.Hour, time.Hour
	e, logs := open(t, cfg)
	for i := range 50 {
		owner := "loud"
		if i < 3 {
			owner = "quiet"
		}
		e.Enqueue(message(t, owner, 8000))
	}
	settled(t, e)
	s := balanced(t, e)
	require.LessOrEqual(t, s.QueueBytes, cfg.Queue.StorageSize)
	require.Greater(t, s.QueueBytes, cfg.Queue.StorageSize-20<<10)
	require.Equal(t, s.Rows.Dropped[ReasonStorageFull], s.Rows.DroppedTotal())
	require.Eventually(t, func() bool { return int64(len(storedFiles(t, cfg.Queue.Storage))) == s.QueueMessages }, 20*time.Second, time.Millisecond)
	stop(t, e)
	require.Contains(t, logs.String(), "sending_queue.storage_size")

	// A smaller bound at the next start makes the oldest of the loud one go.
	cfg.Queue.StorageSize = 65 << 10
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{})
	cfg.Endpoint = r.Addr
	e, _ = open(t, cfg)
	drainAll(t, e)
	after := balanced(t, e)
	require.Equal(t, s.Rows.Held, after.Rows.Recovered)
	require.Positive(t, after.Rows.Dropped[ReasonStorageFull])
	quiet := 0
	for _, name := range r.Names() {
		if name == "quiet" {
			quiet++
		}
	}
	require.Equal(t, 3, quiet, "the quiet owner loses nothing")
}

// Each stored message costs memory too, so their number is bounded.
func TestStorageIsBoundedInMessages(t *testing.T) {
	cfg := withStorage(t, "127.0.0.1:1")
	e, _ := open(t, cfg)
	e.mu.Lock()
	e.disk.limit = 10
	e.mu.Unlock()
	for range 30 {
		e.Enqueue(message(t, "app", 0))
	}
	settled(t, e)
	s := balanced(t, e)
	require.Equal(t, int64(10), s.QueueMessages)
	require.Equal(t, map[Reason]int64{ReasonStorageFull: 200}, s.Rows.Dropped)
}

// A message that cannot be stored is held in memory, and sent from there.
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
	require.Equal(t, int64(20), balanced(t, e).Rows.Delivered)
	stop(t, e)
	require.Contains(t, logs.String(), "in memory only")
}

// A disk that hangs holds up nobody and costs no memory beyond the bound.
func TestStorageThatHangs(t *testing.T) {
	cfg := withStorage(t, "127.0.0.1:1")
	cfg.Queue.Size = 1 << 20
	e, _ := open(t, cfg)
	// Opening a pipe for writing waits for a reader.
	pipe := filepath.Join(cfg.Queue.Storage, fmt.Sprintf("%020d%s%s", 1, storeSuffix, storeTemp))
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	for i := range 50_000 {
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

// What was stored for a receiver of one wire layout is rewritten for that of another.
func TestStoredLayoutIsKept(t *testing.T) {
	versions := []string{"1.8", "1.9", "1.11"}
	for _, from := range versions {
		for _, to := range versions {
			t.Run(from+" to "+to, func(t *testing.T) {
				cfg := withStorage(t, "127.0.0.1:1")
				cfg.OTLPVersion = from
				e, _ := open(t, cfg)
				m := message(t, "app", 100)
				want := oldLayout(t, to, m.Body)
				m.Body = oldLayout(t, from, m.Body)
				e.Enqueue(m)
				settled(t, e)
				stop(t, e)

				r := recvtest.StartHTTP(t, recvtest.HTTPConfig{})
				cfg.Transport, cfg.Endpoint, cfg.OTLPVersion = config.TransportHTTP, r.URL, to
				e, _ = open(t, cfg)
				drainAll(t, e)
				require.Equal(t, int64(10), balanced(t, e).Rows.Delivered)
				require.Equal(t, want, r.Requests()[0].Body)
			})
		}
	}
}

// Files of the version before, which said nothing of the layout, are of the one that is set.
func TestStoredByTheVersionBefore(t *testing.T) {
	m := message(t, "app", 0)
	head := append([]byte(storeMagic), 0, 1)
	head = binary.BigEndian.AppendUint16(head, uint16(storeFixed+len("ns/pod")))
	for _, v := range []int64{10, 1, 1, noTime, noTime, int64(len(m.Body))} {
		head = binary.BigEndian.AppendUint64(head, uint64(v))
	}
	head = append(head, "ns/pod"...)
	head = binary.BigEndian.AppendUint32(head, crc32.Checksum(head, castagnoli))
	data := binary.BigEndian.AppendUint32(append(head, m.Body...), crc32.Checksum(m.Body, castagnoli))
	r := recvtest.StartHTTP(t, recvtest.HTTPConfig{})
	cfg := withStorage(t, r.URL)
	cfg.Transport = config.TransportHTTP
	require.NoError(t, os.Mkdir(cfg.Queue.Storage, 0o700))
	writeFile(t, filepath.Join(cfg.Queue.Storage, fmt.Sprintf("%020d.msg", 7)), data)
	e, _ := open(t, cfg)
	drainAll(t, e)
	require.Equal(t, int64(10), balanced(t, e).Rows.Delivered)
	require.Equal(t, m.Body, r.Requests()[0].Body)
}

// A process that is killed leaves every message that it had stored.
func TestKilledProcessLosesNothingStored(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "queue")
	total := int64(0)
	for range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var stored int64
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			n, err := strconv.ParseInt(strings.TrimPrefix(scanner.Text(), "stored "), 10, 64)
			require.NoError(t, err, scanner.Text())
			if stored = n; stored >= total+20 {
				break
			}
		}
		require.NoError(t, cmd.Process.Kill())
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)

		s, found, err := openStorage(dir)
		require.NoError(t, err)
		require.Zero(t, found.damaged)
		require.GreaterOrEqual(t, int64(len(found.messages)), stored)
		for _, f := range found.messages {
			body, err := s.read(f.seq)
			require.NoError(t, err)
			require.Len(t, body, 10_000)
			require.Equal(t, int64(7), f.msg.Rows)
		}
		require.NoError(t, s.close())
		total = int64(len(found.messages))
	}
	t.Logf("messages stored over three kills: %d", total)
}

// With a receiver that hangs, Shutdown waits until its deadline, and what is on disk is no error.
func TestShutdownWithStorageAndHangingReceiver(t *testing.T) {
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: hang})
	cfg := withStorage(t, r.Addr)
	cfg.Timeout = time.Hour
	e, _ := open(t, cfg)
	e.Enqueue(message(t, "app", 0))
	require.Eventually(t, func() bool { return len(r.Requests()) == 1 }, 20*time.Second, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.NoError(t, e.Shutdown(ctx))
	s := balanced(t, e)
	require.Equal(t, int64(10), s.Rows.Held)
	require.Len(t, storedFiles(t, cfg.Queue.Storage), 1)
}

// stepSender takes what it is sent one by one, as the test lets it.
type stepSender struct {
	sending chan int // bytes of the request that is being sent
	let     chan struct{}
}

func (s *stepSender) send(ctx context.Context, body []byte) outcome {
	select {
	case s.sending <- len(body):
		<-s.let
		return outcome{verdict: accepted}
	case <-ctx.Done():
		return outcome{verdict: retryable}
	}
}

func (s *stepSender) close() error { return nil }

// A Drain that begins before the storage folder is open waits for its own messages, also where as many are found in
// the folder.
func TestDrainBeforeTheFolderIsOpen(t *testing.T) {
	cfg := withStorage(t, "127.0.0.1:1")
	cfg.Queue.NumConsumers = 1
	before, _ := open(t, cfg)
	for range 2 {
		before.Enqueue(Message{Body: make([]byte, 10), Rows: 1})
	}
	settled(t, before)
	stop(t, before)

	s := &stepSender{sending: make(chan int), let: make(chan struct{})}
	e := prepare(cfg, Options{Logger: (&capture{}).logger()})
	e.Enqueue(Message{Body: make([]byte, 20), Rows: 1})
	drained := make(chan error, 1)
	go func() { drained <- e.Drain(t.Context()) }()
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.drains) == 1
	}, 20*time.Second, time.Millisecond)
	go e.run(func() (sender, error) { return s, nil }, false)
	for _, size := range []int{10, 10, 20} {
		require.Equal(t, size, <-s.sending)
		require.Empty(t, drained)
		s.let <- struct{}{}
	}
	require.NoError(t, <-drained)
	require.Equal(t, int64(3), balanced(t, e).Rows.Delivered)
	require.NoError(t, e.Shutdown(t.Context()))
}

// Shutdown with storage still delivers what a healthy receiver takes.
func TestShutdownWithStorageDelivers(t *testing.T) {
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: func(context.Context, recvtest.Request) (*colprofiles.ExportProfilesServiceResponse, error) {
		time.Sleep(5 * time.Millisecond)
		return ok()
	}})
	e, _ := open(t, withStorage(t, r.Addr))
	for range 50 {
		e.Enqueue(message(t, "app", 0))
	}
	require.NoError(t, e.Shutdown(t.Context()))
	require.Equal(t, int64(500), balanced(t, e).Rows.Delivered)
}

func TestStoredRoundTrip(t *testing.T) {
	s, _, err := openStorage(filepath.Join(t.TempDir(), "q"))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.close()) }()
	now := time.Unix(0, time.Now().UnixNano())
	for i, m := range []Message{
		{},
		{Body: []byte("body"), Rows: 1, Samples: 2, Profiles: 3, Start: now, End: now.Add(time.Second), Owner: "ns/pod"},
		{Body: make([]byte, 1<<20), Owner: strings.Repeat("o", 100_000)},
	} {
		require.NoError(t, s.write(uint64(i), m))
		head, err := s.readHead(uint64(i))
		require.NoError(t, err)
		require.Equal(t, int64(len(m.Body)), head.size)
		body, err := s.read(uint64(i))
		require.NoError(t, err)
		require.True(t, bytes.Equal(m.Body, body))
		m.Owner = m.Owner[:min(len(m.Owner), maxOwner)]
		m.Body = nil
		require.Equal(t, m, head.msg)
	}
}

// storedSeeds are files as they may be found.
func storedSeeds(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte(storeMagic))
	f.Add(storedHead(Message{Rows: 1, Owner: "a"}))
	f.Add(resealed(append(storedHead(Message{Rows: 1, Body: []byte("body")}), "body...."...)))
	f.Add(append(storedHead(Message{Rows: -1}), 0, 0, 0, 0))
}

// resealed gives data right checksums wherever its own lengths put them, so that a fuzzer gets
// past them.
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

// FuzzStorage reads any bytes as a stored message: they are what would be written, corrupt, or of a later version.
func FuzzStorage(f *testing.F) {
	storedSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, data := range [][]byte{data, resealed(data)} {
			m, body, err := decodeStored(data)
			if err != nil {
				require.True(t, errors.Is(err, errCorrupt) || errors.Is(err, errUnknownFormat), err)
				continue
			}
			m.Body = body
			if binary.BigEndian.Uint16(data[len(storeMagic):]) != storeVersion {
				continue
			}
			require.True(t, bytes.HasPrefix(data, storedHead(m)))
			require.Len(t, data, len(storedHead(m))+len(body)+4)
		}
	})
}

// FuzzStorageFolder puts any bytes into a folder beside a sound message, which must come through.
func FuzzStorageFolder(f *testing.F) {
	storedSeeds(f)
	dir := f.TempDir()
	require.NoError(f, os.Chmod(dir, 0o700))
	f.Fuzz(func(t *testing.T, data []byte) {
		bad := filepath.Join(dir, fmt.Sprintf("%020d%s", 1, storeSuffix))
		require.NoError(t, os.WriteFile(bad, data, 0o600))
		good := filepath.Join(dir, fmt.Sprintf("%020d%s", 2, storeSuffix))
		require.NoError(t, os.WriteFile(good, append(storedHead(Message{Rows: 5}), 0, 0, 0, 0), 0o600))
		s, inv, err := openStorage(dir)
		require.NoError(t, err)
		defer func() { require.NoError(t, s.close()) }()
		found := inv.messages
		require.Equal(t, 2, len(found)+int(inv.damaged+inv.unknown))
		require.Equal(t, uint64(2), found[len(found)-1].seq)
		_, err = s.read(2)
		require.NoError(t, err)
		if len(found) == 2 {
			if _, err := s.read(1); err != nil {
				require.ErrorIs(t, err, errCorrupt)
			}
		}
	})
}
