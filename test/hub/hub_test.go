//go:build e2e

// Package hub runs the Collector configurations of docs/guides unchanged. It sends profiles from the operator through a real
// Collector, and checks what arrives behind it.
package hub

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/backends"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// TestEveryConfiguration requires a test for every configuration in the guides.
func TestEveryConfiguration(t *testing.T) {
	var names []string
	for _, m := range regexp.MustCompile("<!-- begin config (.*) -->").FindAllStringSubmatch(collectortest.Guides(t), -1) {
		names = append(names, m[1])
	}
	require.ElementsMatch(t, []string{
		"hub-exporter", "hub", "hub-batch", "hub-kubernetes", "tenants", "relay", "pyroscope-gateway",
		"pyroscope-kubernetes-exporter", "pyroscope-kubernetes",
		"backends-exporter", "backends-collector", "pyroscope-names", // test/backends has these three
		backends.Pyroscope, backends.Parca, backends.Devfiler, backends.Elastic,
	}, names)
}

// to returns documented settings of our exporter with another address, and with the name that the run asks for.
func to(t *testing.T, exporter, addr string) string {
	t.Helper()
	for line, now := range map[string]string{`(?m)^ {6}\w+:$`: "      collector:", `(?m)^( +endpoint): .*$`: "$1: http://" + addr} {
		lines := regexp.MustCompile(line)
		require.Len(t, lines.FindAllString(exporter, -1), 1, exporter)
		exporter = lines.ReplaceAllString(exporter, now)
	}
	return exporter
}

// through sends the rows several times through a Collector into a backend. It then stops the Collector, so everything has been
// sent and written.
func through(t *testing.T, times int, config, exporter, backend string, env ...string) *collectortest.Collector {
	t.Helper()
	c := collectortest.NewWithConfig(t, config, append(env, "BACKEND="+backend, "BACKEND_INSECURE=true")...)
	c.Start()
	for range times {
		send(t, to(t, exporter, c.GRPC), rows())
	}
	c.Stop()
	return c
}

// A Collector of v0.160 breaks these of our rules, and no others. We cannot change that.
var (
	collectors = []otlpcheck.Rule{
		otlpcheck.RuleTableZero, // attribute_table[0] gets an empty value: 2 bytes, but the protocol wants none
		otlpcheck.RuleOrphan,    // entries that only dropped profiles used stay in the dictionary
	}
	// In its files, resources have their texts in the string table.
	inFiles = append(slices.Clone(collectors), otlpcheck.RulePlain)
)

// check checks requests that a Collector has forwarded. They must break no rule that is not in may.
func check(t *testing.T, requests []*collectorpb.ExportProfilesServiceRequest, may []otlpcheck.Rule) {
	t.Helper()
	require.NotEmpty(t, requests)
	for _, req := range requests {
		for _, err := range otlpcheck.Check(req) {
			v := &otlpcheck.Violation{}
			require.ErrorAs(t, err, &v)
			require.Contains(t, may, v.Rule, "%v", err)
			if v.Rule == otlpcheck.RuleTableZero {
				require.Equal(t, "dictionary.attribute_table[0]", v.Path, "%v", err)
			}
		}
	}
}

// values sums the samples by service and leaf function.
func values(requests []*collectorpb.ExportProfilesServiceRequest) map[string]int64 {
	sum := map[string]int64{}
	for _, s := range receiver.ResolveAll(requests) {
		service := s.Service
		if service == "" {
			service = s.Attributes["service.name"] // Elastic reads it here
		}
		// The leaf of the user's part comes after the kernel's two frames.
		sum[service+" "+s.Stack[2].Name] += s.Total()
	}
	return sum
}

var start = igtest.Receiver

