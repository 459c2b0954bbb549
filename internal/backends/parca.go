package backends

import (
	"regexp"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// Parca's sources, of v0.28.0. They read OTLP 1.10.
const (
	parcaNormalizer = "parca-dev/parca pkg/normalizer/otel.go"
	parcaEncode     = "parca-dev/parca pkg/profile/encode.go"
)

// Parca's rules.
var (
	parcaTables     = otlpcheck.Rule{ID: "parca-tables", Text: "every table has a zero element 0, which has no bytes", Source: parcaNormalizer}
	parcaIndex      = otlpcheck.Rule{ID: "parca-index", Text: "an index is within its table", Source: parcaNormalizer}
	parcaAttribute  = otlpcheck.Rule{ID: "parca-attribute", Text: "an attribute has a value, and a key that is not twice in a resource", Source: parcaNormalizer}
	parcaString     = otlpcheck.Rule{ID: "parca-string", Text: "an attribute is a text: everything else is dropped silently", Source: parcaNormalizer}
	parcaCollision  = otlpcheck.Rule{ID: "parca-collision", Text: "no two attributes of a sample with different values have the same name in letters, digits and '_'", Source: parcaNormalizer}
	parcaScope      = otlpcheck.Rule{ID: "parca-scope", Text: "the scope has a name, which becomes the profile's", Source: parcaNormalizer}
	parcaSet        = otlpcheck.Rule{ID: "parca-set", Text: "resource, scope, sample type and period type are set: Parca reads them without asking", Source: parcaNormalizer}
	parcaEmpty      = otlpcheck.Rule{ID: "parca-empty", Text: "there are profiles, and each has samples", Source: parcaNormalizer}
	parcaValues     = otlpcheck.Rule{ID: "parca-values", Text: "a sample has one value or timestamps, and equally many of both", Source: parcaNormalizer}
	parcaTimestamps = otlpcheck.Rule{ID: "parca-timestamps", Text: "a timestamp is within the profile's time", Source: parcaNormalizer}
	parcaPeriod     = otlpcheck.Rule{ID: "parca-period", Text: "the period is not negative", Source: parcaNormalizer}
	parcaProfileID  = otlpcheck.Rule{ID: "parca-profile-id", Text: "a profile ID, if set, has 16 bytes that are not all zero", Source: parcaNormalizer}
	parcaLink       = otlpcheck.Rule{ID: "parca-link", Text: "a link has a trace ID of 16 bytes and a span ID of 8", Source: parcaNormalizer}
	parcaFunction   = otlpcheck.Rule{ID: "parca-function", Text: "a line's function is also the one before it in the table, which Parca takes", Source: parcaEncode}
	parcaMapping    = otlpcheck.Rule{ID: "parca-mapping", Text: "a mapping's limit is not below its start", Source: parcaEncode}
)

func parcaRules() []otlpcheck.Rule {
	return []otlpcheck.Rule{
		parcaTables, parcaIndex, parcaAttribute, parcaString, parcaCollision, parcaScope, parcaSet, parcaEmpty,
		parcaValues, parcaTimestamps, parcaPeriod, parcaProfileID, parcaLink, parcaMapping, parcaFunction,
	}
}

var notInLabel = regexp.MustCompile(`[^a-zA-Z0-9_]`)

func checkParca(c *checker) {
	if len(c.req.GetResourceProfiles()) == 0 {
		c.fail("request", parcaEmpty, "it has no profiles")
	}
	c.parcaDictionary()
	for i, rp := range c.req.GetResourceProfiles() {
		path := "resource_profiles[" + itoa(i) + "]"
		if rp.GetResource() == nil {
			c.fail(path+".resource", parcaSet, "it is missing")
		}
		c.parcaKeyValues(path+".resource", rp.GetResource().GetAttributes())
		for j, sp := range rp.GetScopeProfiles() {
			scope := path + ".scope_profiles[" + itoa(j) + "].scope"
			if sp.GetScope() == nil {
				c.fail(scope, parcaSet, "it is missing")
			} else if sp.GetScope().GetName() == "" {
				c.fail(scope, parcaScope, "its name is empty, and the profile is called unknown")
			}
			c.parcaKeyValues(scope, sp.GetScope().GetAttributes())
		}
	}
	c.profiles(c.parcaProfile)
}

func (c *checker) parcaKeyValues(path string, list []*commonpb.KeyValue) {
	seen := map[string]bool{}
	for i, kv := range list {
		p := path + ".attributes[" + itoa(i) + "]"
		if kv.GetKey() == "" || seen[kv.GetKey()] || kv.GetValue().GetValue() == nil {
			c.fail(p, parcaAttribute, "%q", kv.GetKey())
		}
		seen[kv.GetKey()] = true
		if !isText(kv.GetValue()) {
			c.fail(p, parcaString, "%q is %T", kv.GetKey(), kv.GetValue().GetValue())
		}
	}
}

// isText tells whether Parca makes a label of a value.
func isText(v *commonpb.AnyValue) bool { return strings.TrimSpace(v.GetStringValue()) != "" }

func (c *checker) parcaDictionary() {
	d := c.dict
	zero := func(table string, n int, first func() proto.Message) {
		if n == 0 || first != nil && proto.Size(first()) != 0 {
			c.fail("dictionary."+table, parcaTables, "it has %d elements", n)
		}
	}
	zero("mapping_table", len(d.GetMappingTable()), func() proto.Message { return d.MappingTable[0] })
	zero("location_table", len(d.GetLocationTable()), func() proto.Message { return d.LocationTable[0] })
	zero("function_table", len(d.GetFunctionTable()), func() proto.Message { return d.FunctionTable[0] })
	zero("link_table", len(d.GetLinkTable()), func() proto.Message { return d.LinkTable[0] })
	zero("attribute_table", len(d.GetAttributeTable()), func() proto.Message { return d.AttributeTable[0] })
	zero("stack_table", len(d.GetStackTable()), func() proto.Message { return d.StackTable[0] })
	zero("string_table", len(d.GetStringTable()), nil)
	if c.str(0) != "" {
		c.fail("dictionary.string_table", parcaTables, "element 0 is %q", c.str(0))
	}
	for i, m := range d.GetMappingTable() {
		c.parcaIndices(tableAt("mapping_table", i), len(d.StringTable), m.GetFilenameStrindex())
		c.parcaIndices(tableAt("mapping_table", i), len(d.AttributeTable), m.GetAttributeIndices()...)
		if m.GetMemoryLimit() < m.GetMemoryStart() {
			c.fail(tableAt("mapping_table", i), parcaMapping, "%#x to %#x", m.GetMemoryStart(), m.GetMemoryLimit())
		}
	}
	for i, f := range d.GetFunctionTable() {
		c.parcaIndices(tableAt("function_table", i), len(d.StringTable), f.GetNameStrindex(), f.GetSystemNameStrindex(), f.GetFilenameStrindex())
	}
	for i, a := range d.GetAttributeTable() {
		c.parcaIndices(tableAt("attribute_table", i), len(d.StringTable), a.GetKeyStrindex(), a.GetUnitStrindex())
		if i > 0 && a.GetValue().GetValue() == nil {
			c.fail(tableAt("attribute_table", i), parcaAttribute, "%q has no value", c.str(a.GetKeyStrindex()))
		}
	}
	for i, l := range d.GetLocationTable() {
		c.parcaIndices(tableAt("location_table", i), len(d.MappingTable), l.GetMappingIndex())
		c.parcaIndices(tableAt("location_table", i), len(d.AttributeTable), l.GetAttributeIndices()...)
		for _, line := range l.GetLines() {
			c.parcaIndices(tableAt("location_table", i), len(d.FunctionTable), line.GetFunctionIndex())
			if f := line.GetFunctionIndex(); f > 0 && int(f) < len(d.FunctionTable) && !proto.Equal(d.FunctionTable[f-1], d.FunctionTable[f]) {
				c.fail(tableAt("location_table", i), parcaFunction, "%q is shown as %q", c.str(d.FunctionTable[f].GetNameStrindex()), c.str(d.FunctionTable[f-1].GetNameStrindex()))
			}
		}
	}
	for i, s := range d.GetStackTable() {
		c.parcaIndices(tableAt("stack_table", i), len(d.LocationTable), s.GetLocationIndices()...)
	}
	for i, l := range d.GetLinkTable() {
		if i > 0 && (len(l.GetTraceId()) != 16 || len(l.GetSpanId()) != 8) {
			c.fail(tableAt("link_table", i), parcaLink, "%d and %d bytes", len(l.GetTraceId()), len(l.GetSpanId()))
		}
	}
}

func (c *checker) parcaIndices(path string, n int, indices ...int32) {
	for _, i := range indices {
		// A missing table is reported on its own.
		if i < 0 || int(i) >= max(n, 1) {
			c.fail(path, parcaIndex, "%d of %d elements", i, n)
		}
	}
}

func (c *checker) parcaProfile(p profileAt) {
	prof := p.profile
	if prof.GetSampleType() == nil || prof.GetPeriodType() == nil {
		c.fail(p.path, parcaSet, "sample type %v, period type %v", prof.GetSampleType(), prof.GetPeriodType())
	}
	c.parcaIndices(p.path, len(c.dict.GetStringTable()), prof.GetSampleType().GetTypeStrindex(), prof.GetSampleType().GetUnitStrindex(),
		prof.GetPeriodType().GetTypeStrindex(), prof.GetPeriodType().GetUnitStrindex())
	c.parcaIndices(p.path, len(c.dict.GetAttributeTable()), prof.GetAttributeIndices()...)
	if prof.GetPeriod() < 0 {
		c.fail(p.path+".period", parcaPeriod, "%d", prof.GetPeriod())
	}
	if id := prof.GetProfileId(); len(id) > 0 && (len(id) != 16 || !slices.ContainsFunc(id, func(b byte) bool { return b != 0 })) {
		c.fail(p.path+".profile_id", parcaProfileID, "%x", id)
	}
	if len(prof.GetSamples()) == 0 {
		c.fail(p.path, parcaEmpty, "it has no samples")
	}
	shared := append(c.attributes(prof.GetAttributeIndices()), keyValues(p.scope.GetScope().GetAttributes())...)
	shared = append(shared, keyValues(p.resource.GetResource().GetAttributes())...)
	reported := map[string]bool{}
	for i, s := range prof.GetSamples() {
		path := sampleAt(p, i)
		c.parcaIndices(path, len(c.dict.GetStackTable()), s.GetStackIndex())
		c.parcaIndices(path, len(c.dict.GetLinkTable()), s.GetLinkIndex())
		c.parcaIndices(path, len(c.dict.GetAttributeTable()), s.GetAttributeIndices()...)
		values, timestamps := len(s.GetValues()), len(s.GetTimestampsUnixNano())
		if timestamps == 0 && values != 1 || timestamps > 0 && values > 0 && values != timestamps {
			c.fail(path, parcaValues, "%d values, %d timestamps", values, timestamps)
		}
		for _, t := range s.GetTimestampsUnixNano() {
			if t < prof.GetTimeUnixNano() || t > prof.GetTimeUnixNano()+prof.GetDurationNano() {
				c.fail(path, parcaTimestamps, "%d is not within %d and %d ns after it", t, prof.GetTimeUnixNano(), prof.GetDurationNano())
			}
		}
		names := map[string]attribute{}
		for _, a := range append(c.attributes(s.GetAttributeIndices()), shared...) {
			if !isText(a.value) && !reported[a.key] {
				reported[a.key] = true
				c.fail(path, parcaString, "%q is %T", a.key, a.value.GetValue())
			}
			name := notInLabel.ReplaceAllString(a.key, "_")
			other, dup := names[name]
			if dup && other.value.GetStringValue() != a.value.GetStringValue() && !reported[name] {
				reported[name] = true
				c.fail(path, parcaCollision, "%q and %q", other.key, a.key)
			}
			names[name] = a
		}
	}
}
