package backends

import (
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// The sources of the rules for Elastic and devfiler.
const (
	elasticSerializer = "open-telemetry/opentelemetry-collector-contrib exporter/elasticsearchexporter/internal/serializer/otelserializer/serializeprofiles/transform.go"
	devfilerService   = "elastic/devfiler src/collector/otlp/service.rs"
)

// Elastic's rules in addition to the protocol's rule on the form of build IDs.
var (
	elasticType       = rule("elastic-type", "a profile has the sample type (samples, count) and the period type (cpu, nanoseconds): no others are accepted", elasticSerializer)
	elasticFrameType  = rule("elastic-frame-type", "every frame has a profile.frame.type, or the profile is refused", elasticSerializer)
	elasticTimestamps = rule("elastic-timestamps", "a sample has timestamps: without them it is not shown", elasticSerializer)
	elasticService    = rule("elastic-service", "a sample has a service.name of its own: the resource's service.name is not shown", elasticSerializer)
	elasticHost       = rule("elastic-host", "a resource has a host.id: hosts without it are merged", elasticSerializer)
)

func checkElastic(c *checker) {
	c.Violations = broken(c.req, otlpcheck.RuleBuildIDForm)
	used := c.usedLocations()
	for i, l := range c.dict.GetLocationTable() {
		if used[int32(i)] && c.dict.Attribute(l.GetAttributeIndices(), otlpcheck.KeyFrameType) == "" {
			c.Fail(tableAt("location_table", i), elasticFrameType, "it has none")
		}
	}
	for p := range dictionary.Profiles(c.req) {
		sampleType, sampleUnit, periodType, periodUnit := c.types(p.Profile)
		if !strings.EqualFold(sampleType, "samples") || !strings.EqualFold(sampleUnit, "count") ||
			!strings.EqualFold(periodType, "cpu") || !strings.EqualFold(periodUnit, "nanoseconds") {
			c.Fail(p.Path(), elasticType, "(%s, %s) with (%s, %s)", sampleType, sampleUnit, periodType, periodUnit)
		}
		host := false
		for _, a := range outer(p) {
			host = host || a.GetKey() == "host.id" && a.GetValue().GetStringValue() != ""
		}
		if !host {
			c.Fail(p.Path(), elasticHost, "there is none")
		}
		for i, s := range p.GetSamples() {
			if len(s.GetTimestampsUnixNano()) == 0 {
				c.Fail(sampleAt(p, i), elasticTimestamps, "it has none")
			}
			if c.dict.Attribute(s.GetAttributeIndices(), "service.name") == "" {
				c.Fail(sampleAt(p, i), elasticService, "there is none")
			}
		}
	}
}

// usedLocations returns the locations that samples use.
func (c *checker) usedLocations() map[int32]bool {
	used := map[int32]bool{}
	for p := range dictionary.Profiles(c.req) {
		for _, s := range p.GetSamples() {
			for _, l := range dictionary.At(c.dict.GetStackTable(), s.GetStackIndex()).GetLocationIndices() {
				used[l] = true
			}
		}
	}
	return used
}
