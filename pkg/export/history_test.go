package export

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
