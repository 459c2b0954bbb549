package otlpcheck

import (
	"slices"
	"strings"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

func (c *checker) dictionary() {
	if c.req.GetDictionary() == nil {
		c.Fail("dictionary", RuleTablePresent, "the request has no dictionary")
		return
	}
	finish(c, stringTable, c.dict.StringTable, func(s string) string { return s })
	c.attributeTable()
	c.functionTable()
	c.mappingTable()
	c.locationTable()
	c.stackTable()
	c.linkTable()
}

func (c *checker) attributeTable() {
	for i, a := range c.dict.AttributeTable {
		p := at(attributeTable, i)
		c.strindex(p+".key_strindex", a.GetKeyStrindex())
		c.strindex(p+".unit_strindex", a.GetUnitStrindex())
		c.anyValue(p+".value", a.GetValue(), false)
		if i > 0 && c.str(a.GetKeyStrindex()) == "" {
			c.Fail(p, RuleAttribute, "it has no key")
		}
	}
	finish(c, attributeTable, c.dict.AttributeTable, func(a *profilespb.KeyValueAndUnit) string {
		k := (&keyBuilder{}).list(c.canon[stringTable], []int32{a.GetKeyStrindex(), a.GetUnitStrindex()})
		return k.bytes(c.canonValue(a.GetValue())).String()
	})
}

// canonValue encodes a value. Equal values have equal bytes, whether their text is plain or a reference.
func (c *checker) canonValue(v *commonpb.AnyValue) []byte {
	if v == nil {
		return nil
	}
	v = proto.Clone(v).(*commonpb.AnyValue)
	c.plainValue(v)
	// A message that cannot be marshalled has invalid UTF-8, which is reported on its own.
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(v)
	if err != nil {
		return []byte(v.String())
	}
	return append(b, 1)
}

// plainValue replaces references into the string table with their text.
func (c *checker) plainValue(v *commonpb.AnyValue) {
	switch x := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValueStrindex:
		v.Value = &commonpb.AnyValue_StringValue{StringValue: c.str(x.StringValueStrindex)}
	case *commonpb.AnyValue_ArrayValue:
		for _, e := range x.ArrayValue.GetValues() {
			c.plainValue(e)
		}
	case *commonpb.AnyValue_KvlistValue:
		for _, kv := range x.KvlistValue.GetValues() {
			if kv.GetKeyStrindex() != 0 {
				kv.Key, kv.KeyStrindex = c.str(kv.GetKeyStrindex()), 0
			}
			c.plainValue(kv.GetValue())
		}
	}
}

// anyValue checks an attribute's value. plain forbids references into the string table.
func (c *checker) anyValue(path string, v *commonpb.AnyValue, plain bool) {
	switch x := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		c.length(path, len(x.StringValue))
	case *commonpb.AnyValue_BytesValue:
		c.length(path, len(x.BytesValue))
	case *commonpb.AnyValue_StringValueStrindex:
		if plain {
			c.Fail(path+".string_value_strindex", RulePlain, "it refers to string %d", x.StringValueStrindex)
		}
		c.strindex(path+".string_value_strindex", x.StringValueStrindex)
		c.length(path, len(c.str(x.StringValueStrindex)))
	case *commonpb.AnyValue_ArrayValue:
		for i, e := range x.ArrayValue.GetValues() {
			c.anyValue(at(path+".array_value.values", i), e, plain)
		}
	case *commonpb.AnyValue_KvlistValue:
		c.keyValues(path+".kvlist_value.values", x.KvlistValue.GetValues(), plain)
	}
}

func (c *checker) length(path string, n int) {
	if n > MaxAttributeValue {
		c.Fail(path, RuleAttributeValue, "it has %d bytes", n)
	}
}

