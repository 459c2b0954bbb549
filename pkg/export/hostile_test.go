package export

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	colprofiles "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
)

// heapPeak runs f and returns the heap's largest growth during this time.
func heapPeak(f func()) uint64 {
	var before, now runtime.MemStats
	defer debug.SetGCPercent(debug.SetGCPercent(10)) // to measure live memory, not garbage
	runtime.GC()
	runtime.ReadMemStats(&before)
	stop, stopped := make(chan struct{}), make(chan struct{})
	var peak uint64
	go func() {
		defer close(stopped)
		for {
			runtime.ReadMemStats(&now)
			if now.HeapAlloc > before.HeapAlloc {
				peak = max(peak, now.HeapAlloc-before.HeapAlloc)
			}
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	f()
	close(stop)
	<-stopped
	return peak
}

func flood(w io.Writer, n int) {
	chunk := bytes.Repeat([]byte("A"), 64<<10)
	for ; n > 0; n -= len(chunk) {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

func TestHostileHTTPReceiver(t *testing.T) {
	const huge = 256 << 20
	for name, tc := range map[string]struct {
		answer    func(w http.ResponseWriter)
		delivered bool
	}{
		"endless success": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-protobuf")
			flood(w, huge)
		}, true},
		"endless error": {func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusBadRequest)
			flood(w, huge)
		}, false},
		"gzip bomb": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(http.StatusBadRequest)
			gz := gzip.NewWriter(w)
			flood(gz, huge)
			_ = gz.Close()
		}, false},
		"headers without end": {func(w http.ResponseWriter) {
			w.Header().Set("X-Long", strings.Repeat("A", 512<<10))
			w.WriteHeader(http.StatusOK)
		}, false},
		"words with escapes and secrets": {func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, "\x1b[2J\nlevel=error fake line, you sent Bearer s3cr3t-token and s3cr3t-team\n"+strings.Repeat("Z", 5000))
		}, false},
		"a web page": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = io.WriteString(w, "<html>please log in</html>")
		}, false},
		"a broken message": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-protobuf")
			_, _ = io.WriteString(w, "\xff\xff\xff\xff")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := recvtest.StartHTTP(t, recvtest.HTTPConfig{Answer: func(w http.ResponseWriter, _ recvtest.Request) { tc.answer(w) }})
			cfg := settings(config.TransportHTTP, r.URL)
			cfg.Auth.BearerToken = "s3cr3t-token"
			cfg.Headers = []config.Header{{Key: "x-team", Value: "s3cr3t-team"}, {Key: "x-name", Value: config.Secret(cfg.Name)}}
			cfg.Retry.MaxElapsedTime = time.Millisecond
			e, logs := open(t, cfg)
			peak := heapPeak(func() {
				e.Enqueue(message(t, "app", 0))
				drainAll(t, e)
			})
			require.Less(t, peak, uint64(48<<20))
			s := balanced(t, e)
			require.Equal(t, tc.delivered, s.Rows.Delivered == 10, "%+v", s)
			stop(t, e)
			checkLog(t, logs)
			if logs.String() != "" {
				require.Contains(t, logs.String(), `exporter \"test\"`, "the user's own words are no secret")
			}
		})
	}
}

// checkLog fails the test unless all lines are short, without secrets and without control characters.
func checkLog(t *testing.T, logs *capture) {
	t.Helper()
	require.NotContains(t, logs.String(), "s3cr3t")
	require.NotContains(t, logs.String(), "\x1b")
	for _, line := range strings.Split(logs.String(), "\n") {
		require.Less(t, len(line), 1500, line)
		require.False(t, strings.HasPrefix(line, "level=error fake"))
	}
}

