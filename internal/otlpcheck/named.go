package otlpcheck

import (
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

// RuleNamed is what CheckNamed asks for in place of a period.
var RuleNamed = Rule{"named", "a profile has no period, and each of its samples the name as the attribute __name__", "grafana/pyroscope pkg/ingester/otlp/convert.go"}

// CheckNamed checks a body as CheckBytes does, of a request whose profiles have their name on every sample and no period. That breaks
// the rule on periods, and nothing else; it is for the one receiver that otherwise takes the period's type for the name. All profiles
// must have exactly this form.
func CheckNamed(body []byte) []error {
	req := &collectorpb.ExportProfilesServiceRequest{}
	if err := proto.Unmarshal(body, req); err != nil {
		return []error{&Violation{Path: "request", Rule: RuleDecodable, Detail: err.Error()}}
	}
	for _, rp := range req.GetResourceProfiles() {
		for _, sp := range rp.GetScopeProfiles() {
			for _, p := range sp.GetProfiles() {
				if p.GetPeriod() != 0 {
					return []error{&Violation{Path: "profile.period", Rule: RuleNamed, Detail: "there is one"}}
				}
				p.Period = 1
				for _, s := range p.GetSamples() {
					if !hasName(req, s.GetAttributeIndices()) {
						return []error{&Violation{Path: "profile.samples", Rule: RuleNamed, Detail: "one has no name"}}
					}
				}
			}
		}
	}
	return Check(req)
}

// hasName tells whether one of a sample's attributes is __name__.
func hasName(req *collectorpb.ExportProfilesServiceRequest, attributes []int32) bool {
	d := req.GetDictionary()
	for _, i := range attributes {
		if i <= 0 || int(i) >= len(d.GetAttributeTable()) {
			continue
		}
		a := d.AttributeTable[i]
		if key := a.GetKeyStrindex(); key > 0 && int(key) < len(d.GetStringTable()) && d.StringTable[key] == "__name__" && a.GetValue().GetStringValue() != "" {
			return true
		}
	}
	return false
}
