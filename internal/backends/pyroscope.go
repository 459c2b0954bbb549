package backends

import (
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

// Pyroscope's sources.
const (
	pyroscopeHandler  = "grafana/pyroscope pkg/ingester/otlp/ingest_handler.go"
	pyroscopeConvert  = "grafana/pyroscope pkg/ingester/otlp/convert.go"
	pyroscopeValidate = "grafana/pyroscope pkg/validation/validate.go"
	pyroscopeLimits   = "grafana/pyroscope pkg/validation/limits.go (default)"
)

// Pyroscope's default limits (pkg/validation/limits.go).
const (
	pyroscopeMaxLabels       = 30
	pyroscopeMaxLabelName    = 1024
	pyroscopeMaxLabelValue   = 2048
	pyroscopeMaxProfile      = 4 << 20
	pyroscopeMaxSamples      = 16_000
	pyroscopeMaxSampleLabels = 100
	pyroscopeMaxDepth        = 1000
	pyroscopeMaxSymbol       = 65_535
	pyroscopeMaxAge          = time.Hour
	pyroscopeMaxAhead        = 10 * time.Minute
)

// These are Pyroscope's rules in addition to the protocol's. In test/backends, a real Pyroscope accepts every gadget's messages.
var (
	pyroscopeName         = rule("pyroscope-name", "the profile's name is a metric name: that is the period type if the period is not 0, or else the attribute __name__ of samples", pyroscopeConvert)
	pyroscopeValues       = rule("pyroscope-values", "a sample has one value, or timestamps without values", pyroscopeConvert)
	pyroscopeService      = rule("pyroscope-service", "a resource has a service.name; without it everything is unknown_service", pyroscopeHandler)
	pyroscopeLabels       = rule("pyroscope-labels", "a series has at most 30 labels, including 4 that Pyroscope adds", pyroscopeLimits)
	pyroscopeLabelName    = rule("pyroscope-label-name", "an attribute's key, with '.' read as '_', is a label name of at most 1024 bytes", pyroscopeValidate)
	pyroscopeDots         = rule("pyroscope-dots", "an attribute's key has no '.', except service.name: 2.x keeps the '.', and no query or page can select it", "grafana/pyroscope pull request 5038")
	pyroscopeLabelValue   = rule("pyroscope-label-value", "an attribute's value is UTF-8 of at most 2048 bytes", pyroscopeValidate)
	pyroscopeDuplicate    = rule("pyroscope-duplicate-label", "no two attributes of a series become the same label with different values", pyroscopeValidate)
	pyroscopeSampleLabels = rule("pyroscope-sample-labels", "a sample has at most 100 attributes", pyroscopeLimits)
	pyroscopeSamples      = rule("pyroscope-samples", "a profile has at most 16000 samples", pyroscopeLimits)
	pyroscopeSize         = rule("pyroscope-size", "a profile with all referenced data is at most 4 MiB", pyroscopeLimits)
	pyroscopeDepth        = rule("pyroscope-depth", "a stack has at most 1000 frames, or its leaf is cut off", pyroscopeValidate)
	pyroscopeSymbol       = rule("pyroscope-symbol", "a name has at most 65535 bytes, or it is cut", pyroscopeLimits)
	pyroscopeWindow       = rule("pyroscope-window", "a profile is at most an hour old and at most ten minutes ahead", pyroscopeLimits)
	pyroscopeMapping      = rule("pyroscope-mapping", "frames with and without a symbol do not share a mapping, because has_functions applies to the whole mapping", pyroscopeConvert)
)

var (
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
)

// Series identifies samples in Pyroscope's storage.
type Series struct {
	// Labels include the four that Pyroscope adds. In their names, '_' replaces '.', as in Pyroscope's storage.
	Labels map[string]string
	// Type is the profile type in the form name:sample type:sample unit:period type:period unit.
	Type string
}

// Key returns a text that is the same for equal series.
func (s Series) Key() string {
	var b strings.Builder
	b.WriteString(s.Type)
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		b.WriteString(" " + strconv.Quote(name) + "=" + strconv.Quote(s.Labels[name]))
	}
	return b.String()
}

