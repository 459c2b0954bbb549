package export

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/file"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// Another program can also rotate the file.
func TestFileMovedAway(t *testing.T) {
	cfg := toFile(t, "otlp-json")
	e, _ := open(t, cfg)
	e.Enqueue(message(t, "one", 0))
	drainAll(t, e)
	require.NoError(t, os.Rename(cfg.Path, cfg.Path+".1"))
	e.Enqueue(message(t, "two", 0))
	drainAll(t, e)
	data, err := os.ReadFile(cfg.Path)
	require.NoError(t, err)
	require.Equal(t, 1, bytes.Count(data, []byte("\n")))
	require.Contains(t, string(data), `"two"`)
}

// TestFileThatCannotBeWritten requires that a temporarily missing folder causes no loss.
func TestFileThatCannotBeWritten(t *testing.T) {
	cfg := toFile(t, "otlp-json")
	e, logs := open(t, cfg)
	dir := filepath.Dir(cfg.Path)
	require.NoError(t, os.Rename(dir, dir+".away"))
	e.Enqueue(message(t, "app", 0))
	require.Eventually(t, func() bool { return e.Stats().Retries > 2 }, 20*time.Second, time.Millisecond)
	require.NoError(t, os.Rename(dir+".away", dir))
	drainAll(t, e)
	require.Equal(t, int64(10), balanced(t, e).Rows.Delivered)
	stop(t, e)
	require.Contains(t, logs.String(), "no such file")
}

// Two exporters must be able to write to one file without mixing their lines.
func TestTwoWritersOfOneFile(t *testing.T) {
	cfg := toFile(t, "otlp-json")
	var wg sync.WaitGroup
	for range 2 {
		e, _ := open(t, cfg)
		wg.Go(func() {
			for range 50 {
				e.Enqueue(message(t, "app", 5000))
			}
			drainAll(t, e)
		})
	}
	wg.Wait()
	data, err := os.ReadFile(cfg.Path)
	require.NoError(t, err)
	lines := bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	require.Len(t, lines, 100)
	for _, line := range lines {
		require.True(t, json.Valid(line))
	}
}

// If the disk is full, the exporter decodes one request at a time, whatever num_consumers is. It decodes no request if it
// cannot open the target.
func TestFileInFrontOfAFullDisk(t *testing.T) {
	body, err := proto.Marshal(request("app", 3_000_000))
	require.NoError(t, err)
	for _, format := range []string{"otlp-json", "otlp-proto", "pprof"} {
		for _, disk := range []string{"full", "gone"} {
			if testing.Short() && (format != "otlp-json" || disk != "full") {
				continue
			}
			t.Run(format+" "+disk, func(t *testing.T) {
				cfg := toFile(t, format)
				cfg.Queue.NumConsumers = 10
				cfg.Retry.InitialInterval, cfg.Retry.MaxInterval = time.Microsecond, time.Microsecond
				switch {
				case disk == "gone":
				case format == "pprof":
					cfg.Path = smallDisk(t)
				default:
					cfg.Path = "/dev/full"
				}
				e, _ := open(t, cfg)
				if disk == "gone" {
					require.NoError(t, os.RemoveAll(filepath.Dir(cfg.Path)))
				}
				peak := heapPeak(func() {
					for range 18 {
						e.Enqueue(Message{Body: bytes.Clone(body), Rows: 1})
					}
					require.Eventually(t, func() bool { return e.Stats().Retries > 20 }, 60*time.Second, time.Millisecond)
				})
				t.Logf("peak: %d MiB", peak>>20)
				if disk == "gone" {
					require.Less(t, peak, uint64(18*3+16)<<20, "nothing is encoded")
				} else {
					require.Less(t, peak, uint64(18*3+160)<<20, "one request is encoded at a time")
				}
				stop(t, e)
			})
		}
	}
}

// smallDisk returns a folder on a tiny file system.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// An incomplete record of a killed process must not damage later records.
func TestTornRecordIsCutOff(t *testing.T) {
	record := func(name string) []byte { return message(t, name, 100).Body }
	for format, encode := range map[string]func([]byte) ([]byte, error){
		"otlp-json": file.Encoder("otlp-json", ""), "otlp-proto": file.Encoder("otlp-proto", "1.11"),
	} {
		whole, err := encode(record("before"))
		require.NoError(t, err)
		next, err := encode(record("after"))
		require.NoError(t, err)
		for _, torn := range []int{0, 1, 3, 4, 5, len(whole) / 2, len(whole) - 1} {
			for _, first := range [][]byte{nil, whole, bytes.Repeat(whole, 300)} {
				cfg := toFile(t, format)
				writeFile(t, cfg.Path, slices.Concat(first, whole[:torn]))
				e, logs := open(t, cfg)
				e.Enqueue(message(t, "after", 100))
				drainAll(t, e)
				stop(t, e)
				got, err := os.ReadFile(cfg.Path)
				require.NoError(t, err)
				require.True(t, bytes.Equal(slices.Concat(first, next), got), "%s torn after %d bytes", format, torn)
				require.Equal(t, torn > 0, strings.Contains(logs.String(), fmt.Sprintf("an incomplete record, probably because a process was killed: removing %d bytes", torn)))
			}
		}
	}
}

// A file with other content must stay unchanged, and a log line must say so.
func TestForeignFileIsLeftAlone(t *testing.T) {
	for format, content := range map[string]string{"otlp-json": "all work\nand no play", "otlp-proto": `{"resourceProfiles":[]}` + "\n"} {
		cfg := toFile(t, format)
		writeFile(t, cfg.Path, []byte(content))
		e, logs := open(t, cfg)
		e.Enqueue(message(t, "app", 0))
		require.Eventually(t, func() bool { return e.Stats().Requests > 0 }, 20*time.Second, time.Millisecond)
		require.Eventually(t, func() bool { return strings.Contains(logs.String(), "contains data in another format") }, 20*time.Second, time.Millisecond)
		got, err := os.ReadFile(cfg.Path)
		require.NoError(t, err)
		require.Equal(t, content, string(got))
		stop(t, e)
	}
}

