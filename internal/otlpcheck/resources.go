package otlpcheck

import (
	"slices"
	"strings"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
)

func (c *checker) resources() {
	if len(c.req.GetResourceProfiles()) == 0 {
		c.Fail("resource_profiles", RuleNotEmpty, "the request has no profiles")
	}
	for i, rp := range c.req.GetResourceProfiles() {
		path := at("resource_profiles", i)
		c.resource(path, rp)
		if len(rp.GetScopeProfiles()) == 0 {
			c.Fail(path, RuleNotEmpty, "the resource has no scopes")
		}
		for j, sp := range rp.GetScopeProfiles() {
			p := at(path+".scope_profiles", j)
			c.keyValues(p+".scope.attributes", sp.GetScope().GetAttributes(), true)
			if sp.GetSchemaUrl() == "" {
				c.Fail(p, RuleSchemaURL, "it has no schema_url")
			}
			if len(sp.GetProfiles()) == 0 {
				c.Fail(p, RuleNotEmpty, "the scope has no profiles")
			}
			for k, prof := range sp.GetProfiles() {
				c.profile(at(p+".profiles", k), prof)
			}
		}
	}
}

func (c *checker) resource(path string, rp *profilespb.ResourceProfiles) {
	attrs := rp.GetResource().GetAttributes()
	c.keyValues(path+".resource.attributes", attrs, true)
	if rp.GetSchemaUrl() == "" {
		c.Fail(path, RuleSchemaURL, "it has no schema_url")
	}
	for i, ref := range rp.GetResource().GetEntityRefs() {
		for _, key := range slices.Concat(ref.GetIdKeys(), ref.GetDescriptionKeys()) {
			if !slices.ContainsFunc(attrs, func(kv *commonpb.KeyValue) bool { return kv.GetKey() == key }) {
				c.Fail(at(path+".resource.entity_refs", i), RuleEntityRef, "there is no %q", key)
			}
		}
	}
}

func (c *checker) profile(path string, p *profilespb.Profile) {
	c.attributes(path, p.GetAttributeIndices())
	c.valueType(path+".sample_type", RuleSampleType, p.GetSampleType())
	c.valueType(path+".period_type", RulePeriod, p.GetPeriodType())
	if p.GetPeriod() <= 0 {
		c.Fail(path+".period", RulePeriod, "it is %d", p.GetPeriod())
	}
	if p.GetTimeUnixNano() == 0 || p.GetDurationNano() == 0 && !c.state(p) {
		c.Fail(path, RuleTime, "time_unix_nano %d, duration_nano %d", p.GetTimeUnixNano(), p.GetDurationNano())
	}
	if (p.GetOriginalPayloadFormat() == "") != (len(p.GetOriginalPayload()) == 0) {
		c.Fail(path, RulePayload, "format %q with %d bytes", p.GetOriginalPayloadFormat(), len(p.GetOriginalPayload()))
	}
	id := p.GetProfileId()
	if len(id) != 16 || allZero(id) {
		c.Fail(path+".profile_id", RuleProfileID, "%x", id)
	} else if other, dup := c.profileIDs[string(id)]; dup {
		c.Fail(path+".profile_id", RuleProfileID, "%x is also the ID of %s", id, other)
	}
	c.profileIDs[string(id)] = path
	if n := len(p.GetSamples()); n == 0 {
		c.Fail(path, RuleNotEmpty, "the profile has no samples")
	} else if n > MaxSamples {
		c.Fail(path, RuleMaxSamples, "it has %d", n)
	}
	c.samples(path, p)
	c.use(attributeTable, p.GetAttributeIndices()...)
	c.use(stringTable, p.GetSampleType().GetTypeStrindex(), p.GetSampleType().GetUnitStrindex(),
		p.GetPeriodType().GetTypeStrindex(), p.GetPeriodType().GetUnitStrindex())
}

// state reports whether a profile's type, named as in pprof, measures a state and not events.
func (c *checker) state(p *profilespb.Profile) bool {
	return strings.HasPrefix(c.str(p.GetSampleType().GetTypeStrindex()), "inuse_")
}

func (c *checker) valueType(path string, rule Rule, v *profilespb.ValueType) {
	c.strindex(path+".type_strindex", v.GetTypeStrindex())
	c.strindex(path+".unit_strindex", v.GetUnitStrindex())
	t, u := c.str(v.GetTypeStrindex()), c.str(v.GetUnitStrindex())
	if t == "" || u == "" {
		c.Fail(path, rule, "type %q, unit %q", t, u)
	}
	if strings.Contains(t, "-") {
		c.Fail(path, RuleTypeName, "%q", t)
	}
}

func (c *checker) samples(path string, p *profilespb.Profile) {
	identities := make(map[string]int, len(p.GetSamples()))
	start, end := p.GetTimeUnixNano(), p.GetTimeUnixNano()+p.GetDurationNano()
	shape := shapeNone
	for i, s := range p.GetSamples() {
		sp := at(path+".samples", i)
		c.index(sp+".stack_index", s.GetStackIndex(), len(c.dict.StackTable))
		c.index(sp+".link_index", s.GetLinkIndex(), len(c.dict.LinkTable))
		c.attributes(sp, s.GetAttributeIndices())
		values, timestamps := len(s.GetValues()), len(s.GetTimestampsUnixNano())
		switch {
		case values == 0 && timestamps == 0,
			timestamps == 0 && values != 1,
			timestamps != 0 && values != 0 && timestamps != values:
			c.Fail(sp, RuleValues, "%d values, %d timestamps", values, timestamps)
		case shape == shapeNone:
			shape = shapeOf(values, timestamps)
		case shape != shapeOf(values, timestamps):
			c.Fail(sp, RuleShape, "it has %s, those before it %s", shapeOf(values, timestamps), shape)
		}
		for j, t := range s.GetTimestampsUnixNano() {
			if t < start || t >= end {
				c.Fail(at(sp+".timestamps_unix_nano", j), RuleTimestamps, "%d is not within [%d, %d)", t, start, end)
			}
		}
		k := (&keyBuilder{}).list(c.canon[stackTable], []int32{s.GetStackIndex()}).
			list(c.canon[linkTable], []int32{s.GetLinkIndex()}).set(c.canon[attributeTable], s.GetAttributeIndices()).String()
		if j, dup := identities[k]; dup {
			c.Fail(sp, RuleMerged, "it has the identity of samples[%d]", j)
		} else {
			identities[k] = i
		}
		c.use(stackTable, s.GetStackIndex())
		c.use(linkTable, s.GetLinkIndex())
		c.use(attributeTable, s.GetAttributeIndices()...)
	}
}

type sampleShape string

const (
	shapeNone       sampleShape = ""
	shapeValue      sampleShape = "a value"
	shapeTimestamps sampleShape = "timestamps"
	shapeBoth       sampleShape = "values with timestamps"
)

func shapeOf(values, timestamps int) sampleShape {
	switch {
	case timestamps == 0:
		return shapeValue
	case values == 0:
		return shapeTimestamps
	default:
		return shapeBoth
	}
}