func TestHostileGRPCReceiver(t *testing.T) {
	big := &colprofiles.ExportProfilesServiceResponse{PartialSuccess: &colprofiles.ExportProfilesPartialSuccess{ErrorMessage: strings.Repeat("A", 16<<20)}}
	for name, tc := range map[string]struct {
		options   []grpc.ServerOption
		answer    recvtest.Answer
		compress  string
		delivered bool
	}{
		"megabytes of response":         {answer: always(big, nil)},
		"a bomb of a response":          {answer: always(big, nil), compress: "gzip"},
		"a zstd bomb":                   {answer: always(big, nil), compress: "zstd"},
		"a long warning":                {answer: always(&colprofiles.ExportProfilesServiceResponse{PartialSuccess: &colprofiles.ExportProfilesPartialSuccess{ErrorMessage: strings.Repeat("A", 3<<20)}}, nil), delivered: true},
		"half a megabyte of error text": {answer: always(nil, status.Error(codes.InvalidArgument, strings.Repeat("A", 512<<10)))},
		"megabytes of error text":       {answer: always(nil, status.Error(codes.InvalidArgument, strings.Repeat("A", 8<<20)))},
		"escapes and secrets":           {answer: always(nil, status.Error(codes.InvalidArgument, "\x1b[2J\nlevel=error fake, you sent s3cr3t-token"))},
	} {
		t.Run(name, func(t *testing.T) {
			r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: tc.answer, Options: tc.options})
			cfg := settings(config.TransportGRPC, r.Addr)
			cfg.Auth.BearerToken = "s3cr3t-token"
			cfg.Retry.MaxElapsedTime = time.Millisecond
			if tc.compress != "" {
				cfg.Compression = tc.compress // a gRPC server compresses its answer like the request
			}
			e, logs := sent(t, cfg)
			s := balanced(t, e)
			require.Equal(t, tc.delivered, s.Rows.Delivered == 10, "%+v", s)
			stop(t, e)
			checkLog(t, logs)
			require.NotEmpty(t, logs.String())
		})
	}
}

// hang receives a request and never answers.
func hang(ctx context.Context, _ recvtest.Request) (*colprofiles.ExportProfilesServiceResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestShutdownWithHangingReceiver(t *testing.T) {
	release := make(chan struct{})
	for transport, endpoint := range map[string]string{
		config.TransportGRPC: recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: hang}).Addr,
		config.TransportHTTP: recvtest.StartHTTP(t, recvtest.HTTPConfig{Answer: func(_ http.ResponseWriter, r recvtest.Request) {
			select {
			case <-r.HTTP.Context().Done():
			case <-release:
			}
		}}).URL,
	} {
		t.Run(transport, func(t *testing.T) {
			cfg := settings(transport, endpoint)
			cfg.Timeout = time.Hour
			e, logs := open(t, cfg)
			for range 20 {
				e.Enqueue(message(t, "app", 0))
			}
			require.Eventually(t, func() bool { return inFlight(e) == 4 }, 20*time.Second, time.Millisecond)
			require.Equal(t, int64(200), balanced(t, e).Rows.Held)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			err := e.Shutdown(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "200 rows")
			require.Equal(t, err, e.Shutdown(t.Context()), "idempotent")
			s := balanced(t, e)
			require.Equal(t, map[Reason]int64{ReasonShutdown: 200}, s.Rows.Dropped)
			require.Zero(t, s.QueueBytes)
			require.Contains(t, logs.String(), "dropped 200 rows")

			e.Enqueue(message(t, "late", 0))
			require.Equal(t, int64(210), balanced(t, e).Rows.Dropped[ReasonShutdown])
		})
	}
	close(release)
}

// stuckSender ignores its context, like a write to a dead disk.
type stuckSender struct{ release chan struct{} }

func (s *stuckSender) Send(context.Context, Message) attempt.Outcome {
	<-s.release
	return attempt.Outcome{Verdict: attempt.Accepted}
}

func (s *stuckSender) Close() error { return nil }

func TestShutdownWithStuckSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuckSender{release: make(chan struct{})}
		e := startWith(t, settings("stuck", ""), s)
		for range 20 {
			e.Enqueue(message(t, "app", 0))
		}
		synctest.Wait()
		require.Equal(t, 4, inFlight(e))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		require.ErrorContains(t, e.Shutdown(ctx), "is still being sent")
		require.Equal(t, map[Reason]int64{ReasonShutdown: 200}, balanced(t, e).Rows.Dropped)
		close(s.release)
		<-e.done
		require.Equal(t, map[Reason]int64{ReasonShutdown: 200}, balanced(t, e).Rows.Dropped, "what ends late counts no more")
	})
}

// startWith starts an exporter with the test's sender.
func startWith(t testing.TB, cfg config.Exporter, to sender) *Exporter {
	t.Helper()
	return startWithOptions(t, cfg, to, Options{})
}

func startWithOptions(t testing.TB, cfg config.Exporter, to sender, opts Options) *Exporter {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = (&capture{}).logger()
	}
	e := prepare(cfg, opts)
	go e.run(func() (sender, error) { return to, nil })
	require.NoError(t, e.Opened(t.Context()))
	return e
}

