package export

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	colprofiles "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/spool"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// childEnv makes the test binary store messages until it is killed.
const childEnv = "EXPORT_TEST_STORE_IN"

// storeUntilKilled stores messages and prints how many are on disk. It never returns.
func storeUntilKilled(dir string) {
	cfg := settings(config.TransportGRPC, "127.0.0.1:1")
	cfg.Queue.Storage, cfg.Queue.StorageSize = dir, 1<<30
	cfg.Retry.InitialInterval, cfg.Retry.MaxInterval = time.Hour, time.Hour
	e, err := opened(cfg, Options{})
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

// withStorage returns the settings of an exporter with a storage folder.
func withStorage(t testing.TB, endpoint string) config.Exporter {
	cfg := settings(config.TransportGRPC, endpoint)
	cfg.Queue.Storage, cfg.Queue.StorageSize = filepath.Join(t.TempDir(), "queue"), 1<<30
	return cfg
}

// settled waits until all messages of e are on disk and the receiver is known to be down.
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
	list, err := filepath.Glob(filepath.Join(dir, "*"+".msg"))
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
	require.Contains(t, logs.String(), "20 requests with 200 rows")
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
		for _, mode := range []os.FileMode{0o750, 0o705} {
			cfg := withStorage(t, "127.0.0.1:1")
			require.NoError(t, os.Mkdir(cfg.Queue.Storage, mode))
			writeFile(t, filepath.Join(cfg.Queue.Storage, "theirs"), []byte("x"))
			_, err := opened(cfg, Options{})
			require.ErrorContains(t, err, "chmod 700")
		}
	})
	t.Run("one that belongs to somebody else is refused", func(t *testing.T) {
		cfg := withStorage(t, "127.0.0.1:1")
		require.NoError(t, os.Mkdir(cfg.Queue.Storage, 0o700))
		if os.Geteuid() != 0 {
			t.Skip("giving a folder away needs root")
		}
		require.NoError(t, os.Chown(cfg.Queue.Storage, 65534, 65534))
		_, err := opened(cfg, Options{})
		require.ErrorContains(t, err, "belongs to user 65534")
		require.ErrorContains(t, err, "name a folder that belongs to user 0")
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

	// After a start with a smaller limit, the owner with the most bytes loses its oldest messages.
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

// The number of stored messages must be limited, because each also costs memory.
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

func checksum(data []byte) uint32 { return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) }

// inLayout returns the stored file of a message whose body has the layout of version. If version is empty, the file has format 1,
// which does not name the layout.
func inLayout(m Message, version string) []byte {
	tail, format := m.Owner, byte(1)
	if version != "" {
		tail, format = string(rune(len(version)))+version+m.Owner, 2
	}
	head := append([]byte("IGOP"), 0, format)
	head = binary.BigEndian.AppendUint16(head, uint16(6*8+len(tail)))
	for _, v := range []int64{m.Rows, m.Samples, int64(m.Profiles), math.MinInt64, math.MinInt64, int64(len(m.Body))} {
		head = binary.BigEndian.AppendUint64(head, uint64(v))
	}
	head = append(head, tail...)
	head = binary.BigEndian.AppendUint32(head, checksum(head))
	return binary.BigEndian.AppendUint32(append(head, m.Body...), checksum(m.Body))
}

// Messages that were stored in one layout, for example by earlier versions, must be sent in the layout of the settings.
func TestStoredLayoutIsKept(t *testing.T) {
	versions := []string{"1.8", "1.9", "1.11"}
	for _, from := range append(versions, "") { // files of format 1 have the layout of the settings
		for _, to := range versions {
			t.Run(from+" to "+to, func(t *testing.T) {
				m := message(t, "app", 100)
				want := oldLayout(t, to, m.Body)
				m.Body = oldLayout(t, cmp.Or(from, to), m.Body)
				r := recvtest.StartHTTP(t, recvtest.HTTPConfig{})
				cfg := withStorage(t, r.URL)
				cfg.Transport, cfg.OTLPVersion = config.TransportHTTP, to
				require.NoError(t, os.Mkdir(cfg.Queue.Storage, 0o700))
				writeFile(t, filepath.Join(cfg.Queue.Storage, fmt.Sprintf("%020d.msg", 7)), inLayout(m, from))
				e, _ := open(t, cfg)
				drainAll(t, e)
				require.Equal(t, int64(10), balanced(t, e).Rows.Delivered)
				require.Equal(t, want, r.Requests()[0].Body)
			})
		}
	}
}

// Queued messages have today's layout. Each transport sends the layout of the settings, before and after a restart.
func TestLayoutOfTheSettings(t *testing.T) {
	for _, version := range []string{"1.8", "1.9", "1.11"} {
		for _, transport := range bothTransports {
			t.Run(version+"/"+transport, func(t *testing.T) {
				m := message(t, "app", 100)
				cfg := withStorage(t, "127.0.0.1:1")
				cfg.Transport, cfg.OTLPVersion, cfg.Endpoint = transport, version, map[string]string{config.TransportGRPC: "127.0.0.1:1", config.TransportHTTP: "http://127.0.0.1:1"}[transport]
				e, _ := open(t, cfg)
				e.Enqueue(m)
				settled(t, e)
				stop(t, e)
				endpoint, requests := recvtest.Start(t, transport, nil, nil)
				cfg.Endpoint = endpoint
				e, _ = open(t, cfg)
				e.Enqueue(m)
				drainAll(t, e)
				require.Equal(t, int64(20), balanced(t, e).Rows.Delivered)
				for _, got := range requests() {
					body, err := proto.Marshal(got.Profiles) // unknown fields keep their numbers
					require.NoError(t, err)
					want := &colprofiles.ExportProfilesServiceRequest{}
					require.NoError(t, proto.Unmarshal(oldLayout(t, version, m.Body), want))
					wanted, err := proto.Marshal(want)
					require.NoError(t, err)
					require.Equal(t, wanted, body)
				}
			})
		}
	}
}

// All messages that a killed process has stored must remain.
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

		s, found, err := spool.Open(dir, wire.Today)
		require.NoError(t, err)
		require.Zero(t, found.Damaged)
		require.GreaterOrEqual(t, int64(len(found.Messages)), stored)
		for _, f := range found.Messages {
			body, err := s.Read(f.Seq)
			require.NoError(t, err)
			require.Len(t, body, 10_000)
			require.Equal(t, int64(7), f.Message.Rows)
		}
		require.NoError(t, s.Close())
		total = int64(len(found.Messages))
	}
	t.Logf("messages stored over three kills: %d", total)
}

