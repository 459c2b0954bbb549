package otlp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAskedWaitIsCapped(t *testing.T) {
	for _, wait := range []time.Duration{-time.Hour, 0, 1, time.Second, 5 * time.Minute, 100 * 365 * 24 * time.Hour, 1<<63 - 1} {
		got := askedWait(wait)
		require.GreaterOrEqual(t, got, min(max(wait, 0), maxAskedWait))
		require.LessOrEqual(t, got, maxAskedWait+maxAskedWait/10)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                               0,
		"7":                              7 * time.Second,
		" 7 ":                            7 * time.Second,
		"-7":                             0,
		"18446744073709551615":           maxAskedWait,
		"999999999999999999999999999999": 0,
		"soon":                           0,
		"Fri, 02 Jan 2026 03:04:35 GMT":  30 * time.Second,
		"Thu, 01 Jan 2026 03:04:05 GMT":  -24 * time.Hour,
	} {
		require.Equal(t, want, retryAfter(value, now), value)
	}
}

// TestReceiverThatSpeaksFirst requires that a gRPC server is recognised if its greeting arrives before the request is sent.
// net/http reports this case with another error.
func TestReceiverThatSpeaksFirst(t *testing.T) {
	d := diagnosis{plain: true}
	require.Contains(t, d.hint(`Post "http://127.0.0.1:4317/v1development/profiles": readLoopPeekFailLocked: %!w(<nil>)`), "speaks gRPC on this port")
}