// PyroscopeSeries returns the series that Pyroscope creates from a request, in the order of their first samples. Each combination
// of a profile type with resource, scope and sample attributes is one series.
func PyroscopeSeries(req *collectorpb.ExportProfilesServiceRequest) []Series {
	c := newChecker(req)
	var list []Series
	seen := map[string]bool{}
	for p := range dictionary.Profiles(c.req) {
		for _, s := range p.GetSamples() {
			series := Series{Labels: map[string]string{}}
			for _, l := range c.pyroscopeLabels(p, s) {
				series.Labels[strings.ReplaceAll(l.name, ".", "_")] = l.value
			}
			series.Type = c.pyroscopeType(p.Profile, series.Labels["__name__"])
			if key := series.Key(); !seen[key] {
				seen[key] = true
				list = append(list, series)
			}
		}
	}
	return list
}

// CheckPyroscopeWindow returns the profiles that Pyroscope rejects at the time now because of their start time. Check omits this
// rule because it has no clock.
func CheckPyroscopeWindow(req *collectorpb.ExportProfilesServiceRequest, now time.Time) []error {
	c := newChecker(req)
	for p := range dictionary.Profiles(c.req) {
		// Pyroscope reads a time of 0 as now.
		start := time.Unix(0, int64(p.GetTimeUnixNano()))
		if p.GetTimeUnixNano() != 0 && (now.Sub(start) > pyroscopeMaxAge || start.Sub(now) > pyroscopeMaxAhead) {
			c.Fail(p.Path()+".time_unix_nano", pyroscopeWindow, "it is %s before now", now.Sub(start))
		}
	}
	return c.Violations
}

// pyroscopeTypes returns the profile's name and its sample type and unit as Pyroscope changes them.
func (c *checker) pyroscopeTypes(p *profilespb.Profile) (name, sampleType, sampleUnit, periodType, periodUnit string) {
	sampleType, sampleUnit, periodType, periodUnit = c.types(p)
	nameType, nameUnit := periodType, periodUnit
	if p.GetPeriod() == 0 || p.GetPeriodType() == nil {
		nameType, nameUnit = "", ""
	}
	switch {
	case sampleType == "samples" && sampleUnit == "count" && nameType == "cpu" && nameUnit == "nanoseconds":
		// Values are multiplied by the period.
		return "process_cpu", "cpu", "nanoseconds", periodType, periodUnit
	case sampleType == "off_cpu" && sampleUnit == "nanoseconds" && nameType == "" && nameUnit == "":
		return "off_cpu", sampleType, sampleUnit, periodType, periodUnit
	}
	return nameType, sampleType, sampleUnit, periodType, periodUnit
}

// pyroscopeType returns the profile type of a series whose label __name__ is name.
func (c *checker) pyroscopeType(p *profilespb.Profile, name string) string {
	_, sampleType, sampleUnit, periodType, periodUnit := c.pyroscopeTypes(p)
	return strings.Join([]string{name, sampleType, sampleUnit, periodType, periodUnit}, ":")
}

type label struct{ name, value string }

// pyroscopeValue returns an attribute's value as a label. An empty value results in no label. Numbers and one-string lists become
// labels only in newer releases.
func pyroscopeValue(v *commonpb.AnyValue) string {
	switch x := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return x.StringValue
	case *commonpb.AnyValue_IntValue:
		return strconv.FormatInt(x.IntValue, 10)
	case *commonpb.AnyValue_ArrayValue:
		if list := x.ArrayValue.GetValues(); len(list) == 1 {
			return list[0].GetStringValue()
		}
	}
	return ""
}

// pyroscopeLabels returns the labels of a sample's series before they are checked. Two of them can have the same name.
func (c *checker) pyroscopeLabels(p dictionary.Profile, s *profilespb.Sample) []label {
	name, _, _, _, _ := c.pyroscopeTypes(p.Profile)
	labels := []label{{"__delta__", "false"}, {"__otel__", "true"}, {"__name__", name}}
	service := ""
	seen := map[string]bool{"__name__": true}
	for _, a := range outer(p) {
		value := pyroscopeValue(a.GetValue())
		if value == "" || seen[a.GetKey()] {
			continue
		}
		seen[a.GetKey()] = true
		labels = append(labels, label{a.GetKey(), value})
		if a.GetKey() == "service.name" {
			service = value
		}
	}
	for _, a := range c.attributes(s.GetAttributeIndices()) {
		value := pyroscopeValue(a.GetValue())
		switch {
		case value == "":
		case a.GetKey() == "service.name":
			service = value
			// The resource's service.name stays as a second label.
		case a.GetKey() == "__name__":
			if name == "" {
				labels[2].value = value
			}
		default:
			labels = append(labels, label{a.GetKey(), value})
		}
	}
	if service == "" {
		service = "unknown_service"
	}
	return append(labels, label{"service_name", service})
}

