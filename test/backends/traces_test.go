//go:build e2e

package backends

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestServiceOfTraces requires that a traced service has the same service.name in Pyroscope as in its spans. Pyroscope finds a
// span's code by its ID and this service, although none of our settings names the service.
func TestServiceOfTraces(t *testing.T) {
	needs(t, "pyroscope")
	igtest.NeedRoot(t)
	program := filepath.Join(t.TempDir(), "traced")
	igtest.Output(t, "go", "build", "-o", program, "./traced")
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "OTEL_SERVICE_NAME=webshop-checkout", "OTEL_RESOURCE_ATTRIBUTES=service.namespace=webshop,service.version=1.2,deployment.environment.name=prod")
	service := igtest.StartProgram(t, cmd)

	p := startPyroscope(t)
	between := passOn(t, p.addr())
	config := "operator:\n  otel-profiles:\n    exporters:\n" + exporter(t, p.name(), p.name(), "server", between.Addr()) + patient
	said, in := sampled(t, "profile_cpu", config, "server", "--timeout=20", "--comm=traced", "--spans", "--unwind=whole", "--frequency=99")

	bySpan := map[string]string{} // the service of each span
	for line := range strings.Lines(service.Stop()) {
		fields := strings.Fields(line)
		require.Len(t, fields, 3)
		bySpan[fields[2]] = fields[0]
	}

	sent, linked := map[string]int64{}, ""
	for _, s := range between.Samples() {
		sent[s.SpanID] += s.Total() * s.Period
		if s.SpanID != "" && sent[s.SpanID] > sent[linked] && s.Service != "traced" {
			require.Equal(t, bySpan[s.SpanID], s.Service, "the service of the span")
			linked = s.SpanID
		}
	}
	require.NotEmpty(t, linked, "%s", said)
	selector := fmt.Sprintf("{service_name=%q}", bySpan[linked])
	require.Eventually(t, func() bool { total, _ := p.ofSpan(t, selector, linked, in); return total > 0 }, 30*time.Second, time.Second)
	total, names := p.ofSpan(t, selector, linked, in)
	require.Contains(t, names, "main.checkout")
	labels := p.labels(t, selector, in)
	for _, label := range []string{"service_namespace", "service_version", "deployment_environment_name"} {
		require.Contains(t, labels, label)
	}
	t.Logf("pyroscope %s: %.2f of %.2f s of the span %s in the service %s", p.version(), float64(total)/1e9, float64(sent[linked])/1e9, linked, bySpan[linked])
}
