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
		c.fail("dictionary", RuleTablePresent, "the request has no dictionary")
		return
	}
	c.zeros()
	c.canonString = c.canonize("dictionary.string_table", len(c.dict.StringTable), func(i int) string {
		return c.dict.StringTable[i]
	})
	c.attributeTable()
	c.functionTable()
	c.mappingTable()
	c.locationTable()
	c.stackTable()
	c.linkTable()
}

// zeros checks that every table begins with its zero value.
func (c *checker) zeros() {
	d := c.dict
	zero := func(name string, n int, size func() int) {
		path := "dictionary." + name
		if n == 0 {
			c.fail(path, RuleTablePresent, "it is empty")
		} else if s := size(); s != 0 {
			c.fail(path+"[0]", RuleTableZero, "it has %d bytes", s)
		}
	}
	zero("mapping_table", len(d.MappingTable), func() int { return proto.Size(d.MappingTable[0]) })
	zero("location_table", len(d.LocationTable), func() int { return proto.Size(d.LocationTable[0]) })
	zero("function_table", len(d.FunctionTable), func() int { return proto.Size(d.FunctionTable[0]) })
	zero("link_table", len(d.LinkTable), func() int { return proto.Size(d.LinkTable[0]) })
	zero("string_table", len(d.StringTable), func() int { return len(d.StringTable[0]) })
	zero("attribute_table", len(d.AttributeTable), func() int { return proto.Size(d.AttributeTable[0]) })
	zero("stack_table", len(d.StackTable), func() int { return proto.Size(d.StackTable[0]) })
}

