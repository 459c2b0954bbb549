package backends

import (
	"encoding/base64"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
)

// devfilerFrameTypes are the frame types that devfiler knows. Others of the semantic conventions,
// such as rust, make it refuse the request.
var devfilerFrameTypes = []string{
	"native", "kernel", "jvm", "perl", "cpython", "php", "phpjit", "ruby", "dotnet", "v8js", "beam", "go", "abort-marker",
}

// devfiler's rules.
var (
	devfilerDictionary = otlpcheck.Rule{ID: "devfiler-dictionary", Text: "a request has a dictionary", Source: devfilerService}
	devfilerFrameType  = otlpcheck.Rule{ID: "devfiler-frame-type", Text: "every location but 0 has a profile.frame.type that devfiler knows, or the request is refused", Source: devfilerService}
	devfilerHTLHash    = otlpcheck.Rule{ID: "devfiler-htlhash", Text: "a mapping with attributes has a process.executable.build_id.htlhash of 16 bytes, or the request is refused", Source: devfilerService}
	devfilerIndex      = otlpcheck.Rule{ID: "devfiler-index", Text: "an index is within its table", Source: devfilerService}
	devfilerTypes      = otlpcheck.Rule{ID: "devfiler-types", Text: "a sample type and unit are set", Source: devfilerService}
	devfilerTimestamps = otlpcheck.Rule{ID: "devfiler-timestamps", Text: "a sample has timestamps: without them it counts once, at the time it came", Source: devfilerService}
	devfilerValues     = otlpcheck.Rule{ID: "devfiler-values", Text: "a value is 1: a timestamp counts once whatever its value is", Source: devfilerService}
)

func devfilerRules() []otlpcheck.Rule {
	return []otlpcheck.Rule{
		devfilerDictionary, devfilerFrameType, devfilerHTLHash, devfilerIndex, devfilerTypes, devfilerTimestamps, devfilerValues,
	}
}

func checkDevfiler(c *checker) {
	if c.dict == nil {
		c.fail("dictionary", devfilerDictionary, "it is missing")
		return
	}
	for i, l := range c.dict.GetLocationTable() {
		if i == 0 {
			continue
		}
		t, _ := c.text(l.GetAttributeIndices(), keyFrameType)
		if !slices.Contains(devfilerFrameTypes, t) {
			c.fail(tableAt("location_table", i), devfilerFrameType, "%q", t)
		}
		m := element(c.dict.GetMappingTable(), l.GetMappingIndex())
		if m == nil {
			c.fail(tableAt("location_table", i), devfilerIndex, "mapping %d", l.GetMappingIndex())
		}
		for _, line := range l.GetLines() {
			if element(c.dict.GetFunctionTable(), line.GetFunctionIndex()) == nil {
				c.fail(tableAt("location_table", i), devfilerIndex, "function %d", line.GetFunctionIndex())
			}
		}
	}
	for i, m := range c.dict.GetMappingTable() {
		if id, _ := c.text(m.GetAttributeIndices(), keyHTLHash); len(m.GetAttributeIndices()) > 0 && !isFileID(id) {
			c.fail(tableAt("mapping_table", i), devfilerHTLHash, "%q", id)
		}
	}
	c.profiles(func(p profileAt) {
		if sampleType, sampleUnit, _, _ := c.types(p.profile); sampleType == "" || sampleUnit == "" {
			c.fail(p.path+".sample_type", devfilerTypes, "%q, %q", sampleType, sampleUnit)
		}
		for i, s := range p.profile.GetSamples() {
			path := sampleAt(p, i)
			stack := element(c.dict.GetStackTable(), s.GetStackIndex())
			if stack == nil {
				c.fail(path, devfilerIndex, "stack %d", s.GetStackIndex())
			}
			for _, l := range stack.GetLocationIndices() {
				if element(c.dict.GetLocationTable(), l) == nil {
					c.fail(path, devfilerIndex, "location %d", l)
				}
			}
			if len(s.GetTimestampsUnixNano()) == 0 {
				c.fail(path, devfilerTimestamps, "it has none")
			} else if slices.ContainsFunc(s.GetValues(), func(v int64) bool { return v != 1 }) {
				c.fail(path, devfilerValues, "%v", s.GetValues())
			}
		}
	})
}

// isFileID tells whether devfiler can read an ID: in hexadecimal or in URL-safe base64.
func isFileID(id string) bool {
	if htlHash.MatchString(id) {
		return true
	}
	b, err := base64.RawURLEncoding.DecodeString(id)
	return err == nil && len(b) == 16
}
