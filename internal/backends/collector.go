package backends

import (
	"errors"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
)

// collectorRules are those that the profiling SIG's conformance checker has, which the
// Collector's components are tested with, and the limit of the Collector's gRPC receiver:
// https://github.com/open-telemetry/sig-profiling/blob/main/profcheck/check.go.
func collectorRules() []otlpcheck.Rule {
	return []otlpcheck.Rule{
		otlpcheck.RuleUTF8, otlpcheck.RuleSize, otlpcheck.RuleNotEmpty,
		otlpcheck.RuleTablePresent, otlpcheck.RuleTableZero, otlpcheck.RuleDuplicate, otlpcheck.RuleOrphan,
		otlpcheck.RuleIndex, otlpcheck.RuleUniqueKey, otlpcheck.RuleValues, otlpcheck.RuleShape,
		otlpcheck.RuleTimestamps, otlpcheck.RuleMappingRange, otlpcheck.RuleLine, otlpcheck.RuleLinkLength,
	}
}

func checkCollector(c *checker) {
	rules := map[otlpcheck.Rule]bool{}
	for _, r := range collectorRules() {
		rules[r] = true
	}
	for _, err := range otlpcheck.Check(c.req) {
		var v *otlpcheck.Violation
		if errors.As(err, &v) && rules[v.Rule] {
			c.errs = append(c.errs, err)
		}
	}
}