// The exporter follows a symbolic link of the administrator, but not a link that another user can have made.
func TestLinksInTheWayOfAFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has anything to fear")
	}
	const somebody = 65534
	for _, tc := range []struct {
		name    string
		prepare func(t *testing.T, dir, target string) (path string)
		refused bool
	}{
		{"a link in somebody's folder", func(t *testing.T, dir, target string) string {
			require.NoError(t, os.Chown(dir, somebody, somebody))
			require.NoError(t, os.Symlink(target, filepath.Join(dir, "p")))
			return filepath.Join(dir, "p")
		}, true},
		{"somebody's link in a folder for all", func(t *testing.T, dir, target string) string {
			require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
			require.NoError(t, os.Symlink(target, filepath.Join(dir, "p")))
			require.NoError(t, os.Lchown(filepath.Join(dir, "p"), somebody, somebody))
			return filepath.Join(dir, "p")
		}, true},
		{"a folder that is somebody's link", func(t *testing.T, dir, target string) string {
			require.NoError(t, os.Chmod(dir, 0o777))
			require.NoError(t, os.Symlink(filepath.Dir(target), filepath.Join(dir, "d")))
			return filepath.Join(dir, "d", "target")
		}, true},
		{"the administrator's link", func(t *testing.T, dir, target string) string {
			require.NoError(t, os.Symlink(target, filepath.Join(dir, "p")))
			require.NoError(t, os.Symlink("p", filepath.Join(dir, "q")))
			return filepath.Join(dir, "q")
		}, false},
		{"the administrator's link to a folder", func(t *testing.T, dir, target string) string {
			require.NoError(t, os.Symlink("../"+filepath.Base(filepath.Dir(target)), filepath.Join(dir, "d")))
			return filepath.Join(dir, "d", "target")
		}, false},
	} {
		for _, format := range []string{"otlp-json", "pprof"} {
			t.Run(tc.name+" "+format, func(t *testing.T) {
				both := t.TempDir()
				dir, target := filepath.Join(both, "dir"), filepath.Join(both, "to", "target")
				require.NoError(t, os.Mkdir(dir, 0o755))
				require.NoError(t, os.Mkdir(filepath.Dir(target), 0o755))
				if format == "pprof" {
					require.NoError(t, os.Mkdir(target, 0o755))
				}
				cfg := toFile(t, format)
				cfg.Path = tc.prepare(t, dir, target)
				e, logs := open(t, cfg)
				e.Enqueue(message(t, "app", 0))
				if !tc.refused {
					drainAll(t, e)
					require.Equal(t, int64(10), balanced(t, e).Rows.Delivered, logs.String())
					return
				}
				require.Eventually(t, func() bool {
					return strings.Contains(logs.String(), "symbolic link that another user might have created")
				}, 20*time.Second, time.Millisecond)
				stop(t, e)
				if format == "pprof" {
					list, err := os.ReadDir(target)
					require.NoError(t, err)
					require.Empty(t, list)
				} else {
					require.NoFileExists(t, target)
				}
			})
		}
	}
}

// openPipe makes a named pipe and opens it for reading.
func openPipe(t *testing.T, path string) *os.File {
	t.Helper()
	require.NoError(t, unix.Mkfifo(path, 0o600))
	r, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// A pipe that nobody reads must block only its own exporter, and only until the exporter stops.
func TestPipeThatTakesNoBytes(t *testing.T) {
	cfg := toFile(t, "otlp-json")
	openPipe(t, cfg.Path)
	stuck, _ := open(t, cfg)
	stuck.Enqueue(message(t, "stuck", 1<<20))
	require.Eventually(t, func() bool { return inFlight(stuck) == 1 }, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return holdsBytes(t, cfg.Path) }, 20*time.Second, time.Millisecond)

	other, _ := open(t, toFile(t, "otlp-json"))
	other.Enqueue(message(t, "other", 0))
	drainAll(t, other)
	require.Equal(t, int64(10), balanced(t, other).Rows.Delivered)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NotContains(t, stuck.Shutdown(ctx).Error(), "does not end")
	<-stuck.done
	require.Equal(t, map[Reason]int64{ReasonShutdown: 10}, balanced(t, stuck).Rows.Dropped)
}

// holdsBytes reports whether a pipe has unread bytes.
func holdsBytes(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer f.Close()
	n, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCINQ)
	require.NoError(t, err)
	return n > 0
}

// Requests in JSON are decoded one at a time, like requests for files.
func TestHTTPJSONIsEncodedOneAtATime(t *testing.T) {
	r := recvtest.StartHTTP(t, recvtest.HTTPConfig{})
	cfg := settings(config.TransportHTTP, r.URL)
	cfg.Encoding, cfg.Timeout = "json", 50*time.Millisecond
	begun, end := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = wire.Alone(t.Context(), nil, func([]byte) ([]byte, error) { close(begun); <-end; return nil, nil })
	}()
	<-begun
	e, _ := open(t, cfg)
	for range 10 {
		e.Enqueue(message(t, "app", 0))
	}
	require.Eventually(t, func() bool { return e.Stats().Retries > 1 }, 20*time.Second, time.Millisecond)
	require.Empty(t, r.Requests())
	close(end)
	drainAll(t, e)
	require.Equal(t, int64(100), balanced(t, e).Rows.Delivered)
}
