package otlpcheck

import (
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// RuleNamed replaces the rule on periods in CheckNamed.
var RuleNamed = Rule{"named", "a profile has no period, and each of its samples the name as the attribute __name__", "grafana/pyroscope pkg/ingester/otlp/convert.go"}

// CheckNamed checks a body as CheckBytes does. Every sample must have its profile's name, and profiles must not have a period.
// One receiver needs this form, because it would use a period's type as the name. The form breaks only the rule on periods.
func CheckNamed(body []byte) []error { return checkBytes(body, unnamed) }

// unnamed gives the profiles a period.
func unnamed(req *collectorpb.ExportProfilesServiceRequest) error {
	d := dictionary.Of(req)
	for p := range dictionary.Profiles(req) {
		if p.GetPeriod() != 0 {
			return &Violation{Path: "profile.period", Rule: RuleNamed, Detail: "the profile has a period"}
		}
		p.Period = 1
		for _, s := range p.GetSamples() {
			if d.Attributes(s.GetAttributeIndices())["__name__"] == "" {
				return &Violation{Path: "profile.samples", Rule: RuleNamed, Detail: "a sample has no name"}
			}
		}
	}
	return nil
}
