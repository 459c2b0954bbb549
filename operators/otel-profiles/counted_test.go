package otelprofiles_test

import (
	"testing"

	igconfig "github.com/inspektor-gadget/inspektor-gadget/pkg/config"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/metrictest"
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// If gadgets share an exporter, each gadget's rows must be counted separately.
func TestDeliveryIsCountedByGadget(t *testing.T) {
	sums := metrictest.Sums(t)
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), "      away: {exporter: otlp-grpc, endpoint: 'localhost:1', insecure: true, shutdown_timeout: 10ms}\n"))
	for _, exporter := range []string{"mine", "mine", "away"} {
		require.NoError(t, (&gadgettest.Gadget{Start: gadgettest.Emits("leaf", 1)}).Make(t.Context(), op).Run(gadgettest.Params(exporter)))
	}
	require.Equal(t, map[string]float64{"profile_cpu": 2}, sums("ig_otel_profiles_rows_delivered", "gadget"))
	require.Equal(t, map[string]float64{"profile_cpu": 1}, sums("ig_otel_profiles_rows_dropped", "gadget"))
	require.EqualValues(t, 2, sums("ig_otel_profiles_requests", "exporter")["mine"])
	require.Equal(t, map[string]float64{"mine": 2}, sums("ig_otel_profiles_exporter_sent_profile_samples", "exporter"))
	require.Equal(t, map[string]float64{"away": 1}, sums("ig_otel_profiles_exporter_send_failed_profile_samples", "exporter"))
	require.Greater(t, sums("ig_otel_profiles_request_bytes", "exporter")["mine"], sums("ig_otel_profiles_request_wire_bytes", "exporter")["mine"])
	require.Positive(t, sums("ig_otel_profiles_request_wire_bytes", "exporter")["mine"])
}

// Each count of a data source must reach its own metric, as the difference since the last report.
func TestCountsBecomeMetrics(t *testing.T) {
	sums := metrictest.Sums(t)
	counts := func(n int64) otelprofiles.Counts {
		c := otelprofiles.Counts{Read: 2 * n, Replaced: 3 * n, Dropped: map[otelprofiles.Reason]int64{otelprofiles.ReasonFull: 4 * n}}
		c.Fates = profile.Fates{profile.Whole: 5 * n, profile.NoStack: 6 * n, profile.Lost: 7 * n, profile.Truncated: 8 * n, profile.Incomplete: 9 * n}
		c.Frames[names.Outside] = 10 * n
		return c
	}
	otelprofiles.ReportCounts(counts(100), counts(99), attribute.String("exporter", "counts"), attribute.String("gadget", "g"))
	for _, tt := range []struct {
		metric, by, value string
		want              float64
	}{
		{"rows_read", "gadget", "g", 2},
		{"texts_replaced", "exporter", "counts", 3},
		{"rows_dropped", "reason", "window_full", 4},
		{"rows_stack_none", "exporter", "counts", 6},
		{"rows_stack_lost", "exporter", "counts", 7},
		{"rows_stack_truncated", "exporter", "counts", 8},
		{"rows_stack_incomplete", "exporter", "counts", 9},
		{"user_frames", "state", "outside any symbol", 10},
	} {
		require.Equal(t, map[string]float64{tt.value: tt.want}, sums("ig_otel_profiles_"+tt.metric, tt.by), tt.metric)
	}
}

// After an exporter has ended, its stored queue must no longer count. The next exporter counts it again.
func TestEndedExporterHasNoQueue(t *testing.T) {
	sums := metrictest.Sums(t)
	op := settings(t, exporter("away", "localhost:1", "        shutdown_timeout: 10ms\n        sending_queue: {storage: "+t.TempDir()+"}\n"))
	require.NoError(t, (&gadgettest.Gadget{Start: gadgettest.Emits("leaf", 1)}).Make(t.Context(), op).Run(gadgettest.Params("away")))
	for _, metric := range []string{"queue_size", "queue_capacity", "queue_requests", "queue_oldest_age"} {
		require.Zero(t, sums("ig_otel_profiles_exporter_"+metric, "exporter")["away"], metric)
	}
}

// A mistake in the settings must be counted while it exists, even if no gadget uses the exporter.
func TestMistakesAreCounted(t *testing.T) {
	sums := metrictest.Sums(t)
	const name = "ig_otel_profiles_exporter_mistakes"
	op := settings(t, exporter("mine", "127.0.0.1:1", "        tiemout: 5s\n"))
	require.Equal(t, map[string]float64{"": 1}, sums(name, "exporter"))
	require.NoError(t, op.Init(nil))
	require.Equal(t, map[string]float64{"": 1}, sums(name, "exporter"), "the same mistake is one")
	igconfig.Config = viper.New()
	require.NoError(t, op.Init(nil))
	require.Equal(t, map[string]float64{"": 0}, sums(name, "exporter"))
}
