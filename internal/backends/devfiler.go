package backends

import (
	"encoding/base64"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// devfilerFrameTypes are the frame types that devfiler knows. It rejects requests with other types from the semantic
// conventions, for example rust.
var devfilerFrameTypes = []string{
	"native", "kernel", "jvm", "perl", "cpython", "php", "phpjit", "ruby", "dotnet", "v8js", "beam", "go", "abort-marker",
}

// devfiler's rules.
var (
	devfilerDictionary = rule("devfiler-dictionary", "a request has a dictionary", devfilerService)
	devfilerFrameType  = rule("devfiler-frame-type", "every location except 0 has a profile.frame.type that devfiler knows, or the request is refused", devfilerService)
	devfilerHTLHash    = rule("devfiler-htlhash", "a mapping with attributes has a process.executable.build_id.htlhash of 16 bytes, or the request is refused", devfilerService)
	devfilerIndex      = rule("devfiler-index", "an index is within its table", devfilerService)
	devfilerTypes      = rule("devfiler-types", "a sample type and unit are set", devfilerService)
	devfilerTimestamps = rule("devfiler-timestamps", "a sample has timestamps: without them it counts once, at its arrival", devfilerService)
	devfilerValues     = rule("devfiler-values", "a value is 1: a timestamp counts once with any value", devfilerService)
)

func checkDevfiler(c *checker) {
	if c.dict.ProfilesDictionary == nil {
		c.Fail("dictionary", devfilerDictionary, "it is missing")
		return
	}
	for i, l := range c.dict.GetLocationTable() {
		if i == 0 {
			continue
		}
		t, _ := c.text(l.GetAttributeIndices(), otlpcheck.KeyFrameType)
		if !slices.Contains(devfilerFrameTypes, t) {
			c.Fail(tableAt("location_table", i), devfilerFrameType, "%q", t)
		}
		m := dictionary.At(c.dict.GetMappingTable(), l.GetMappingIndex())
		if m == nil {
			c.Fail(tableAt("location_table", i), devfilerIndex, "mapping %d", l.GetMappingIndex())
		}
		for _, line := range l.GetLines() {
			if dictionary.At(c.dict.GetFunctionTable(), line.GetFunctionIndex()) == nil {
				c.Fail(tableAt("location_table", i), devfilerIndex, "function %d", line.GetFunctionIndex())
			}
		}
	}
	for i, m := range c.dict.GetMappingTable() {
		if id, _ := c.text(m.GetAttributeIndices(), otlpcheck.KeyHTLHash); len(m.GetAttributeIndices()) > 0 && !isFileID(id) {
			c.Fail(tableAt("mapping_table", i), devfilerHTLHash, "%q", id)
		}
	}
	for p := range dictionary.Profiles(c.req) {
		if sampleType, sampleUnit, _, _ := c.types(p.Profile); sampleType == "" || sampleUnit == "" {
			c.Fail(p.Path()+".sample_type", devfilerTypes, "%q, %q", sampleType, sampleUnit)
		}
		for i, s := range p.GetSamples() {
			path := sampleAt(p, i)
			stack := dictionary.At(c.dict.GetStackTable(), s.GetStackIndex())
			if stack == nil {
				c.Fail(path, devfilerIndex, "stack %d", s.GetStackIndex())
			}
			for _, l := range stack.GetLocationIndices() {
				if dictionary.At(c.dict.GetLocationTable(), l) == nil {
					c.Fail(path, devfilerIndex, "location %d", l)
				}
			}
			if len(s.GetTimestampsUnixNano()) == 0 {
				c.Fail(path, devfilerTimestamps, "it has none")
			} else if slices.ContainsFunc(s.GetValues(), func(v int64) bool { return v != 1 }) {
				c.Fail(path, devfilerValues, "%v", s.GetValues())
			}
		}
	}
}

// isFileID reports whether devfiler can read an ID, which must be in hexadecimal or URL-safe base64.
func isFileID(id string) bool {
	if htlHash.MatchString(id) {
		return true
	}
	b, err := base64.RawURLEncoding.DecodeString(id)
	return err == nil && len(b) == 16
}
