package backends

import "github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"

// collectorRules are the rules of the profiling SIG's conformance checker, and the size limit of the Collector's gRPC receiver.
// The Collector's own tests use that checker: https://github.com/open-telemetry/sig-profiling/blob/main/profcheck/check.go.
var collectorRules = []otlpcheck.Rule{
	otlpcheck.RuleUTF8, otlpcheck.RuleSize, otlpcheck.RuleNotEmpty,
	otlpcheck.RuleTablePresent, otlpcheck.RuleTableZero, otlpcheck.RuleDuplicate, otlpcheck.RuleOrphan,
	otlpcheck.RuleIndex, otlpcheck.RuleUniqueKey, otlpcheck.RuleValues, otlpcheck.RuleShape,
	otlpcheck.RuleTimestamps, otlpcheck.RuleMappingRange, otlpcheck.RuleLine, otlpcheck.RuleLinkLength,
}

func checkCollector(c *checker) { c.Violations = broken(c.req, collectorRules...) }
