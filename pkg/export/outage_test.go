package export

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
)

// outageSender is a receiver that is down for a while.
type outageSender struct {
	mu       sync.Mutex
	down     bool
	attempts int // while down
}

func (s *outageSender) Send(context.Context, Message) attempt.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		s.attempts++
		return attempt.Outcome{Verdict: attempt.Retryable, What: "down"}
	}
	return attempt.Outcome{Verdict: attempt.Accepted}
}

func (s *outageSender) Close() error { return nil }

func (s *outageSender) set(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// TestAnHoursOutage has no receiver for an hour. Each second brings 10,000 rows in a request of 64 KiB. Only the clock is
// simulated.
func TestAnHoursOutage(t *testing.T) {
	for _, queue := range []int64{64 << 20, 512 << 20} {
		t.Run(fmt.Sprintf("queue of %d MiB", queue>>20), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := settings("outage", "")
				cfg.Queue = config.Queue{Size: queue, NumConsumers: 10, MaxAge: 30 * time.Minute}
				cfg.Retry = config.Retry{Enabled: true, InitialInterval: 5 * time.Second, RandomizationFactor: 0.5, Multiplier: 1.5, MaxInterval: 30 * time.Second}
				to := &outageSender{}
				logs := &capture{}
				e := startWithOptions(t, cfg, to, Options{Logger: logs.logger()})
				second := func() {
					now := time.Now()
					e.Enqueue(Message{Body: make([]byte, 64<<10), Rows: 10_000, Samples: 500, Start: now.Add(-time.Second), End: now, Owner: "app"})
					time.Sleep(time.Second)
					require.NoError(t, accounted(e.Stats()))
				}
				for range 60 {
					second()
				}
				synctest.Wait()
				require.Equal(t, e.Stats().Rows.Enqueued, e.Stats().Rows.Delivered)

				var before, now runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				to.set(true)
				var peak uint64
				for i := range 3600 {
					second()
					if i%300 == 0 {
						runtime.GC()
						runtime.ReadMemStats(&now)
						peak = max(peak, now.HeapAlloc-min(before.HeapAlloc, now.HeapAlloc))
					}
				}
				require.Less(t, peak, uint64(queue+32<<20))
				during := balanced(t, e)
				require.LessOrEqual(t, during.QueueBytes, queue)
				if queue < 30*60*64<<10 {
					require.Positive(t, during.Rows.Dropped[ReasonQueueFull])
					require.Zero(t, during.Rows.Dropped[ReasonTooOld])
				} else {
					require.Zero(t, during.Rows.Dropped[ReasonQueueFull])
					require.Positive(t, during.Rows.Dropped[ReasonTooOld])
				}
				require.Less(t, to.attempts, 3600, "a receiver that is down is not flooded")

				to.set(false)
				back := time.Now()
				require.NoError(t, e.Drain(t.Context()))
				took := time.Since(back)
				after := balanced(t, e)
				require.Less(t, took, time.Minute)
				require.Equal(t, during.Rows.Enqueued-during.Rows.DroppedTotal()-after.Rows.Dropped[ReasonTooOld]+during.Rows.Dropped[ReasonTooOld], after.Rows.Delivered)
				t.Logf("rows read %d, delivered %d, held %d at the end of the outage, dropped %v; attempts while down %d; memory over the baseline %d MiB; recovered in %s",
					after.Rows.Enqueued, after.Rows.Delivered, during.Rows.Held, after.Rows.Dropped, to.attempts, peak>>20, took)
				require.NoError(t, e.Shutdown(t.Context()))
				require.Regexp(t, `delivering again after an outage of 1h0m\d+s; [\d,]+ rows were held`, logs.String())
			})
		})
	}
}

// Shutdown must shorten waits that the receiver did not request.
func TestShutdownTriesOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := settings("outage", "")
		cfg.Retry.InitialInterval, cfg.Retry.MaxInterval = time.Hour, time.Hour
		to := &outageSender{down: true}
		e := startWith(t, cfg, to)
		for range 10 {
			e.Enqueue(Message{Body: []byte("x"), Rows: 1, Start: time.Now()})
		}
		time.Sleep(time.Minute)
		require.Equal(t, int64(10), e.Stats().Rows.Held)
		to.set(false)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.NoError(t, e.Shutdown(ctx))
		require.Equal(t, int64(10), balanced(t, e).Rows.Delivered)
	})
}

// askingSender requests a wait.
type askingSender struct{ outageSender }

func (s *askingSender) Send(ctx context.Context, m Message) attempt.Outcome {
	out := s.outageSender.Send(ctx, m)
	if out.Verdict == attempt.Retryable {
		out.Wait = time.Minute
	}
	return out
}