func (c *checker) keyValues(path string, list []*commonpb.KeyValue, plain bool) {
	seen := map[string]int{}
	for i, kv := range list {
		p := at(path, i)
		key := kv.GetKey()
		if s := kv.GetKeyStrindex(); s != 0 {
			if plain {
				c.Fail(p+".key_strindex", RulePlain, "it refers to string %d", s)
			}
			c.strindex(p+".key_strindex", s)
			if key != "" {
				c.Fail(p, RuleAttribute, "it has both key %q and key_strindex %d", key, s)
			}
			key = c.str(s)
		}
		if key == "" {
			c.Fail(p, RuleAttribute, "it has no key")
		}
		if j, dup := seen[key]; dup {
			c.Fail(p, RuleUniqueKey, "%q is also the key at position %d", key, j)
		}
		seen[key] = i
		c.anyValue(p+".value", kv.GetValue(), plain)
	}
}

// attributes checks a list of indices into the attribute table.
func (c *checker) attributes(path string, indices []int32) {
	seen := map[string]int{}
	for i, a := range indices {
		p := at(path+".attribute_indices", i)
		if !c.index(p, a, len(c.dict.AttributeTable)) {
			continue
		}
		if a == 0 {
			c.Fail(p, RuleAttribute, "it refers to the empty attribute 0")
			continue
		}
		key := c.str(c.dict.AttributeTable[a].GetKeyStrindex())
		if j, dup := seen[key]; dup {
			c.Fail(p, RuleUniqueKey, "%q is also the key at position %d", key, j)
		}
		seen[key] = i
	}
}

func (c *checker) functionTable() {
	for i, f := range c.dict.FunctionTable {
		p := at(functionTable, i)
		c.strindex(p+".name_strindex", f.GetNameStrindex())
		c.strindex(p+".system_name_strindex", f.GetSystemNameStrindex())
		c.strindex(p+".filename_strindex", f.GetFilenameStrindex())
		if f.GetStartLine() < 0 {
			c.Fail(p+".start_line", RuleLine, "%d", f.GetStartLine())
		}
		if i == 0 {
			continue
		}
		name, system := c.str(f.GetNameStrindex()), c.str(f.GetSystemNameStrindex())
		if name == "" && system == "" && c.str(f.GetFilenameStrindex()) == "" {
			c.Fail(p, RuleFunctionName, "it has none")
		}
		for _, s := range []string{name, system} {
			if addressLike.MatchString(s) {
				c.Fail(p, RuleNotAddress, "%q", s)
				break
			}
		}
	}
	finish(c, functionTable, c.dict.FunctionTable, func(f *profilespb.Function) string {
		return (&keyBuilder{}).list(c.canon[stringTable], []int32{
			f.GetNameStrindex(), f.GetSystemNameStrindex(), f.GetFilenameStrindex(),
		}).num(uint64(f.GetStartLine())).String()
	})
}

func (c *checker) mappingTable() {
	for i, m := range c.dict.MappingTable {
		p := at(mappingTable, i)
		c.strindex(p+".filename_strindex", m.GetFilenameStrindex())
		c.attributes(p, m.GetAttributeIndices())
		if start, limit := m.GetMemoryStart(), m.GetMemoryLimit(); (start != 0 || limit != 0) && start >= limit {
			c.Fail(p, RuleMappingRange, "memory_start %#x, memory_limit %#x", start, limit)
		}
		if i > 0 {
			c.buildIDs(p, m)
		}
	}
	finish(c, mappingTable, c.dict.MappingTable, func(m *profilespb.Mapping) string {
		return (&keyBuilder{}).num(m.GetMemoryStart(), m.GetMemoryLimit(), m.GetFileOffset()).
			list(c.canon[stringTable], []int32{m.GetFilenameStrindex()}).
			set(c.canon[attributeTable], m.GetAttributeIndices()).String()
	})
}

func (c *checker) buildIDs(path string, m *profilespb.Mapping) {
	found := false
	for _, key := range buildIDKeys {
		for _, id := range c.texts(m.GetAttributeIndices(), key) {
			found = found || id != ""
			if form := buildIDForms[key]; form != nil && !form.MatchString(id) {
				c.Fail(path, RuleBuildIDForm, "%s is %q", key, id)
			}
		}
	}
	if !found {
		c.Fail(path, RuleMappingBuildID, "file %q has none of %s", c.str(m.GetFilenameStrindex()), strings.Join(buildIDKeys, ", "))
	}
}