func checkPyroscope(c *checker) {
	for i, s := range c.dict.GetStringTable() {
		if len(s) > pyroscopeMaxSymbol {
			c.Fail(tableAt("string_table", i), pyroscopeSymbol, "it has %d", len(s))
		}
	}
	c.pyroscopeMappings()
	for i, s := range c.dict.GetStackTable() {
		if n := len(s.GetLocationIndices()); n > pyroscopeMaxDepth {
			c.Fail(tableAt("stack_table", i), pyroscopeDepth, "it has %d", n)
		}
	}
	for p := range dictionary.Profiles(c.req) {
		c.pyroscopeProfile(p)
	}
}

// pyroscopeMappings finds mappings that have functions in only some of their locations.
func (c *checker) pyroscopeMappings() {
	bare, symbolized := map[int32]int{}, map[int32]int{}
	for i, l := range c.dict.GetLocationTable() {
		m := l.GetMappingIndex()
		if m == 0 || i == 0 {
			continue
		}
		if len(l.GetLines()) == 0 {
			bare[m] = i
		} else {
			symbolized[m] = i
		}
	}
	for _, m := range slices.Sorted(maps.Keys(bare)) {
		if i, mixed := symbolized[m]; mixed {
			c.Fail(tableAt("mapping_table", int(m)), pyroscopeMapping, "locations %d and %d", i, bare[m])
		}
	}
}

func (c *checker) pyroscopeProfile(p dictionary.Profile) {
	if n := len(p.GetSamples()); n > pyroscopeMaxSamples {
		c.Fail(p.Path(), pyroscopeSamples, "it has %d", n)
	}
	if n := proto.Size(p.Profile) + proto.Size(c.dict); n > pyroscopeMaxProfile {
		c.Fail(p.Path(), pyroscopeSize, "it has %d bytes", n)
	}
	checked := map[string]bool{}
	for i, s := range p.GetSamples() {
		path := sampleAt(p, i)
		if len(s.GetValues()) > 1 || len(s.GetValues()) == 0 && len(s.GetTimestampsUnixNano()) == 0 {
			c.Fail(path, pyroscopeValues, "%d values, %d timestamps", len(s.GetValues()), len(s.GetTimestampsUnixNano()))
		}
		if n := len(s.GetAttributeIndices()); n > pyroscopeMaxSampleLabels {
			c.Fail(path, pyroscopeSampleLabels, "it has %d", n)
		}
		// Samples with the same attributes are one series.
		if key := fmt.Sprint(s.GetAttributeIndices()); !checked[key] {
			checked[key] = true
			labels := c.pyroscopeLabels(p, s)
			if name := labels[2].value; !metricName.MatchString(name) || strings.Contains(name, ":") {
				c.Fail(p.Path()+".period_type", pyroscopeName, "name %q, period %d", name, p.GetPeriod())
			}
			c.pyroscopeSeries(path, labels)
		}
	}
}

// pyroscopeSeries checks a series' labels before Pyroscope merges duplicates.
func (c *checker) pyroscopeSeries(path string, labels []label) {
	if len(labels) > pyroscopeMaxLabels {
		c.Fail(path, pyroscopeLabels, "it has %d", len(labels))
	}
	values := map[string]string{}
	for _, l := range labels {
		name := strings.ReplaceAll(l.name, ".", "_")
		if !labelName.MatchString(name) || len(l.name) > pyroscopeMaxLabelName {
			c.Fail(path, pyroscopeLabelName, "%q", l.name[:min(len(l.name), 80)])
		}
		if strings.Contains(l.name, ".") && l.name != "service.name" {
			c.Fail(path, pyroscopeDots, "%q", l.name[:min(len(l.name), 80)])
		}
		if len(l.value) > pyroscopeMaxLabelValue || !utf8.ValidString(l.value) {
			c.Fail(path, pyroscopeLabelValue, "%q has %d bytes, which begin with %s", l.name, len(l.value), hex.EncodeToString([]byte(l.value[:min(len(l.value), 16)])))
		}
		if other, dup := values[name]; dup && other != l.value {
			c.Fail(path, pyroscopeDuplicate, "%s is %q and %q", name, other, l.value)
		}
		values[name] = l.value
		if name == "service_name" && l.value == "unknown_service" {
			c.Fail(path, pyroscopeService, "there is none")
		}
	}
}