func TestProcessors(t *testing.T) {
	backend := start(t)
	c := through(t, 1, collectortest.Documented(t, "hub"), collectortest.Documented(t, "hub-exporter"), backend.Addr())
	// The filter drops profiles, but leaves the names of their functions in the dictionary. This is why tenants need requests of
	// their own. When this fails, remove the page's warning.
	require.Contains(t, texts(backend.Requests()), "dns.serve")
	for name, got := range map[string]struct {
		requests []*collectorpb.ExportProfilesServiceRequest
		may      []otlpcheck.Rule
	}{"otlp_grpc": {backend.Requests(), collectors}, "file": {c.Received(), inFiles}} {
		t.Run(name, func(t *testing.T) {
			check(t, got.requests, got.may)
			require.Equal(t, map[string]int64{"cart main.hash": 30, "cart main.sort": 12, "search main.find": 20}, values(got.requests),
				"the node's processes and kube-system are dropped, all else is there")
			for _, s := range receiver.ResolveAll(got.requests) {
				r := s.Resource
				require.Equal(t, "production", r["deployment.environment.name"], "added")
				require.Equal(t, "main", r["k8s.cluster.name"], "added")
				require.NotContains(t, r, "container.runtime.name", "deleted")
				require.NotContains(t, r, "k8s.pod.label.team", "renamed")
				require.Equal(t, map[string]string{"cart": "checkout"}[s.Service], r["team"], "renamed")
				require.Equal(t, "shop", r["k8s.namespace.name"])
				require.Equal(t, "worker", s.Attributes["thread.name"])
				require.Equal(t, receiver.Type{Type: "samples", Unit: "count", PeriodType: "cpu", PeriodUnit: "nanoseconds", Period: 20408163}, receiver.TypeOf(s))
			}
		})
	}
}

// TestTwoCollectors sends through one Collector into another.
func TestTwoCollectors(t *testing.T) {
	second := collectortest.New(t, "file")
	second.Start()
	through(t, 1, collectortest.Documented(t, "hub"), collectortest.Documented(t, "hub-exporter"), second.GRPC)
	second.Stop()
	check(t, second.Received(), inFiles)
	require.Equal(t, map[string]int64{"cart main.hash": 30, "cart main.sort": 12, "search main.find": 20}, values(second.Received()))
}

// TestBatchInCollector makes the Collector's exporter merge requests.
func TestBatchInCollector(t *testing.T) {
	backend := start(t)
	plain := collectortest.Documented(t, "hub")
	config := strings.Replace(plain, "    tls: {insecure:", "    "+collectortest.Documented(t, "hub-batch")+"    tls: {insecure:", 1)
	require.NotEqual(t, plain, config)
	through(t, 3, config, collectortest.Documented(t, "hub-exporter"), backend.Addr())
	require.Len(t, backend.Requests(), 1)
	check(t, backend.Requests(), collectors)
	require.Equal(t, map[string]int64{"cart main.hash": 90, "cart main.sort": 36, "search main.find": 60}, values(backend.Requests()))
}

// TestFullCollector shows that a Collector without free memory asks to send again, and does not lose requests that it refuses.
func TestFullCollector(t *testing.T) {
	const limits = "limit_mib: 512, spike_limit_mib: 128"
	config := collectortest.Documented(t, "hub")
	require.Contains(t, config, limits)
	backend := start(t)
	c := collectortest.NewWithConfig(t, strings.Replace(config, limits, "limit_mib: 2, spike_limit_mib: 1", 1), "BACKEND="+backend.Addr(), "BACKEND_INSECURE=true")
	c.Start()
	conn, err := grpc.NewClient(c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	client := collectorpb.NewProfilesServiceClient(conn)
	require.Eventually(t, func() bool { // it checks its memory once a second
		_, err = client.Export(t.Context(), &collectorpb.ExportProfilesServiceRequest{ResourceProfiles: []*profilespb.ResourceProfiles{{
			ScopeProfiles: []*profilespb.ScopeProfiles{{Profiles: []*profilespb.Profile{{Samples: []*profilespb.Sample{{Values: []int64{1}}}}}}},
		}}})
		return err != nil
	}, 30*time.Second, 100*time.Millisecond)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
}
