package otelprofiles_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/stretchr/testify/require"
	colprofiles "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/metrictest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
)

// If its secret or folder does not exist yet, a headless gadget must keep running, and its rows must wait.
func TestDaemonWaits(t *testing.T) {
	r := startReceiver(t)
	token := filepath.Join(t.TempDir(), "token")
	op := settings(t, exporter("mine", r.Addr(), "        auth: {bearer_token_file: "+token+"}\n"))

	err := (&gadgettest.Gadget{}).Make(t.Context(), op).Run(gadgettest.Params("mine"))
	require.ErrorContains(t, err, token+" does not exist: write the path as this process sees it", "who types the name is told")

	sums := metrictest.Sums(t)
	synctest.Test(t, func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "profiles")
		op := settings(t, "operator: {otel-profiles: {exporters: {mine: {exporter: file, path: "+folder+"/all}}}}")
		g := &gadgettest.Gadget{Start: gadgettest.Emits("leaf", 5)}
		require.NoError(t, g.Make(t.Context(), op, gadgetcontext.WithAsRemoteCall(true)).Run(gadgettest.Params("mine")))
		require.Contains(t, g.Log.String(), "is not ready, retrying: ")
		require.NoError(t, os.Mkdir(folder, 0o700))
		time.Sleep(time.Minute)
		synctest.Wait()
		got, err := os.ReadFile(folder + "/all")
		require.NoError(t, err)
		require.Contains(t, string(got), "leaf")
		require.Equal(t, map[string]float64{"mine": 1}, sums("ig_otel_profiles_rows_delivered", "exporter"), "metrics are reported while an exporter runs")
	})
}

// In a daemon, Inspektor Gadget sends log lines from a buffer, and discards the buffer when the run ends. The last lines must
// reach a client whose sender needs a moment.
func TestLastLinesReachTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		buffer, done, sent := make(chan string, 100), make(chan struct{}), make(chan string, 100)
		go func() {
			defer close(sent)
			for {
				select {
				case line := <-buffer:
					sent <- line
					time.Sleep(time.Millisecond) // the processors are busy
				case <-done:
					return
				}
			}
		}()
		op := settings(t, "operator: {otel-profiles: {exporters: {mine: {exporter: file, path: "+t.TempDir()+"/all}}}}")
		g := &gadgettest.Gadget{Start: gadgettest.Emits("leaf", 5), Logged: func(_ *gadgettest.Gadget, line string) { buffer <- line }}
		err := g.Make(t.Context(), op, gadgetcontext.WithAsRemoteCall(true)).Run(gadgettest.Params("mine"))
		discarded := len(buffer)
		close(done)
		var lines string
		for line := range sent {
			lines += line
		}
		require.NoError(t, err)
		require.Zero(t, discarded)
		require.Contains(t, lines, "1 rows read")
	})
}

// hang makes every attempt to open a file hang until the test ends, as on an unavailable network file system.
func hang(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	// If another process holds a lease on a file, opening the file waits.
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	if err != nil {
		t.Skipf("no leases on this file system: %v", err)
	}
	t.Cleanup(func() {
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	})
}

// A file that hangs must delay only the exporter that needs it. TestExporterWaitsForFiles tests the end of the process.
func TestAFileThatHangs(t *testing.T) {
	r := startReceiver(t)
	token := filepath.Join(t.TempDir(), "token")
	op := settings(t, exporter("mine", r.Addr(), "")+"      hangs: {endpoint: 'https://127.0.0.1:1', auth: {bearer_token_file: "+token+"}}\n")
	hang(t, token)
	remote := gadgetcontext.WithAsRemoteCall(true)

	started, done := make(chan struct{}), make(chan error, 1)
	stuck := &gadgettest.Gadget{Start: func(*gadgettest.Gadget) { close(started) }}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	gadgetCtx := stuck.Make(ctx, op, remote)
	go func() { done <- gadgetCtx.Run(gadgettest.Params("hangs")) }()

	g := &gadgettest.Gadget{Start: gadgettest.Emits("leaf", 1)}
	begin := time.Now()
	require.NoError(t, g.Make(t.Context(), op, remote).Run(gadgettest.Params("mine")))
	require.Less(t, time.Since(begin), 20*time.Second, "not for as long as the file hangs")
	require.Eventually(t, func() bool { return len(r.Samples()) > 0 }, 20*time.Second, time.Millisecond)

	<-started // the gadget runs although its exporter does not
	require.Contains(t, stuck.Log.String(), "has not responded")
	cancel()
	require.NoError(t, <-done)
}

// A daemon must send the requests in a storage folder, even if no gadget uses the exporter.
func TestStoredIsSentWithoutAGadget(t *testing.T) {
	r := startReceiver(t)
	folder := filepath.Join(t.TempDir(), "queue")
	more := "        shutdown_timeout: 1s\n        sending_queue: {storage: " + folder + "}\n"
	op := settings(t, exporter("mine", "127.0.0.1:1", more))
	g := &gadgettest.Gadget{Start: gadgettest.Emits("leaf", 3)}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params("mine")))

	for _, before := range []bool{true, false} {
		op = settings(t, exporter("mine", r.Addr(), more))
		if before {
			require.Empty(t, r.Samples(), "an Init alone opens nothing")
		}
		op.SendStored()
		require.Eventually(t, func() bool { return len(r.Samples()) == 1 }, 20*time.Second, time.Millisecond)
	}
	require.Equal(t, map[string]int64{"leaf": 3}, leaves(t, r))
}

// If a gadget does not end in time, Shutdown must flush it, even while it closes. Run this test with -race.
func TestShutdownWhileAGadgetCloses(t *testing.T) {
	sent := make(chan struct{})
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: func(ctx context.Context, r recvtest.Request) (*colprofiles.ExportProfilesServiceResponse, error) {
		close(sent)
		<-ctx.Done() // Close has released its names, and waits
		return nil, ctx.Err()
	}})
	op := settings(t, exporter("mine", r.Addr, "        shutdown_timeout: 300ms\n"))
	g := &gadgettest.Gadget{Start: gadgettest.Emits("leaf", 3)}
	done := make(chan error, 1)
	gadgetCtx := g.Make(t.Context(), op)
	go func() { done <- gadgetCtx.Run(gadgettest.Params("mine")) }()
	<-sent
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, op.Shutdown(ctx), "did not stop in time")
	require.NoError(t, <-done)
}
