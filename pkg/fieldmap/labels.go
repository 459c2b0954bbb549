package fieldmap

import (
	"maps"
	"slices"
	"strconv"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// labelled returns a function that maps a key in the settings to its attribute. With attribute_keys: label, attributes are
// exported under other names (see labelKey), and settings can use either name.
func (c *compiler) labelled() func(key string) string {
	if !c.o.Exporter.LabelKeys {
		return func(key string) string { return key }
	}
	known := slices.Clone(resourceKeys)
	for _, name := range c.plan.podLabels {
		known = append(known, podLabelPrefix+name)
	}
	known = slices.AppendSeq(known, maps.Values(canonical))
	for _, acc := range c.fields {
		known = append(known, acc.FullName())
		for _, annotation := range []string{annSampleAttribute, annResourceAttribute} {
			if a := parseAnswer(acc.Annotations(), annotation); a.name != "" {
				known = append(known, a.name)
			}
		}
	}
	byLabel, exact := map[string]string{}, map[string]bool{}
	for _, key := range known {
		exact[key] = true
		if _, ok := byLabel[label(labelKey(key))]; !ok {
			byLabel[label(labelKey(key))] = key
		}
	}
	return func(key string) string {
		if !exact[key] {
			if other, ok := byLabel[label(labelKey(key))]; ok {
				return other
			}
		}
		return key
	}
}

// labelKeys assigns a label name to every attribute that a row can have. All keys are known here, so a name never depends on a
// row.
func (c *compiler) labelKeys() {
	p := c.plan
	if !c.o.Exporter.LabelKeys {
		return
	}
	p.names = map[string]string{}
	keys := slices.Concat(resourceKeys, p.fixedKeys)
	for _, name := range p.podLabels {
		keys = append(keys, podLabelPrefix+name)
	}
	for _, list := range [][]attribute{p.resourceAttrs, p.sampleAttrs} {
		for _, a := range list {
			keys = append(keys, a.key)
		}
	}
	taken := map[string]bool{}
	for _, key := range keys {
		if _, ok := p.names[key]; ok {
			continue
		}
		base := labelKey(key)
		name := base
		for k := 2; taken[label(name)]; k++ {
			name = base + "_" + strconv.Itoa(k)
		}
		if name != base {
			c.warnf("the attribute %q is exported as %q, because another attribute has the label %q", clipName(key), clipName(name), clipName(base))
		}
		taken[label(name)] = true
		p.names[key] = name
	}
	for i := range p.sampleAttrs {
		p.sampleAttrs[i].key = p.name(p.sampleAttrs[i].key)
	}
}

// labelKey turns a key into a label name. A label name consists of letters, digits and _, and does not begin with a digit.
// service.name does not change, because receivers look for it and create the label themselves.
func labelKey(key string) string {
	if key == keyServiceName {
		return key
	}
	b := make([]byte, 0, len(key)+1)
	for i := range len(key) {
		c := key[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_':
		case c >= '0' && c <= '9':
			if i == 0 {
				b = append(b, '_')
			}
		default:
			c = '_'
		}
		b = append(b, c)
	}
	return string(b)
}

func placements(settings []config.KeyValue) map[string]place {
	m := make(map[string]place, len(settings))
	for _, kv := range settings {
		switch kv.Value {
		case "resource":
			m[kv.Key] = onResource
		case "sample":
			m[kv.Key] = onSample
		case "both":
			m[kv.Key] = onBoth
		case "drop":
			m[kv.Key] = nowhere
		}
	}
	return m
}
