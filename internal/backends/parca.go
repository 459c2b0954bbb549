package backends

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// Parca's sources at v0.28.0, which reads OTLP 1.10.
const (
	parcaNormalizer = "parca-dev/parca pkg/normalizer/otel.go"
	parcaEncode     = "parca-dev/parca pkg/profile/encode.go"
)

// Parca's rules cover data that Parca shows incorrectly or drops silently. Data that it rejects needs no rule: test/backends sends
// every gadget's messages to a real Parca.
var (
	parcaString    = rule("parca-string", "an attribute is a string: other types are dropped silently", parcaNormalizer)
	parcaCollision = rule("parca-collision", "no two attributes of a sample with different values have the same name in letters, digits and '_'", parcaNormalizer)
	parcaScope     = rule("parca-scope", "the scope has a name, which becomes the profile's name", parcaNormalizer)
	parcaFunction  = rule("parca-function", "the table entry before a line's function is the same function, because Parca reads that entry", parcaEncode)
)

var notInLabel = regexp.MustCompile(`[^a-zA-Z0-9_]`)

func checkParca(c *checker) {
	for i, rp := range c.req.GetResourceProfiles() {
		path := fmt.Sprintf("resource_profiles[%d]", i)
		c.parcaKeyValues(path+".resource", rp.GetResource().GetAttributes())
		for j, sp := range rp.GetScopeProfiles() {
			scope := fmt.Sprintf("%s.scope_profiles[%d].scope", path, j)
			if sp.GetScope().GetName() == "" {
				c.Fail(scope, parcaScope, "its name is empty, and the profile is called unknown")
			}
			c.parcaKeyValues(scope, sp.GetScope().GetAttributes())
		}
	}
	for i, l := range c.dict.GetLocationTable() {
		for _, line := range l.GetLines() {
			f := line.GetFunctionIndex()
			before, is := dictionary.At(c.dict.GetFunctionTable(), f-1), dictionary.At(c.dict.GetFunctionTable(), f)
			if f > 0 && !proto.Equal(before, is) {
				c.Fail(tableAt("location_table", i), parcaFunction, "%q is shown as %q", c.dict.Str(is.GetNameStrindex()), c.dict.Str(before.GetNameStrindex()))
			}
		}
	}
	for p := range dictionary.Profiles(c.req) {
		c.parcaProfile(p)
	}
}

func (c *checker) parcaKeyValues(path string, list []*commonpb.KeyValue) {
	for i, kv := range list {
		if !isText(kv.GetValue()) {
			c.Fail(fmt.Sprintf("%s.attributes[%d]", path, i), parcaString, "%q is %T", kv.GetKey(), kv.GetValue().GetValue())
		}
	}
}

// isText reports whether Parca turns a value into a label.
func isText(v *commonpb.AnyValue) bool { return strings.TrimSpace(v.GetStringValue()) != "" }

func (c *checker) parcaProfile(p dictionary.Profile) {
	prof := p.Profile
	shared := append(c.attributes(prof.GetAttributeIndices()), outer(p)...)
	reported := map[string]bool{}
	for i, s := range prof.GetSamples() {
		path := sampleAt(p, i)
		names := map[string]*commonpb.KeyValue{}
		for _, a := range append(c.attributes(s.GetAttributeIndices()), shared...) {
			if !isText(a.GetValue()) && !reported[a.GetKey()] {
				reported[a.GetKey()] = true
				c.Fail(path, parcaString, "%q is %T", a.GetKey(), a.GetValue().GetValue())
			}
			name := notInLabel.ReplaceAllString(a.GetKey(), "_")
			other, dup := names[name]
			if dup && other.GetValue().GetStringValue() != a.GetValue().GetStringValue() && !reported[name] {
				reported[name] = true
				c.Fail(path, parcaCollision, "%q and %q", other.GetKey(), a.GetKey())
			}
			names[name] = a
		}
	}
}