// If the receiver hangs, Shutdown waits until its deadline. Data on disk is not an error.
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

// stepSender accepts one message each time that the test allows it.
type stepSender struct {
	sending chan int // bytes of the request that is being sent
	let     chan struct{}
}

func (s *stepSender) Send(ctx context.Context, m Message) attempt.Outcome {
	select {
	case s.sending <- len(m.Body):
		<-s.let
		return attempt.Outcome{Verdict: attempt.Accepted}
	case <-ctx.Done():
		return attempt.Outcome{Verdict: attempt.Retryable}
	}
}

func (s *stepSender) Close() error { return nil }

// withTwoStored returns settings with one consumer and a storage folder that has two messages.
func withTwoStored(t *testing.T) config.Exporter {
	cfg := withStorage(t, "127.0.0.1:1")
	cfg.Queue.NumConsumers = 1
	before, _ := open(t, cfg)
	for range 2 {
		before.Enqueue(Message{Body: make([]byte, 10), Rows: 1})
	}
	settled(t, before)
	stop(t, before)
	return cfg
}

// A Drain that begins before the storage folder is open must wait for its own messages, even if the folder contains as many.
func TestDrainBeforeTheFolderIsOpen(t *testing.T) {
	cfg := withTwoStored(t)
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
	go e.run(func() (sender, error) { return s, nil })
	for _, size := range []int{10, 10, 20} {
		require.Equal(t, size, <-s.sending)
		require.Empty(t, drained)
		s.let <- struct{}{}
	}
	require.NoError(t, <-drained)
	require.Equal(t, int64(3), balanced(t, e).Rows.Delivered)
	require.NoError(t, e.Shutdown(t.Context()))
}

// A stored request that cannot be read is dropped. Its file must stay for the next start, unless it is gone.
func TestUnreadableRequestIsKept(t *testing.T) {
	for _, linked := range []bool{false, true} {
		t.Logf("replaced by a link: %t", linked)
		cfg := withTwoStored(t)
		s, logs := &stepSender{sending: make(chan int), let: make(chan struct{})}, &capture{}
		e := prepare(cfg, Options{Logger: logs.logger()})
		go e.run(func() (sender, error) { return s, nil })
		<-s.sending
		second := storedFiles(t, cfg.Queue.Storage)[1]
		require.NoError(t, os.Remove(second))
		if linked {
			require.NoError(t, os.Symlink("elsewhere", second)) // the exporter follows no links
		}
		s.let <- struct{}{}
		require.NoError(t, e.Shutdown(t.Context()))
		require.Equal(t, map[Reason]int64{ReasonStorageError: 1}, balanced(t, e).Rows.Dropped)
		require.Contains(t, logs.String(), "cannot be read")
		require.Equal(t, linked, strings.Contains(logs.String(), "its file is kept for the next start"))
		_, err := os.Lstat(second)
		require.Equal(t, linked, err == nil)
	}
}

// If the receiver is down, a Drain that began before its message was on disk must end when the message is stored.
func TestDrainEndsWhenStored(t *testing.T) {
	cfg := withStorage(t, "")
	cfg.Retry.InitialInterval, cfg.Retry.MaxInterval = time.Hour, time.Hour
	e := prepare(cfg, Options{Logger: (&capture{}).logger()})
	e.Enqueue(Message{Body: make([]byte, 10), Rows: 1})
	drained := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() { drained <- e.Drain(ctx) }()
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.drains) == 1
	}, 20*time.Second, time.Millisecond)
	go e.run(func() (sender, error) { return &outageSender{down: true}, nil })
	require.NoError(t, <-drained)
	require.Equal(t, int64(1), balanced(t, e).Rows.Held)
	require.Len(t, storedFiles(t, cfg.Queue.Storage), 1)
	stop(t, e)
}