// Delivery and Shutdown must both respect a wait that the receiver requested.
func TestShutdownRespectsTheReceiver(t *testing.T) {
	for name, shutdown := range map[string]bool{"delivery": false, "shutdown": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				to := &askingSender{}
				to.set(true)
				logs := &capture{}
				e := startWithOptions(t, settings("outage", ""), to, Options{Logger: logs.logger()})
				begin := time.Now()
				e.Enqueue(Message{Body: []byte("x"), Rows: 1, Start: begin})
				synctest.Wait()
				to.set(false)
				if !shutdown {
					require.NoError(t, e.Drain(t.Context()))
					require.GreaterOrEqual(t, time.Since(begin), time.Minute)
					require.Equal(t, int64(1), balanced(t, e).Rows.Delivered)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				if err := e.Shutdown(ctx); shutdown {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.Equal(t, map[Reason]int64{ReasonShutdown: 1}, balanced(t, e).Rows.Dropped)
				}
				require.Equal(t, 1, to.attempts)
				require.Contains(t, logs.String(), "(the receiver asked to wait 1m0s)")
			})
		})
	}
}

// Data that is too old must be dropped, and data too far ahead must be held before it is sent. Each has its own reason.
func TestAgeOfData(t *testing.T) {
	to := &outageSender{}
	e := startWith(t, settings("outage", ""), to)
	now := time.Now()
	for _, start := range []time.Time{now, now.Add(-59 * time.Minute), now.Add(9 * time.Minute), {}} {
		e.Enqueue(Message{Body: []byte("x"), Rows: 1, Start: start})
	}
	e.Enqueue(Message{Body: []byte("x"), Rows: 10, Start: now.Add(-61 * time.Minute)})
	drainAll(t, e)
	s := balanced(t, e)
	require.Equal(t, int64(4), s.Rows.Delivered)
	require.Equal(t, map[Reason]int64{ReasonTooOld: 10}, s.Rows.Dropped)
	stop(t, e)
}

// laterBy returns t on a clock that was set d ahead, or that continued while the machine was suspended. The monotonic clock is
// unchanged.
func laterBy(t time.Time, d time.Duration) time.Time {
	wall := (*uint64)(unsafe.Pointer(&t))
	*wall += uint64(d/time.Second) << 30 // see the comment of time.Time
	return t
}

// Data must count as old after two hours of suspension, or if the clock was two hours behind.
func TestAgeAfterSuspend(t *testing.T) {
	before := time.Now()
	require.Equal(t, 2*time.Hour, laterBy(before, 2*time.Hour).Round(0).Sub(before.Round(0)))
	require.Zero(t, laterBy(before, 2*time.Hour).Sub(before))

	var suspended atomic.Bool
	to := &outageSender{}
	to.set(true)
	cfg := settings("outage", "")
	cfg.Retry.InitialInterval, cfg.Retry.MaxInterval = 10*time.Millisecond, 10*time.Millisecond
	e := startWithOptions(t, cfg, to, Options{Now: func() time.Time {
		if suspended.Load() {
			return laterBy(time.Now(), 2*time.Hour)
		}
		return time.Now()
	}})
	e.Enqueue(Message{Body: []byte("x"), Rows: 1, Start: before, End: time.Now()})
	require.Eventually(t, func() bool { return e.Stats().Retries > 0 }, 20*time.Second, time.Millisecond)
	require.Equal(t, int64(1), e.Stats().Rows.Held)
	suspended.Store(true)
	require.Eventually(t, func() bool { return e.Stats().Rows.Held == 0 }, 20*time.Second, time.Millisecond)
	require.Equal(t, map[Reason]int64{ReasonTooOld: 1}, balanced(t, e).Rows.Dropped)
	stop(t, e)
}

// If the clock is behind at the start, stored data is not lost. It is sent soon after the clock is set.
func TestClockBehindAtStart(t *testing.T) {
	for _, consumers := range []int{1, 10} {
		t.Run(fmt.Sprintf("%d consumers", consumers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := settings("outage", "")
				cfg.Queue.NumConsumers = consumers
				cfg.Queue.Storage, cfg.Queue.StorageSize = filepath.Join(t.TempDir(), "queue"), 1<<30
				to := &outageSender{down: true}
				e := startWith(t, cfg, to)
				for range 3 {
					e.Enqueue(Message{Body: []byte("x"), Rows: 10, Start: time.Now()})
				}
				settled(t, e)
				require.NoError(t, e.Shutdown(t.Context()))

				to.set(false)
				behind := atomic.Int64{}
				behind.Store(int64(2 * time.Hour))
				logs := &capture{}
				clock := func() time.Time { return time.Now().Add(-time.Duration(behind.Load())) }
				e = startWithOptions(t, cfg, to, Options{Logger: logs.logger(), Now: clock})
				synctest.Wait()
				require.NoError(t, e.Drain(t.Context()), "what waits for the clock is safe on disk: no reason to wait")
				// New data has the same wrong clock, so it seems current and is sent.
				e.Enqueue(Message{Body: []byte("new"), Rows: 1, Start: clock()})
				time.Sleep(6 * time.Minute)
				require.Equal(t, int64(1), balanced(t, e).Rows.Delivered)
				require.Len(t, storedFiles(t, cfg.Queue.Storage), 3)

				behind.Store(0)
				time.Sleep(clockCheck)
				synctest.Wait()
				require.Equal(t, int64(31), balanced(t, e).Rows.Delivered)
				require.NoError(t, e.Shutdown(t.Context()))
				require.Contains(t, logs.String(), "Set the clock")
			})
		})
	}
}
