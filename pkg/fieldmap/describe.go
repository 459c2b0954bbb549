package fieldmap

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// defaultScope names the producer if a gadget has no image, as in a test.
const defaultScope = "github.com/ig-otel-profiles/ig-otel-profiles"

// describe fills in the Descriptor. It needs the value fields.
func (c *compiler) describe() {
	d := &c.plan.desc
	d.Name = c.profileName()
	d.Types = c.types()
	d.PeriodType, d.Period = c.period(d.Name, d.Types[0])

	switch v := strings.ToLower(strings.TrimSpace(c.ann[annAggregation])); v {
	case "", "sum":
	case "last":
		d.Last = true
	default:
		c.warnf("%s is %q, but must be sum or last: using sum", annAggregation, clipName(v))
	}
	d.Timestamps = isTrue(c.ann[annTimestamps])

	image := parseImage(c.o.Gadget.ImageName)
	d.Scope = profile.Scope{Name: clip(firstOf(image.name, defaultScope)), Version: clip(image.version())}
	if c.o.Exporter.ProfileScope {
		d.Scope.Name = d.Name
	}
}

func (c *compiler) profileName() string {
	if c.o.Name != "" { // set by the user, or by the image as the flag's default
		name := safeName(c.o.Name)
		if name != c.o.Name {
			c.warnf("the profile's name %q is exported as %q, because names may contain only letters, digits and . _ - /", clipName(c.o.Name), name)
		}
		return name
	}
	name := strings.TrimSpace(c.ann[annName])
	if name == "" {
		return safeName(c.ds.Name())
	}
	if err := checkName(name); err != nil {
		c.warnf("%s %q is ignored: %v; using the name of the data source", annName, clipName(name), err)
		return safeName(c.ds.Name())
	}
	return name
}

// types creates the sample types, one per value field. All of them are distinct.
func (c *compiler) types() []profile.ValueType {
	typeNames, units := splitPositions(c.ann[annType]), splitPositions(c.ann[annUnit])
	n := max(1, len(c.plan.values))
	for annotation, list := range map[string][]string{annType: typeNames, annUnit: units} {
		if len(list) > n {
			c.warnf("%s has %d entries for %d values: the extra entries are ignored", annotation, len(list), n)
		}
	}
	defaultType := "samples"
	if len(c.plan.values) == 0 {
		defaultType = "events"
	}
	types := make([]profile.ValueType, 0, n)
	for i := range n {
		t := profile.ValueType{Type: c.typeName(annType, at(typeNames, i)), Unit: at(units, i)}
		t.Unit = c.unit(c.checked(annUnit, t.Unit))
		if i < len(c.plan.values) && c.plan.values[i].scale != 0 {
			t.Unit = "nanoseconds"
		}
		if t.Type == "" {
			t.Type = defaultType
			if n > 1 { // the field's name distinguishes them
				t.Type = strings.ReplaceAll(safeName(c.plan.values[i].read.acc.FullName()), "-", "_")
			}
		}
		for base, k := t.Type, 2; slices.Contains(types, t); k++ {
			t.Type = base + "_" + strconv.Itoa(k)
			c.warnf("two values have the type %q: one is renamed to %q; set a type for each in %s", base, t.Type, annType)
		}
		types = append(types, t)
	}
	return types
}

// pprofUnits maps other spellings of units to pprof's. Receivers match a unit by its exact spelling.
var pprofUnits = map[string]string{
	"": "count", "1": "count", "counts": "count",
	"ns": "nanoseconds", "nanosecond": "nanoseconds",
	"us": "microseconds", "microsecond": "microseconds",
	"ms": "milliseconds", "millisecond": "milliseconds",
	"s": "seconds", "second": "seconds",
	"byte": "bytes", "By": "bytes",
}

func (c *compiler) unit(name string) string {
	if word, ok := pprofUnits[name]; ok && (name == "" || !c.o.Exporter.CompatNames) {
		return word
	}
	return name
}

