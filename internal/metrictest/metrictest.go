// Package metrictest reads the metrics that operators report to Inspektor Gadget.
package metrictest

import (
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Sums returns a function that reads a metric's sums since this call, by the values of an attribute.
func Sums(t testing.TB) func(metric, attribute string) map[string]float64 {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	require.NoError(t, metrics.RegisterProvider(provider))
	t.Cleanup(func() { metrics.UnregisterProvider(provider) })
	return func(metric, by string) map[string]float64 {
		t.Helper()
		var found metricdata.ResourceMetrics
		assert.NoError(t, reader.Collect(t.Context(), &found))
		sums := map[string]float64{}
		for _, scope := range found.ScopeMetrics {
			for _, m := range scope.Metrics {
				if m.Name != metric {
					continue
				}
				switch data := m.Data.(type) {
				case metricdata.Sum[int64]:
					add(sums, data.DataPoints, by)
				case metricdata.Sum[float64]:
					add(sums, data.DataPoints, by)
				default:
					assert.Fail(t, "not a sum", "%s: %T", metric, data)
				}
			}
		}
		return sums
	}
}

func add[N int64 | float64](sums map[string]float64, points []metricdata.DataPoint[N], by string) {
	for _, p := range points {
		value, _ := p.Attributes.Value(attribute.Key(by))
		sums[value.AsString()] += float64(p.Value)
	}
}
