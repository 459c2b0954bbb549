package export

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
)

// A history accepts data of any time. It does not drop or delay data because of the clock. Its rows count as delivered.
func TestHistory(t *testing.T) {
	cfg := toFile(t, config.FormatHistory)
	cfg.Retention = config.Retention{MaxBytes: 1 << 30}
	e, _ := open(t, cfg)
	for _, ahead := range []time.Duration{-2 * time.Hour, 0, 2 * time.Hour} {
		m := message(t, "shop", 0)
		m.Start, m.End = time.Now().Add(ahead), time.Now().Add(ahead+10*time.Second)
		e.Enqueue(m)
	}
	drainAll(t, e)
	delivered := balanced(t, e).Rows.Delivered
	require.Equal(t, int64(30), delivered)
	_, err := opened(cfg, Options{})
	require.ErrorContains(t, err, "path: folder "+cfg.Path+" is in use")

	list, err := history.List(cfg.Path)
	require.NoError(t, err)
	require.Equal(t, delivered, history.Total(list).Rows)
	a, err := history.Read(cfg.Path, history.Query{Service: "shop"})
	require.NoError(t, err)
	samples := receiver.Resolve(a.Request)
	require.Len(t, samples, 1)
	require.Equal(t, int64(9), samples[0].Total())
	sent := receiver.Resolve(request("shop", 0))[0]
	require.Equal(t, sent.Stack, samples[0].Stack)
	require.Equal(t, sent.Attributes, samples[0].Attributes)
	require.Equal(t, sent.TraceID, samples[0].TraceID)
}

// While the disk is full, the queue holds requests up to its limit. Afterwards, each row must be in the history or count as
// dropped.
func TestHistoryOnAFullDisk(t *testing.T) {
	disk := smallDisk(t)
	cfg := toFile(t, config.FormatHistory)
	cfg.Path, cfg.Retention = filepath.Join(disk, "history"), config.Retention{MaxBytes: 1 << 30}
	cfg.Queue.Size = 40 << 10
	cfg.Retry.InitialInterval, cfg.Retry.MaxInterval = time.Millisecond, time.Millisecond
	e, logs := open(t, cfg)
	enqueue := func(n int) {
		for i := range n {
			e.Enqueue(message(t, "shop", i))
		}
	}
	enqueue(3)
	drainAll(t, e)

	filler := filepath.Join(disk, "filler")
	require.ErrorIs(t, fill(filler), unix.ENOSPC)
	enqueue(400)
	require.Eventually(t, func() bool { return e.Stats().Retries > 3 }, 30*time.Second, time.Millisecond)
	full := balanced(t, e).Rows
	require.Positive(t, full.Held)
	require.Positive(t, full.Dropped[ReasonQueueFull])
	require.Contains(t, logs.String(), "no space left")

	require.NoError(t, os.Remove(filler))
	enqueue(3)
	drainAll(t, e)
	rows := balanced(t, e).Rows
	require.Zero(t, rows.Held)
	require.Equal(t, rows.Enqueued, rows.Delivered+rows.DroppedTotal())
	require.GreaterOrEqual(t, rows.Delivered, full.Delivered+full.Held, "what was held came after all")
	a, err := history.Read(cfg.Path, history.Query{})
	require.NoError(t, err)
	require.Empty(t, a.Damaged)
	require.Equal(t, rows.Delivered, a.Summary.Rows)
	sum := int64(0)
	for _, s := range receiver.Resolve(a.Request) {
		sum += s.Total()
	}
	require.Equal(t, rows.Delivered/10*3, sum, "each request has ten rows, which add up to three")
}

// fill writes a file until there is no space.
func fill(path string) error {
	f, err := os.Create(path)
	for err == nil {
		_, err = f.Write(make([]byte, 1<<10))
	}
	return errors.Join(err, f.Close())
}
