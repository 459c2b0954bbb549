package backends

import (
	"encoding/base64"
	"regexp"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// devfilerFrameTypes are the frame types that devfiler knows. It rejects requests with other types from the semantic
// conventions, for example rust.
var devfilerFrameTypes = []string{
	"native", "kernel", "jvm", "perl", "cpython", "php", "phpjit", "ruby", "dotnet", "v8js", "beam", "go", "abort-marker",
}

// devfiler's rules in addition to three of the protocol's, which it also requires.
var (
	devfilerFrameType  = rule("devfiler-frame-type", "every location except 0 has a profile.frame.type that devfiler knows, or the request is refused", devfilerService)
	devfilerHTLHash    = rule("devfiler-htlhash", "a mapping with attributes has a process.executable.build_id.htlhash of 16 bytes, or the request is refused", devfilerService)
	devfilerTimestamps = rule("devfiler-timestamps", "a sample has timestamps: without them it counts once, at its arrival", devfilerService)
	devfilerValues     = rule("devfiler-values", "a value is 1: a timestamp counts once with any value", devfilerService)
)

func checkDevfiler(c *checker) {
	c.Violations = broken(c.req, otlpcheck.RuleTablePresent, otlpcheck.RuleIndex, otlpcheck.RuleSampleType)
	for i, l := range c.dict.GetLocationTable() {
		if i == 0 {
			continue
		}
		t := c.dict.Attribute(l.GetAttributeIndices(), otlpcheck.KeyFrameType)
		if !slices.Contains(devfilerFrameTypes, t) {
			c.Fail(tableAt("location_table", i), devfilerFrameType, "%q", t)
		}
	}
	for i, m := range c.dict.GetMappingTable() {
		if id := c.dict.Attribute(m.GetAttributeIndices(), otlpcheck.KeyHTLHash); len(m.GetAttributeIndices()) > 0 && !isFileID(id) {
			c.Fail(tableAt("mapping_table", i), devfilerHTLHash, "%q", id)
		}
	}
	for p := range dictionary.Profiles(c.req) {
		for i, s := range p.GetSamples() {
			path := sampleAt(p, i)
			if len(s.GetTimestampsUnixNano()) == 0 {
				c.Fail(path, devfilerTimestamps, "it has none")
			} else if slices.ContainsFunc(s.GetValues(), func(v int64) bool { return v != 1 }) {
				c.Fail(path, devfilerValues, "%v", s.GetValues())
			}
		}
	}
}

var htlHash = regexp.MustCompile(`^[0-9a-fA-F]{32}$`)

// isFileID reports whether devfiler can read an ID, which must be in hexadecimal or URL-safe base64.
func isFileID(id string) bool {
	b, err := base64.RawURLEncoding.DecodeString(id)
	return htlHash.MatchString(id) || err == nil && len(b) == 16
}