// texts returns the texts of the attributes with that key.
func (c *checker) texts(indices []int32, key string) []string {
	var list []string
	for _, i := range indices {
		if attr := dictionary.At(c.dict.AttributeTable, i); attr != nil && c.str(attr.GetKeyStrindex()) == key {
			list = append(list, c.dict.Text(attr.GetValue()))
		}
	}
	return list
}

func (c *checker) locationTable() {
	for i, l := range c.dict.LocationTable {
		p := at(locationTable, i)
		c.attributes(p, l.GetAttributeIndices())
		if m := l.GetMappingIndex(); c.index(p+".mapping_index", m, len(c.dict.MappingTable)) {
			mapping := c.dict.MappingTable[m]
			start, limit := mapping.GetMemoryStart(), mapping.GetMemoryLimit()
			if a := l.GetAddress(); limit != 0 && a != 0 && (a < start || a > limit) {
				c.Fail(p+".address", RuleAddress, "%#x is not within [%#x, %#x]", a, start, limit)
			}
		}
		if i > 0 && l.GetAddress() == 0 && len(l.GetLines()) == 0 {
			c.Fail(p, RuleEmptyFrame, "it has neither an address nor lines")
		}
		for j, line := range l.GetLines() {
			lp := at(p+".lines", j)
			if c.index(lp+".function_index", line.GetFunctionIndex(), len(c.dict.FunctionTable)) && line.GetFunctionIndex() == 0 {
				c.Fail(lp, RuleLine, "it has no function")
			}
			if l.GetAddress() != 0 && c.str(dictionary.At(c.dict.FunctionTable, line.GetFunctionIndex()).GetNameStrindex()) == nothingKnown {
				c.Fail(lp, RuleNotAddress, "%q at %#x", nothingKnown, l.GetAddress())
			}
			if line.GetLine() < 0 || line.GetColumn() < 0 {
				c.Fail(lp, RuleLine, "line %d, column %d", line.GetLine(), line.GetColumn())
			}
		}
	}
	finish(c, locationTable, c.dict.LocationTable, func(l *profilespb.Location) string {
		k := (&keyBuilder{}).list(c.canon[mappingTable], []int32{l.GetMappingIndex()}).num(l.GetAddress())
		k.set(c.canon[attributeTable], l.GetAttributeIndices()).num(uint64(len(l.GetLines())))
		for _, line := range l.GetLines() {
			k.list(c.canon[functionTable], []int32{line.GetFunctionIndex()}).num(uint64(line.GetLine()), uint64(line.GetColumn()))
		}
		return k.String()
	})
}

func (c *checker) stackTable() {
	for i, s := range c.dict.StackTable {
		for j, l := range s.GetLocationIndices() {
			p := at(at(stackTable, i)+".location_indices", j)
			if c.index(p, l, len(c.dict.LocationTable)) && l == 0 {
				c.Fail(p, RuleEmptyFrame, "it refers to the empty location 0")
			}
		}
	}
	finish(c, stackTable, c.dict.StackTable, func(s *profilespb.Stack) string {
		return (&keyBuilder{}).list(c.canon[locationTable], s.GetLocationIndices()).String()
	})
}

func (c *checker) linkTable() {
	for i, l := range c.dict.LinkTable {
		if i == 0 {
			continue
		}
		if len(l.GetTraceId()) != 16 || len(l.GetSpanId()) != 8 || allZero(l.GetTraceId()) || allZero(l.GetSpanId()) {
			c.Fail(at(linkTable, i), RuleLinkLength, "trace_id %x, span_id %x", l.GetTraceId(), l.GetSpanId())
		}
	}
	finish(c, linkTable, c.dict.LinkTable, func(l *profilespb.Link) string {
		return (&keyBuilder{}).bytes(l.GetTraceId()).bytes(l.GetSpanId()).String()
	})
}

func allZero(b []byte) bool {
	return !slices.ContainsFunc(b, func(x byte) bool { return x != 0 })
}
