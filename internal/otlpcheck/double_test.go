package otlpcheck

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

func TestDoubled(t *testing.T) {
	check := func(change func(*collectorpb.ExportProfilesServiceRequest)) []error {
		req := valid()
		doubled := req.Dictionary.FunctionTable[:1]
		for _, f := range req.Dictionary.FunctionTable[1:] {
			doubled = append(slices.Clone(doubled), f, f)
		}
		req.Dictionary.FunctionTable = doubled
		for _, l := range req.Dictionary.LocationTable {
			for _, line := range l.Lines {
				line.FunctionIndex *= 2
			}
		}
		change(req)
		body, err := proto.Marshal(req)
		require.NoError(t, err)
		return CheckDoubled(body)
	}
	require.Empty(t, check(func(*collectorpb.ExportProfilesServiceRequest) {}))

	body, err := proto.Marshal(valid())
	require.NoError(t, err)
	require.Equal(t, []string{RuleDoubled.ID}, ruleIDs(t, CheckDoubled(body)), "a table with each function once")
	require.Equal(t, []string{RuleDecodable.ID}, ruleIDs(t, CheckDoubled([]byte{0xff})))
	require.Equal(t, []string{RuleDoubled.ID}, ruleIDs(t, check(func(req *collectorpb.ExportProfilesServiceRequest) {
		req.Dictionary.FunctionTable = append(req.Dictionary.FunctionTable, &profilespb.Function{NameStrindex: 5})
	})), "one function once")
	require.Equal(t, []string{RuleDoubled.ID}, ruleIDs(t, check(func(req *collectorpb.ExportProfilesServiceRequest) {
		req.Dictionary.LocationTable[1].Lines[0].FunctionIndex--
	})), "a line that refers to the first")
	// All other rules still apply.
	require.Contains(t, ruleIDs(t, check(func(req *collectorpb.ExportProfilesServiceRequest) {
		req.Dictionary.FunctionTable = append(req.Dictionary.FunctionTable, req.Dictionary.FunctionTable[1:3]...)
	})), RuleDuplicate.ID)
}
