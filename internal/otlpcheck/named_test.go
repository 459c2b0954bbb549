package otlpcheck

import (
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

func TestNamed(t *testing.T) {
	check := func(change func(*collectorpb.ExportProfilesServiceRequest)) []error {
		req := valid()
		d := req.Dictionary
		name := int32(len(d.AttributeTable))
		d.AttributeTable = append(d.AttributeTable, &profilespb.KeyValueAndUnit{KeyStrindex: int32(len(d.StringTable)), Value: text("memory")})
		d.StringTable = append(d.StringTable, "__name__")
		for _, rp := range req.ResourceProfiles {
			for _, p := range rp.ScopeProfiles[0].Profiles {
				p.Period = 0
				for _, s := range p.Samples {
					s.AttributeIndices = append(s.AttributeIndices, name)
				}
			}
		}
		change(req)
		body, err := proto.Marshal(req)
		require.NoError(t, err)
		return CheckNamed(body)
	}
	require.Empty(t, check(func(*collectorpb.ExportProfilesServiceRequest) {}))

	require.Equal(t, []string{RuleDecodable.ID}, ruleIDs(t, CheckNamed([]byte{0xff})))
	require.Equal(t, []string{RuleNamed.ID}, ruleIDs(t, check(func(req *collectorpb.ExportProfilesServiceRequest) {
		profileOf(req, 1).Period = 1
	})), "a profile with a period")
	require.Equal(t, []string{RuleNamed.ID}, ruleIDs(t, check(func(req *collectorpb.ExportProfilesServiceRequest) {
		profileOf(req, 0).Samples[2].AttributeIndices = []int32{4}
	})), "a sample without the name")
	require.Equal(t, []string{RuleNamed.ID}, ruleIDs(t, check(func(req *collectorpb.ExportProfilesServiceRequest) {
		profileOf(req, 0).Samples[2].AttributeIndices = []int32{99}
	})), "an attribute that is not there")
	// All other rules still apply.
	require.Equal(t, []string{RuleSampleType.ID}, ruleIDs(t, check(func(req *collectorpb.ExportProfilesServiceRequest) {
		profileOf(req, 0).SampleType = nil
	})))
}