// checked returns the name in an annotation, or "" if the name is invalid.
func (c *compiler) checked(annotation, name string) string {
	if name == "" {
		return ""
	}
	if err := checkName(name); err != nil {
		c.warnf("%s %q is ignored: %v", annotation, clipName(name), err)
		return ""
	}
	return name
}

// typeName checks the name of a sample type. Pyroscope refuses a name with a dash.
func (c *compiler) typeName(annotation, name string) string {
	name = c.checked(annotation, name)
	if strings.Contains(name, "-") {
		better := strings.ReplaceAll(name, "-", "_")
		c.warnf("%s %q is exported as %q: receivers refuse a type with a dash", annotation, name, better)
		return better
	}
	return name
}

// safeName changes the name of a data source or field into one that checkName accepts.
func safeName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && checkName(string(r)) == nil {
			return r
		}
		return '_'
	}, name)
	return firstOf(name[:min(len(name), maxNameBytes)], "unnamed")
}

// period returns the sampling period from the annotations, or else from the gadget's sampler. Otherwise it is 1, with the
// profile's name as type, because receivers refuse 0.
func (c *compiler) period(name string, first profile.ValueType) (profile.ValueType, int64) {
	none := profile.ValueType{Type: name, Unit: first.Unit}
	if c.o.Exporter.CompatNames {
		return none, 1
	}
	typ, unit := strings.TrimSpace(c.ann[annPeriodType]), strings.TrimSpace(c.ann[annPeriodUnit])
	typ = c.typeName(annPeriodType, typ)
	if unit = c.checked(annPeriodUnit, unit); unit != "" {
		unit = c.unit(unit)
	}
	sampled, period := none, int64(1)
	if first == (profile.ValueType{Type: "samples", Unit: "count"}) {
		if hz, ok := c.frequency(); ok {
			sampled, period = profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, 1_000_000_000/hz
		}
	}
	if s := strings.TrimSpace(c.ann[annPeriod]); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err == nil && n <= 0 {
			err = fmt.Errorf("it must be greater than 0")
		}
		if err != nil {
			c.warnf("%s %q is ignored: it must be a whole number above 0", annPeriod, clipName(s))
		} else {
			period = n
		}
	}
	return profile.ValueType{Type: firstOf(typ, sampled.Type), Unit: firstOf(unit, sampled.Unit)}, period
}

// maxFrequency is above every frequency that the kernel allows (kernel.perf_event_max_sample_rate is 100,000 by default).
const maxFrequency = 1_000_000

// frequency returns how often per second the gadget's sampler samples each CPU, or false if that is uncertain. IG reads it from
// the same metadata, which already contains the parameters.
func (c *compiler) frequency() (int64, bool) {
	if c.o.Gadget.Config == nil {
		return 0, false
	}
	var found int64
	for _, key := range c.o.Gadget.Config.AllKeys() {
		if !strings.HasPrefix(key, "programs.") || !strings.HasSuffix(key, ".sampler.frequency") {
			continue
		}
		hz, ok := parseFrequency(c.o.Gadget.Config.GetString(key))
		if !ok {
			continue
		}
		if found != 0 && found != hz {
			c.warnf("the gadget samples at several frequencies, so the period is unknown: set %s, %s and %s", annPeriod, annPeriodType, annPeriodUnit)
			return 0, false
		}
		found = hz
	}
	return found, found != 0
}

// IsSampler reports whether a timer calls one of the gadget's programs. The metadata can be nil.
func IsSampler(metadata *viper.Viper) bool {
	return metadata != nil && slices.ContainsFunc(metadata.AllKeys(), func(key string) bool {
		return strings.HasPrefix(key, "programs.") && strings.Contains(key, ".sampler.")
	})
}

func parseFrequency(s string) (int64, bool) {
	hz, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	return hz, err == nil && hz > 0 && hz <= maxFrequency
}
