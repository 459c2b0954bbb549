//go:build e2e

package hub

import (
	"slices"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
)

// texts returns all texts in requests that a tenant could read, used or not.
func texts(requests []*collectorpb.ExportProfilesServiceRequest) []string {
	var all []string
	for _, req := range requests {
		all = append(all, req.GetDictionary().GetStringTable()...)
	}
	return all
}

// TestTenants sends the rows of two namespaces to the Collector, each through its own endpoint, and one through the wrong endpoint.
func TestTenants(t *testing.T) {
	shop, search := start(t), start(t)
	door := collectortest.FreeAddr(t)
	c := collectortest.NewWithConfig(t, collectortest.Documented(t, "tenants"), "BACKEND_SHOP="+shop.Addr(), "BACKEND_SEARCH="+search.Addr(),
		"BACKEND_INSECURE=true", "LISTEN_SEARCH="+door)
	c.Start()
	ofShop := []row{{pod("shop", "cart", "app=cart"), "main.hash", 30}}
	ofSearch := []row{{pod("search", "index", "app=index"), "main.secretOfSearch", 20}}
	exporter := collectortest.Documented(t, "hub-exporter")
	send(t, to(t, exporter, c.GRPC), ofShop)
	send(t, to(t, exporter, door), ofSearch)
	send(t, to(t, exporter, c.GRPC), ofSearch)
	c.Stop()

	check(t, shop.Requests(), collectors)
	check(t, search.Requests(), collectors)
	require.Equal(t, map[string]int64{"cart main.hash": 30}, values(shop.Requests()))
	require.Equal(t, map[string]int64{"index main.secretOfSearch": 20}, values(search.Requests()))
	require.False(t, slices.Contains(texts(shop.Requests()), "main.secretOfSearch"), "a name of the other tenant")
	require.False(t, slices.Contains(texts(search.Requests()), "main.hash"), "a name of the other tenant")
}