func (c *checker) attributeTable() {
	const path = "dictionary.attribute_table"
	for i, a := range c.dict.AttributeTable {
		p := at(path, i)
		c.strindex(p+".key_strindex", a.GetKeyStrindex())
		c.strindex(p+".unit_strindex", a.GetUnitStrindex())
		c.anyValue(p+".value", a.GetValue(), false)
		if i > 0 && c.str(a.GetKeyStrindex()) == "" {
			c.fail(p, RuleAttribute, "it has no key")
		}
	}
	c.canonAttr = c.canonize(path, len(c.dict.AttributeTable), func(i int) string {
		a := c.dict.AttributeTable[i]
		k := (&keyBuilder{}).num(uint64(uint32(canonAt(c.canonString, a.GetKeyStrindex()))),
			uint64(uint32(canonAt(c.canonString, a.GetUnitStrindex()))))
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
			c.fail(path+".string_value_strindex", RulePlain, "it refers to string %d", x.StringValueStrindex)
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
		c.fail(path, RuleAttributeValue, "it has %d bytes", n)
	}
}

func (c *checker) keyValues(path string, list []*commonpb.KeyValue, plain bool) {
	seen := map[string]int{}
	for i, kv := range list {
		p := at(path, i)
		key := kv.GetKey()
		if s := kv.GetKeyStrindex(); s != 0 {
			if plain {
				c.fail(p+".key_strindex", RulePlain, "it refers to string %d", s)
			}
			c.strindex(p+".key_strindex", s)
			if key != "" {
				c.fail(p, RuleAttribute, "it has both key %q and key_strindex %d", key, s)
			}
			key = c.str(s)
		}
		if key == "" {
			c.fail(p, RuleAttribute, "it has no key")
		}
		if j, dup := seen[key]; dup {
			c.fail(p, RuleUniqueKey, "%q is also the key at position %d", key, j)
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
			c.fail(p, RuleAttribute, "it refers to the empty attribute 0")
			continue
		}
		key := c.str(c.dict.AttributeTable[a].GetKeyStrindex())
		if j, dup := seen[key]; dup {
			c.fail(p, RuleUniqueKey, "%q is also the key at position %d", key, j)
		}
		seen[key] = i
	}
}

func (c *checker) functionTable() {
	const path = "dictionary.function_table"
	for i, f := range c.dict.FunctionTable {
		p := at(path, i)
		c.strindex(p+".name_strindex", f.GetNameStrindex())
		c.strindex(p+".system_name_strindex", f.GetSystemNameStrindex())
		c.strindex(p+".filename_strindex", f.GetFilenameStrindex())
		if f.GetStartLine() < 0 {
			c.fail(p+".start_line", RuleLine, "%d", f.GetStartLine())
		}
		if i == 0 {
			continue
		}
		name, system := c.str(f.GetNameStrindex()), c.str(f.GetSystemNameStrindex())
		if name == "" && system == "" && c.str(f.GetFilenameStrindex()) == "" {
			c.fail(p, RuleFunctionName, "it has none")
		}
		for _, s := range []string{name, system} {
			if addressLike.MatchString(s) {
				c.fail(p, RuleNotAddress, "%q", s)
				break
			}
		}
	}
	c.canonFunc = c.canonize(path, len(c.dict.FunctionTable), func(i int) string {
		f := c.dict.FunctionTable[i]
		return (&keyBuilder{}).list(c.canonString, []int32{
			f.GetNameStrindex(), f.GetSystemNameStrindex(), f.GetFilenameStrindex(),
		}).num(uint64(f.GetStartLine())).String()
	})
}

func (c *checker) mappingTable() {
	const path = "dictionary.mapping_table"
	for i, m := range c.dict.MappingTable {
		p := at(path, i)
		c.strindex(p+".filename_strindex", m.GetFilenameStrindex())
		c.attributes(p, m.GetAttributeIndices())
		if start, limit := m.GetMemoryStart(), m.GetMemoryLimit(); (start != 0 || limit != 0) && start >= limit {
			c.fail(p, RuleMappingRange, "memory_start %#x, memory_limit %#x", start, limit)
		}
		if i > 0 {
			c.buildIDs(p, m)
		}
	}
	c.canonMapping = c.canonize(path, len(c.dict.MappingTable), func(i int) string {
		m := c.dict.MappingTable[i]
		return (&keyBuilder{}).num(m.GetMemoryStart(), m.GetMemoryLimit(), m.GetFileOffset()).
			list(c.canonString, []int32{m.GetFilenameStrindex()}).
			set(c.canonAttr, m.GetAttributeIndices()).String()
	})
}

func (c *checker) buildIDs(path string, m *profilespb.Mapping) {
	found := false
	for _, key := range buildIDKeys {
		for _, id := range c.texts(m.GetAttributeIndices(), key) {
			found = found || id != ""
			if form := buildIDForms[key]; form != nil && !form.MatchString(id) {
				c.fail(path, RuleBuildIDForm, "%s is %q", key, id)
			}
		}
	}
	if !found {
		c.fail(path, RuleMappingBuildID, "file %q has none of %s", c.str(m.GetFilenameStrindex()), strings.Join(buildIDKeys, ", "))
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
	const path = "dictionary.location_table"
	for i, l := range c.dict.LocationTable {
		p := at(path, i)
		c.attributes(p, l.GetAttributeIndices())
		if m := l.GetMappingIndex(); c.index(p+".mapping_index", m, len(c.dict.MappingTable)) {
			mapping := c.dict.MappingTable[m]
			start, limit := mapping.GetMemoryStart(), mapping.GetMemoryLimit()
			if a := l.GetAddress(); limit != 0 && a != 0 && (a < start || a > limit) {
				c.fail(p+".address", RuleAddress, "%#x is not within [%#x, %#x]", a, start, limit)
			}
		}
		if i > 0 && l.GetAddress() == 0 && len(l.GetLines()) == 0 {
			c.fail(p, RuleEmptyFrame, "it has neither an address nor lines")
		}
		for j, line := range l.GetLines() {
			lp := at(p+".lines", j)
			if c.index(lp+".function_index", line.GetFunctionIndex(), len(c.dict.FunctionTable)) && line.GetFunctionIndex() == 0 {
				c.fail(lp, RuleLine, "it has no function")
			}
			if l.GetAddress() != 0 && c.str(dictionary.At(c.dict.FunctionTable, line.GetFunctionIndex()).GetNameStrindex()) == nothingKnown {
				c.fail(lp, RuleNotAddress, "%q at %#x", nothingKnown, l.GetAddress())
			}
			if line.GetLine() < 0 || line.GetColumn() < 0 {
				c.fail(lp, RuleLine, "line %d, column %d", line.GetLine(), line.GetColumn())
			}
		}
	}
	c.canonLoc = c.canonize(path, len(c.dict.LocationTable), func(i int) string {
		l := c.dict.LocationTable[i]
		k := (&keyBuilder{}).list(c.canonMapping, []int32{l.GetMappingIndex()}).num(l.GetAddress())
		k.set(c.canonAttr, l.GetAttributeIndices()).num(uint64(len(l.GetLines())))
		for _, line := range l.GetLines() {
			k.list(c.canonFunc, []int32{line.GetFunctionIndex()}).num(uint64(line.GetLine()), uint64(line.GetColumn()))
		}
		return k.String()
	})
}

func (c *checker) stackTable() {
	const path = "dictionary.stack_table"
	for i, s := range c.dict.StackTable {
		for j, l := range s.GetLocationIndices() {
			p := at(at(path, i)+".location_indices", j)
			if c.index(p, l, len(c.dict.LocationTable)) && l == 0 {
				c.fail(p, RuleEmptyFrame, "it refers to the empty location 0")
			}
		}
	}
	c.canonStack = c.canonize(path, len(c.dict.StackTable), func(i int) string {
		return (&keyBuilder{}).list(c.canonLoc, c.dict.StackTable[i].GetLocationIndices()).String()
	})
}

func (c *checker) linkTable() {
	const path = "dictionary.link_table"
	for i, l := range c.dict.LinkTable {
		if i == 0 {
			continue
		}
		if len(l.GetTraceId()) != 16 || len(l.GetSpanId()) != 8 || allZero(l.GetTraceId()) || allZero(l.GetSpanId()) {
			c.fail(at(path, i), RuleLinkLength, "trace_id %x, span_id %x", l.GetTraceId(), l.GetSpanId())
		}
	}
	c.canonLink = c.canonize(path, len(c.dict.LinkTable), func(i int) string {
		l := c.dict.LinkTable[i]
		return (&keyBuilder{}).bytes(l.GetTraceId()).bytes(l.GetSpanId()).String()
	})
}

func allZero(b []byte) bool {
	return !slices.ContainsFunc(b, func(x byte) bool { return x != 0 })
}