// If the receiver blocks forever, Enqueue must not wait, and memory must stay within its limit.
func TestBlockedForGood(t *testing.T) {
	s := &stuckSender{release: make(chan struct{})}
	cfg := settings("stuck", "")
	cfg.Queue.Size = 8 << 20
	e := startWith(t, cfg, s)
	const messages = 100_000
	body := make([]byte, 1000)
	peak := heapPeak(func() {
		for range messages {
			e.Enqueue(Message{Body: body, Rows: 3, Owner: "app"})
		}
	})
	st := balanced(t, e)
	require.EqualValues(t, 3*messages, st.Rows.Enqueued)
	require.LessOrEqual(t, st.QueueBytes, st.QueueCapacity)
	require.Less(t, peak, uint64(cfg.Queue.Size+32<<20))
	t.Logf("rows read %d, delivered %d, held %d, dropped %v", st.Rows.Enqueued, st.Rows.Delivered, st.Rows.Held, st.Rows.Dropped)
	close(s.release)
	stop(t, e)
}

// flakySender requests a retry, rejects, accepts and partly accepts requests, in turn.
type flakySender struct{ n atomic.Int64 }

func (s *flakySender) Send(ctx context.Context, _ Message) attempt.Outcome {
	switch s.n.Add(1) % 7 {
	case 0, 1:
		return attempt.Outcome{Verdict: attempt.Retryable, What: "busy"}
	case 2:
		return attempt.Outcome{Verdict: attempt.Partial, RejectedProfiles: 1}
	case 3:
		return attempt.Outcome{Verdict: attempt.Rejected, What: "no"}
	case 4:
		return attempt.Outcome{Verdict: attempt.TooLarge}
	}
	if ctx.Err() != nil {
		return attempt.Outcome{Verdict: attempt.Retryable}
	}
	return attempt.Outcome{Verdict: attempt.Accepted}
}

func (s *flakySender) Close() error { return nil }

// Under a load with all kinds of faults, every row must be accounted for at every moment.
func TestEveryRowIsAccountedFor(t *testing.T) {
	for _, storage := range []bool{false, true} {
		t.Run(map[bool]string{false: "memory", true: "storage"}[storage], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { meetEverything(t, storage) })
		})
	}
}

func meetEverything(t *testing.T, storage bool) {
	cfg := settings("flaky", "")
	cfg.Queue.Size = 200 << 10
	cfg.Retry.InitialInterval, cfg.Retry.MaxInterval = time.Microsecond, 10*time.Microsecond
	messages := 5000
	if storage {
		cfg.Queue.Storage, cfg.Queue.StorageSize = t.TempDir(), 100<<10
		messages = 250 // each is synced to a real disk
	}
	e := startWith(t, cfg, &flakySender{})
	loaded, checks := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			select {
			case <-loaded:
				checks <- nil
				return
			default:
			}
			err = accounted(e.Stats())
			time.Sleep(time.Microsecond) // of the simulated clock
		}
		checks <- err
	}()
	owners := []string{"", "a", "b", "c"}
	for i := range messages {
		m := message(t, owners[i%len(owners)], i%4000)
		m.Profiles = 2
		switch i % 100 {
		case 0:
			m.Start = m.Start.Add(-2 * time.Hour)
		case 1:
			m.Start = m.Start.Add(2 * time.Hour)
		case 2:
			m.Body = make([]byte, 300<<10)
		}
		e.Enqueue(m)
		if i%4 == 0 {
			time.Sleep(time.Microsecond)
		}
	}
	close(loaded)
	require.NoError(t, <-checks)
	require.NoError(t, e.Drain(t.Context()))
	time.Sleep(3 * time.Hour) // stored data is also sent when the clock has caught up
	s := balanced(t, e)
	require.Zero(t, s.Rows.Held)
	for _, r := range []Reason{ReasonTooOld, ReasonRejected, ReasonTooLarge, ReasonQueueFull} {
		require.Positive(t, s.Rows.Dropped[r], "%s: %+v", r, s.Rows)
	}
	require.Positive(t, s.Rows.Partial)
	require.Positive(t, s.Rows.Delivered)
	t.Logf("rows read %d, delivered %d, partial %d, dropped %v", s.Rows.Enqueued, s.Rows.Delivered, s.Rows.Partial, s.Rows.Dropped)
	require.NoError(t, e.Shutdown(t.Context()))
}
