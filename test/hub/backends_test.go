//go:build e2e

package hub

import (
	"strings"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/backends"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
)

// accepted checks, by the rules of a backend's source, that it takes and shows the requests.
func accepted(t *testing.T, backend string, requests []*collectorpb.ExportProfilesServiceRequest) {
	t.Helper()
	require.NotEmpty(t, requests)
	for _, req := range requests {
		for _, err := range backends.Check(backend, req) {
			require.NoError(t, err)
		}
	}
	require.Equal(t, map[string]int64{
		"cart main.hash": 30, "cart main.sort": 12, "search main.find": 20, "coredns dns.serve": 7, "host kubelet.sync": 5,
	}, values(requests))
}

// TestBackends sends to a receiver that checks requests like the backend.
func TestBackends(t *testing.T) {
	for _, backend := range []string{backends.Pyroscope, backends.Parca, backends.Devfiler} {
		t.Run(backend, func(t *testing.T) {
			r := start(t)
			send(t, to(t, collectortest.Documented(t, backend), r.Addr()), rows())
			accepted(t, backend, r.Requests())
			shown(t, backend, r.Requests())
		})
	}
}

// TestPyroscopeGateway sends to a Pyroscope that needs a tenant, through a Collector with the page's configuration. The second
// Pyroscope needs no password, so the configuration has no header for it.
func TestPyroscopeGateway(t *testing.T) {
	const header = `, authorization: "${env:PYROSCOPE_AUTHORIZATION}"`
	config := collectortest.Documented(t, "pyroscope-gateway")
	require.Equal(t, 1, strings.Count(config, header))
	for name, of := range map[string]struct {
		config, variable string
		authorization    []string
	}{
		"with a password":    {config, "PYROSCOPE_AUTHORIZATION=Basic dXNlcjpwYXNzd29yZA==", []string{"Basic dXNlcjpwYXNzd29yZA=="}},
		"without a password": {strings.Replace(config, header, "", 1), "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			backend := recvtest.StartGRPC(t, recvtest.GRPCConfig{})
			through(t, 1, of.config, collectortest.Documented(t, backends.Pyroscope), backend.Addr, of.variable)

			var messages []*collectorpb.ExportProfilesServiceRequest
			for _, r := range backend.Requests() {
				require.Equal(t, of.authorization, r.Metadata.Get("authorization"))
				require.Equal(t, []string{"tenant-1"}, r.Metadata.Get("x-scope-orgid"))
				messages = append(messages, r.Profiles)
			}
			accepted(t, backends.Pyroscope, messages)
		})
	}
}

// shown checks the names that the page promises.
func shown(t *testing.T, backend string, requests []*collectorpb.ExportProfilesServiceRequest) {
	t.Helper()
	series := map[string]bool{}
	for _, req := range requests {
		switch backend {
		case backends.Pyroscope:
			for _, s := range backends.PyroscopeSeries(req) {
				series[s.Key()] = true
				require.Equal(t, "process_cpu:cpu:nanoseconds:cpu:nanoseconds", s.Type)
				require.NotEmpty(t, s.Labels["service_name"])
				require.NotContains(t, s.Labels, "thread_name")
			}
		case backends.Parca:
			for _, s := range receiver.Resolve(req) {
				require.Equal(t, "process_cpu:samples:count:cpu:nanoseconds", strings.Join([]string{s.Scope, s.Type, s.Unit, s.PeriodType, s.PeriodUnit}, ":"))
			}
		}
	}
}

// TestBackendsBehindCollector does the same through a Collector, without Parca. TestDoubledFunctions has Parca's preset behind a
// Collector, and test/backends a real Parca.
func TestBackendsBehindCollector(t *testing.T) {
	for _, backend := range []string{backends.Pyroscope, backends.Devfiler, backends.Elastic} {
		t.Run(backend, func(t *testing.T) {
			r := start(t)
			through(t, 1, collectortest.Documented(t, "relay"), collectortest.Documented(t, backend), r.Addr())
			accepted(t, backend, r.Requests())
		})
	}
}
