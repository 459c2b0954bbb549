// Package backends knows what the receivers of OTLP profiles refuse, drop silently or show wrong,
// and checks requests for it.
//
// Every rule says where it comes from: the repository and file of the receiver in which it can be
// read. The rules are about what a receiver of those sources does with a request; package otlpcheck
// has those of the protocol. What a receiver that runs in the tests refuses needs no rule here.
package backends

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
)

// The receivers that Check knows. They are the names of the exporter's presets.
const (
	Collector = "collector"
	Devfiler  = "devfiler"
	Elastic   = "elastic"
	Parca     = "parca"
	Pyroscope = "pyroscope"
)

// backend is what this package knows of one receiver.
type backend struct {
	// layout is the newest wire layout that the sources show it to read.
	layout otlpcheck.Layout
	rules  []otlpcheck.Rule
	check  func(c *checker)
}

var backends = map[string]backend{
	Collector: {otlpcheck.Layout110, collectorRules(), checkCollector},
	Devfiler:  {otlpcheck.Layout110, devfilerRules(), checkDevfiler},
	Elastic:   {otlpcheck.Layout110, elasticRules(), checkElastic},
	Parca:     {otlpcheck.Layout110, parcaRules(), checkParca},
	Pyroscope: {otlpcheck.Layout110, pyroscopeRules(), checkPyroscope},
}

// Backends returns the names of the receivers, sorted.
func Backends() []string { return slices.Sorted(maps.Keys(backends)) }

// Layout returns the newest wire layout that a receiver reads, and false for an unknown receiver.
func Layout(name string) (otlpcheck.Layout, bool) {
	b, ok := backends[name]
	return b.layout, ok
}

// Rules returns the rules of a receiver, none for an unknown one.
func Rules(name string) []otlpcheck.Rule { return slices.Clone(backends[name].rules) }

// Check returns what a receiver would not take or not show, each as an *otlpcheck.Violation, and at
// most 200. An unknown receiver is an error.
func Check(name string, req *collectorpb.ExportProfilesServiceRequest) []error {
	b, ok := backends[name]
	if !ok {
		return []error{fmt.Errorf("unknown backend %q: it is one of %v", name, Backends())}
	}
	c := &checker{req: req, dict: req.GetDictionary()}
	b.check(c)
	return c.errs
}

// CheckBytes decodes a body in the layout that the receiver reads and checks it as Check does. It
// finds fields that the receiver would take for others.
func CheckBytes(name string, body []byte) []error {
	b, ok := backends[name]
	if !ok {
		return Check(name, nil)
	}
	req, err := otlpcheck.Decode(body, b.layout)
	if err != nil {
		return []error{&otlpcheck.Violation{Path: "request", Rule: otlpcheck.RuleDecodable, Detail: err.Error()}}
	}
	var errs []error
	for _, err := range otlpcheck.Check(req) {
		var v *otlpcheck.Violation
		if errors.As(err, &v) && v.Rule == otlpcheck.RuleUnknownField {
			errs = append(errs, err)
		}
	}
	return append(errs, Check(name, req)...)
}

const maxViolations = 200

type checker struct {
	req  *collectorpb.ExportProfilesServiceRequest
	dict *profilespb.ProfilesDictionary
	errs []error
}

func (c *checker) fail(path string, rule otlpcheck.Rule, format string, args ...any) {
	if len(c.errs) < maxViolations {
		c.errs = append(c.errs, &otlpcheck.Violation{Path: path, Rule: rule, Detail: fmt.Sprintf(format, args...)})
	}
}

// profileAt is a profile with what it stands in.
type profileAt struct {
	path     string
	resource *profilespb.ResourceProfiles
	scope    *profilespb.ScopeProfiles
	profile  *profilespb.Profile
}

// profiles visits every profile.
func (c *checker) profiles(visit func(p profileAt)) {
	for i, rp := range c.req.GetResourceProfiles() {
		for j, sp := range rp.GetScopeProfiles() {
			for k, p := range sp.GetProfiles() {
				visit(profileAt{
					path:     fmt.Sprintf("resource_profiles[%d].scope_profiles[%d].profiles[%d]", i, j, k),
					resource: rp, scope: sp, profile: p,
				})
			}
		}
	}
}

// element returns table[i], and the zero value where there is none.
func element[T any](table []T, i int32) T {
	var zero T
	if i < 0 || int(i) >= len(table) {
		return zero
	}
	return table[i]
}

func (c *checker) str(i int32) string { return element(c.dict.GetStringTable(), i) }

// types returns the sample's and the period's type and unit.
func (c *checker) types(p *profilespb.Profile) (sampleType, sampleUnit, periodType, periodUnit string) {
	return c.str(p.GetSampleType().GetTypeStrindex()), c.str(p.GetSampleType().GetUnitStrindex()),
		c.str(p.GetPeriodType().GetTypeStrindex()), c.str(p.GetPeriodType().GetUnitStrindex())
}

// attribute is an entry of the attribute table.
type attribute struct {
	key   string
	value *commonpb.AnyValue
}

// attributes returns the attributes at indices. Those out of range are missing.
func (c *checker) attributes(indices []int32) []attribute {
	attrs := make([]attribute, 0, len(indices))
	for _, i := range indices {
		if a := element(c.dict.GetAttributeTable(), i); a != nil {
			attrs = append(attrs, attribute{c.str(a.GetKeyStrindex()), a.GetValue()})
		}
	}
	return attrs
}

// text returns the string value of the attribute with that key, and false where there is none or
// where it is no plain string.
func (c *checker) text(indices []int32, key string) (string, bool) {
	for _, a := range c.attributes(indices) {
		if a.key == key {
			v, ok := a.value.GetValue().(*commonpb.AnyValue_StringValue)
			if !ok {
				return "", false
			}
			return v.StringValue, true
		}
	}
	return "", false
}

// keyValues turns a resource's or a scope's attributes into attributes.
func keyValues(list []*commonpb.KeyValue) []attribute {
	attrs := make([]attribute, 0, len(list))
	for _, kv := range list {
		attrs = append(attrs, attribute{kv.GetKey(), kv.GetValue()})
	}
	return attrs
}

func sampleAt(p profileAt, i int) string { return fmt.Sprintf("%s.samples[%d]", p.path, i) }

func tableAt(table string, i int) string { return fmt.Sprintf("dictionary.%s[%d]", table, i) }
