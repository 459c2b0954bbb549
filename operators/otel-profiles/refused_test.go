package otelprofiles_test

import (
	"testing"

	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/metrics"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
)

// A client that detaches is not told that a gadget did not start: an alert goes by the metric.
func TestRefusedGadgetsAreCounted(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	require.NoError(t, metrics.RegisterProvider(provider))
	defer metrics.UnregisterProvider(provider)

	op := settings(t, exporter("mine", "127.0.0.1:1", ""))
	require.ErrorContains(t, (&gadgettest.Gadget{}).Make(t.Context(), op, gadgetcontext.WithAsRemoteCall(true)).Run(gadgettest.Params("mnie")), "mine")

	var found metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &found))
	counts := map[string]int64{}
	for _, scope := range found.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name == "ig_otel_profiles_gadgets_refused" {
				for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
					gadget, _ := p.Attributes.Value("gadget")
					counts[gadget.AsString()] = p.Value
				}
			}
		}
	}
	require.Equal(t, map[string]int64{"profile_cpu": 1}, counts)
}
