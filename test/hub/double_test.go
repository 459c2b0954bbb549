//go:build e2e

package hub

import (
	"strings"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
)

// neighbours counts lines with the same function as the previous line in the table, and all other lines.
func neighbours(requests []*collectorpb.ExportProfilesServiceRequest) (same, other int) {
	for _, req := range requests {
		d := req.GetDictionary()
		for _, l := range d.GetLocationTable() {
			for _, line := range l.GetLines() {
				if f := line.GetFunctionIndex(); d.FunctionTable[f].GetNameStrindex() == d.FunctionTable[f-1].GetNameStrindex() {
					same++
				} else {
					other++
				}
			}
		}
	}
	return same, other
}

// TestDoubledFunctions requires that the doubled functions for Parca pass the documented processors unchanged, but not a
// component that merges requests.
func TestDoubledFunctions(t *testing.T) {
	for name, tc := range map[string]struct {
		config string
		stay   bool
	}{
		"relay": {collectortest.Documented(t, "relay"), true},
		"hub":   {collectortest.Documented(t, "hub"), true},
		"batch": {strings.Replace(collectortest.Documented(t, "hub"), "    tls: {insecure:", "    "+collectortest.Documented(t, "hub-batch")+"    tls: {insecure:", 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			backend := start(t)
			through(t, 2, tc.config, collectortest.Documented(t, "hub-exporter")+"        function_table: double\n", backend.Addr())
			same, other := neighbours(backend.Requests())
			if tc.stay {
				require.Positive(t, same)
				require.Zero(t, other)
			} else {
				require.Positive(t, other, "%d lines whose function is also the previous entry", same)
			}
		})
	}
}
