// Package backends checks requests for data that receivers of OTLP profiles reject, drop silently or show incorrectly.
//
// Every rule names its source: the receiver's repository and file. Package otlpcheck contains the protocol's rules. A receiver
// that the tests run needs no rules for data that it rejects itself.
package backends

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

// The receivers that Check knows. They are the names of the exporter's presets.
const (
	Collector = "collector"
	Devfiler  = "devfiler"
	Elastic   = "elastic"
	Parca     = "parca"
	Pyroscope = "pyroscope"
)

var backends = map[string]func(c *checker){
	Collector: checkCollector, Devfiler: checkDevfiler, Elastic: checkElastic, Parca: checkParca, Pyroscope: checkPyroscope,
}

// Backends returns the names of the receivers, sorted.
func Backends() []string { return slices.Sorted(maps.Keys(backends)) }

// rules holds every rule that the function rule has created, so a test can break each. Each ID begins with the name of its receiver.
var rules []otlpcheck.Rule

func rule(id, text, source string) otlpcheck.Rule {
	r := otlpcheck.Rule{ID: id, Text: text, Source: source}
	rules = append(rules, r)
	return r
}

// Check returns at most 200 places whose data a receiver would reject or not show, each as an *otlpcheck.Violation. An unknown
// receiver is an error.
func Check(name string, req *collectorpb.ExportProfilesServiceRequest) []error {
	check, ok := backends[name]
	if !ok {
		return []error{fmt.Errorf("unknown backend %q: use one of %v", name, Backends())}
	}
	c := newChecker(req)
	check(c)
	return c.Violations
}

// CheckBytes decodes a body and checks it as Check does. It also finds fields that the receiver would misread as other fields.
func CheckBytes(name string, body []byte) []error {
	req := &collectorpb.ExportProfilesServiceRequest{}
	if err := proto.Unmarshal(body, req); err != nil {
		return []error{&otlpcheck.Violation{Path: "request", Rule: otlpcheck.RuleDecodable, Detail: err.Error()}}
	}
	return append(broken(req, otlpcheck.RuleUnknownField), Check(name, req)...)
}

// broken returns the places where a request breaks one of these protocol rules.
func broken(req *collectorpb.ExportProfilesServiceRequest, rules ...otlpcheck.Rule) []error {
	return slices.DeleteFunc(otlpcheck.Check(req), func(err error) bool {
		var v *otlpcheck.Violation
		return !errors.As(err, &v) || !slices.Contains(rules, v.Rule)
	})
}

type checker struct {
	req  *collectorpb.ExportProfilesServiceRequest
	dict dictionary.Dictionary
	otlpcheck.Violations
}

func newChecker(req *collectorpb.ExportProfilesServiceRequest) *checker {
	return &checker{req: req, dict: dictionary.Of(req)}
}

// types returns the sample's and the period's type and unit.
func (c *checker) types(p *profilespb.Profile) (sampleType, sampleUnit, periodType, periodUnit string) {
	return c.dict.Str(p.GetSampleType().GetTypeStrindex()), c.dict.Str(p.GetSampleType().GetUnitStrindex()),
		c.dict.Str(p.GetPeriodType().GetTypeStrindex()), c.dict.Str(p.GetPeriodType().GetUnitStrindex())
}

// attributes returns the attributes at indices. It skips indices out of range.
func (c *checker) attributes(indices []int32) []*commonpb.KeyValue {
	attrs := make([]*commonpb.KeyValue, 0, len(indices))
	for _, i := range indices {
		if a := dictionary.At(c.dict.GetAttributeTable(), i); a != nil {
			attrs = append(attrs, &commonpb.KeyValue{Key: c.dict.Str(a.GetKeyStrindex()), Value: a.GetValue()})
		}
	}
	return attrs
}

// outer returns the attributes of a profile's resource and scope.
func outer(p dictionary.Profile) []*commonpb.KeyValue {
	return slices.Concat(p.Resource.GetResource().GetAttributes(), p.Scope.GetScope().GetAttributes())
}

func sampleAt(p dictionary.Profile, i int) string { return fmt.Sprintf("%s.samples[%d]", p.Path(), i) }

func tableAt(table string, i int) string { return fmt.Sprintf("dictionary.%s[%d]", table, i) }
