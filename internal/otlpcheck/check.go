// Package otlpcheck checks that an OTLP profiles request keeps the protocol's rules, and the
// stricter ones that this project sets for what it sends.
//
// The protocol's rules are those of the comments in profiles.proto, including every SHOULD that
// can be checked; on top of that come limits of common receivers. Each rule has its source: see
// Rules. The checker is meant for tests and for the demo's receiver. It holds the whole request in
// memory several times over and is not made for hot paths.
package otlpcheck

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Limits that Check applies.
const (
	// MaxRequestSize is the size in bytes, uncompressed, that a request has to stay below.
	MaxRequestSize = 4 << 20
	// MaxSamples is the number of samples that a profile may have.
	MaxSamples = 16_000
	// MaxAttributeValue is the number of bytes that an attribute's text may have.
	MaxAttributeValue = 2048

	maxViolations = 200
)

const (
	keyGNU       = "process.executable.build_id.gnu"
	keyGo        = "process.executable.build_id.go"
	keyHTLHash   = "process.executable.build_id.htlhash"
	keyFrameType = "profile.frame.type"
)

// buildIDKeys are the attributes that identify a mapping's file.
var buildIDKeys = []string{keyGNU, keyGo, keyHTLHash}

// buildIDForms are the forms of build IDs that have one.
var buildIDForms = map[string]*regexp.Regexp{
	keyGNU:     regexp.MustCompile(`^([0-9a-fA-F]{2})+$`),
	keyHTLHash: regexp.MustCompile(`^[0-9a-fA-F]{32}$`),
}

var addressLike = regexp.MustCompile(`^0[xX][0-9a-fA-F]+$`)

// nothingKnown is the name of a frame that has no address either: it keeps the stack's depth.
const nothingKnown = "[unknown]"

// CheckBytes unmarshals body and checks it as Check does. Beyond that it finds fields that the
// protocol does not have, at any depth.
func CheckBytes(body []byte) []error {
	req := &collectorpb.ExportProfilesServiceRequest{}
	if err := proto.Unmarshal(body, req); err != nil {
		return []error{&Violation{Path: "request", Rule: RuleDecodable, Detail: err.Error()}}
	}
	return Check(req)
}

// Check returns every rule that req breaks, each as a *Violation, and nothing for a clean
// request. It stops at 200. It does not change req.
func Check(req *collectorpb.ExportProfilesServiceRequest) []error {
	c := newChecker(req)
	c.text("", req.ProtoReflect())
	if size := proto.Size(req); size >= MaxRequestSize {
		c.fail("request", RuleSize, "it has %d bytes", size)
	}
	c.dictionary()
	c.resources()
	c.orphans()
	return c.errs
}

// kernelStart is the lowest address that the kernel has on the 64-bit machines that Linux runs on.
const kernelStart = 1 << 63

// CheckKernelAddresses returns where the address of a kernel frame is one of kernel space: it tells
// where this boot has the kernel, which its randomization is to hide. Check does not include it, as
// raw addresses can be asked for.
func CheckKernelAddresses(req *collectorpb.ExportProfilesServiceRequest) []error {
	c := newChecker(req)
	for i, l := range c.dict.LocationTable {
		if l.GetAddress() >= kernelStart && slices.Contains(c.texts(l.GetAttributeIndices(), keyFrameType), "kernel") {
			c.fail(at("dictionary.location_table", i), RuleKernelAddress, "%#x", l.GetAddress())
		}
	}
	return c.errs
}

type checker struct {
	req  *collectorpb.ExportProfilesServiceRequest
	dict *profilespb.ProfilesDictionary
	errs []error

	// canon has for each element of a table the index of the first element that is equal by
	// value, so that comparing canonical indices compares values.
	canonString, canonAttr, canonFunc, canonMapping, canonLoc, canonStack, canonLink []int32
	// used has the elements that a profile reaches.
	usedString, usedAttr, usedFunc, usedMapping, usedLoc, usedStack, usedLink []bool

	profileIDs map[string]string
}

func newChecker(req *collectorpb.ExportProfilesServiceRequest) *checker {
	d := req.GetDictionary()
	if d == nil {
		d = &profilespb.ProfilesDictionary{}
	}
	return &checker{
		req: req, dict: d,
		usedString:  make([]bool, len(d.StringTable)),
		usedAttr:    make([]bool, len(d.AttributeTable)),
		usedFunc:    make([]bool, len(d.FunctionTable)),
		usedMapping: make([]bool, len(d.MappingTable)),
		usedLoc:     make([]bool, len(d.LocationTable)),
		usedStack:   make([]bool, len(d.StackTable)),
		usedLink:    make([]bool, len(d.LinkTable)),
		profileIDs:  map[string]string{},
	}
}

func (c *checker) fail(path string, rule Rule, format string, args ...any) {
	if len(c.errs) >= maxViolations {
		return
	}
	c.errs = append(c.errs, &Violation{Path: path, Rule: rule, Detail: fmt.Sprintf(format, args...)})
}

// text walks the whole message for invalid UTF-8 and unknown fields.
func (c *checker) text(path string, m protoreflect.Message) {
	if u := m.GetUnknown(); len(u) > 0 {
		c.fail(orRequest(path), RuleUnknownField, "%d bytes of unknown fields", len(u))
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		p := string(fd.Name())
		if path != "" {
			p = path + "." + p
		}
		switch fd.Kind() {
		case protoreflect.MessageKind:
			if !fd.IsList() {
				c.text(p, v.Message())
				break
			}
			for i := range v.List().Len() {
				c.text(at(p, i), v.List().Get(i).Message())
			}
		case protoreflect.StringKind:
			if !fd.IsList() {
				c.utf8(p, v.String())
				break
			}
			for i := range v.List().Len() {
				c.utf8(at(p, i), v.List().Get(i).String())
			}
		}
		return true
	})
}

func (c *checker) utf8(path, s string) {
	if !utf8.ValidString(s) {
		c.fail(path, RuleUTF8, "%q", s)
	}
}

func orRequest(path string) string {
	if path == "" {
		return "request"
	}
	return path
}

func at[T int | int32](path string, i T) string { return fmt.Sprintf("%s[%d]", path, i) }

// index reports whether i is within a table of n elements. A missing table is a violation of its
// own, which index 0 does not repeat.
func (c *checker) index(path string, i int32, n int) bool {
	if i == 0 && n == 0 {
		return false
	}
	if i < 0 || int(i) >= n {
		c.fail(path, RuleIndex, "%d of %d elements", i, n)
		return false
	}
	return true
}

func (c *checker) strindex(path string, i int32) { c.index(path, i, len(c.dict.StringTable)) }

// str returns the string at i, and "" where there is none.
func (c *checker) str(i int32) string {
	if i < 0 || int(i) >= len(c.dict.StringTable) {
		return ""
	}
	return c.dict.StringTable[i]
}

// canonAt returns the canonical index; an index out of range stays itself.
func canonAt(table []int32, i int32) int32 {
	if i < 0 || int(i) >= len(table) {
		return i
	}
	return table[i]
}

// canonize fills canon and reports duplicates. key must give equal keys for equal elements.
func (c *checker) canonize(path string, n int, key func(i int) string) []int32 {
	canon := make([]int32, n)
	first := make(map[string]int32, n)
	for i := range n {
		k := key(i)
		j, dup := first[k]
		if !dup {
			j = int32(i)
			first[k] = j
		} else {
			c.fail(at(path, i), RuleDuplicate, "equal to element %d", j)
		}
		canon[i] = j
	}
	return canon
}

type keyBuilder struct{ b []byte }

func (k *keyBuilder) num(n ...uint64) *keyBuilder {
	for _, x := range n {
		k.b = binary.AppendUvarint(k.b, x)
	}
	return k
}

func (k *keyBuilder) bytes(b []byte) *keyBuilder {
	k.num(uint64(len(b)))
	k.b = append(k.b, b...)
	return k
}

// set adds canonical indices as a set: sorted.
func (k *keyBuilder) set(canon, indices []int32) *keyBuilder {
	s := make([]int32, 0, len(indices))
	for _, i := range indices {
		s = append(s, canonAt(canon, i))
	}
	slices.Sort(s)
	k.num(uint64(len(s)))
	for _, i := range s {
		k.num(uint64(uint32(i)))
	}
	return k
}

// list adds canonical indices in their order.
func (k *keyBuilder) list(canon, indices []int32) *keyBuilder {
	k.num(uint64(len(indices)))
	for _, i := range indices {
		k.num(uint64(uint32(canonAt(canon, i))))
	}
	return k
}

func (k *keyBuilder) String() string { return string(k.b) }

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

// canonValue encodes a value so that equal values have equal bytes, whether their text is plain
// or a reference.
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

// plainValue replaces references into the string table by their text.
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
			c.fail(p, RuleUniqueKey, "%q is at %d, too", key, j)
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
			c.fail(p, RuleUniqueKey, "%q is at %d, too", key, j)
		}
		seen[key] = i
	}
}

// functionName returns the name of a function, "" if there is no such function.
func (c *checker) functionName(i int32) string {
	if i < 0 || int(i) >= len(c.dict.FunctionTable) {
		return ""
	}
	return c.str(c.dict.FunctionTable[i].GetNameStrindex())
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
		if i < 0 || int(i) >= len(c.dict.AttributeTable) {
			continue
		}
		attr := c.dict.AttributeTable[i]
		if c.str(attr.GetKeyStrindex()) != key {
			continue
		}
		if s, ok := attr.GetValue().GetValue().(*commonpb.AnyValue_StringValueStrindex); ok {
			list = append(list, c.str(s.StringValueStrindex))
		} else {
			list = append(list, attr.GetValue().GetStringValue())
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
			if l.GetAddress() != 0 && c.functionName(line.GetFunctionIndex()) == nothingKnown {
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

func (c *checker) resources() {
	if len(c.req.GetResourceProfiles()) == 0 {
		c.fail("resource_profiles", RuleNotEmpty, "the request has no profiles")
	}
	for i, rp := range c.req.GetResourceProfiles() {
		path := at("resource_profiles", i)
		c.resource(path, rp)
		if len(rp.GetScopeProfiles()) == 0 {
			c.fail(path, RuleNotEmpty, "the resource has no scopes")
		}
		for j, sp := range rp.GetScopeProfiles() {
			p := at(path+".scope_profiles", j)
			c.keyValues(p+".scope.attributes", sp.GetScope().GetAttributes(), true)
			if sp.GetSchemaUrl() == "" {
				c.fail(p, RuleSchemaURL, "it has no schema_url")
			}
			if len(sp.GetProfiles()) == 0 {
				c.fail(p, RuleNotEmpty, "the scope has no profiles")
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
		c.fail(path, RuleSchemaURL, "it has no schema_url")
	}
	for i, ref := range rp.GetResource().GetEntityRefs() {
		for _, key := range slices.Concat(ref.GetIdKeys(), ref.GetDescriptionKeys()) {
			if !slices.ContainsFunc(attrs, func(kv *commonpb.KeyValue) bool { return kv.GetKey() == key }) {
				c.fail(at(path+".resource.entity_refs", i), RuleEntityRef, "there is no %q", key)
			}
		}
	}
}

func (c *checker) profile(path string, p *profilespb.Profile) {
	c.attributes(path, p.GetAttributeIndices())
	c.valueType(path+".sample_type", RuleSampleType, p.GetSampleType())
	c.valueType(path+".period_type", RulePeriod, p.GetPeriodType())
	if p.GetPeriod() <= 0 {
		c.fail(path+".period", RulePeriod, "it is %d", p.GetPeriod())
	}
	if p.GetTimeUnixNano() == 0 || p.GetDurationNano() == 0 && !c.state(p) {
		c.fail(path, RuleTime, "time_unix_nano %d, duration_nano %d", p.GetTimeUnixNano(), p.GetDurationNano())
	}
	if (p.GetOriginalPayloadFormat() == "") != (len(p.GetOriginalPayload()) == 0) {
		c.fail(path, RulePayload, "format %q with %d bytes", p.GetOriginalPayloadFormat(), len(p.GetOriginalPayload()))
	}
	id := p.GetProfileId()
	if len(id) != 16 || allZero(id) {
		c.fail(path+".profile_id", RuleProfileID, "%x", id)
	} else if other, dup := c.profileIDs[string(id)]; dup {
		c.fail(path+".profile_id", RuleProfileID, "%x is that of %s", id, other)
	}
	c.profileIDs[string(id)] = path
	if n := len(p.GetSamples()); n == 0 {
		c.fail(path, RuleNotEmpty, "the profile has no samples")
	} else if n > MaxSamples {
		c.fail(path, RuleMaxSamples, "it has %d", n)
	}
	c.samples(path, p)
	c.use(c.usedAttr, p.GetAttributeIndices()...)
	c.use(c.usedString, p.GetSampleType().GetTypeStrindex(), p.GetSampleType().GetUnitStrindex(),
		p.GetPeriodType().GetTypeStrindex(), p.GetPeriodType().GetUnitStrindex())
}

// state tells whether a profile says what is, and not what has happened: as pprof names the types of these.
func (c *checker) state(p *profilespb.Profile) bool {
	return strings.HasPrefix(c.str(p.GetSampleType().GetTypeStrindex()), "inuse_")
}

func (c *checker) valueType(path string, rule Rule, v *profilespb.ValueType) {
	c.strindex(path+".type_strindex", v.GetTypeStrindex())
	c.strindex(path+".unit_strindex", v.GetUnitStrindex())
	t, u := c.str(v.GetTypeStrindex()), c.str(v.GetUnitStrindex())
	if t == "" || u == "" {
		c.fail(path, rule, "type %q, unit %q", t, u)
	}
	if strings.Contains(t, "-") {
		c.fail(path, RuleTypeName, "%q", t)
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
			c.fail(sp, RuleValues, "%d values, %d timestamps", values, timestamps)
		case shape == shapeNone:
			shape = shapeOf(values, timestamps)
		case shape != shapeOf(values, timestamps):
			c.fail(sp, RuleShape, "it has %s, those before it %s", shapeOf(values, timestamps), shape)
		}
		for j, t := range s.GetTimestampsUnixNano() {
			if t < start || t >= end {
				c.fail(at(sp+".timestamps_unix_nano", j), RuleTimestamps, "%d is not within [%d, %d)", t, start, end)
			}
		}
		k := (&keyBuilder{}).list(c.canonStack, []int32{s.GetStackIndex()}).
			list(c.canonLink, []int32{s.GetLinkIndex()}).set(c.canonAttr, s.GetAttributeIndices()).String()
		if j, dup := identities[k]; dup {
			c.fail(sp, RuleMerged, "it has the identity of samples[%d]", j)
		} else {
			identities[k] = i
		}
		c.use(c.usedStack, s.GetStackIndex())
		c.use(c.usedLink, s.GetLinkIndex())
		c.use(c.usedAttr, s.GetAttributeIndices()...)
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

func (c *checker) use(used []bool, indices ...int32) {
	for _, i := range indices {
		if i >= 0 && int(i) < len(used) {
			used[i] = true
		}
	}
}

// useText marks what a value's references reach.
func (c *checker) useText(v *commonpb.AnyValue) {
	switch x := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValueStrindex:
		c.use(c.usedString, x.StringValueStrindex)
	case *commonpb.AnyValue_ArrayValue:
		for _, e := range x.ArrayValue.GetValues() {
			c.useText(e)
		}
	case *commonpb.AnyValue_KvlistValue:
		for _, kv := range x.KvlistValue.GetValues() {
			c.use(c.usedString, kv.GetKeyStrindex())
			c.useText(kv.GetValue())
		}
	}
}

// orphans follows what the profiles use through the tables and reports the rest. What only an
// orphan refers to is an orphan, too.
func (c *checker) orphans() {
	for _, rp := range c.req.GetResourceProfiles() {
		for _, kv := range rp.GetResource().GetAttributes() {
			c.use(c.usedString, kv.GetKeyStrindex())
			c.useText(kv.GetValue())
		}
		for _, sp := range rp.GetScopeProfiles() {
			for _, kv := range sp.GetScope().GetAttributes() {
				c.use(c.usedString, kv.GetKeyStrindex())
				c.useText(kv.GetValue())
			}
		}
	}
	each := func(table string, used []bool, visit func(i int)) {
		for i, u := range used {
			if u && visit != nil {
				visit(i)
			}
			if !u && i > 0 {
				c.fail(at("dictionary."+table, i), RuleOrphan, "nothing refers to it")
			}
		}
	}
	d := c.dict
	each("stack_table", c.usedStack, func(i int) { c.use(c.usedLoc, d.StackTable[i].GetLocationIndices()...) })
	each("link_table", c.usedLink, nil)
	each("location_table", c.usedLoc, func(i int) {
		c.use(c.usedMapping, d.LocationTable[i].GetMappingIndex())
		c.use(c.usedAttr, d.LocationTable[i].GetAttributeIndices()...)
		for _, line := range d.LocationTable[i].GetLines() {
			c.use(c.usedFunc, line.GetFunctionIndex())
		}
	})
	each("mapping_table", c.usedMapping, func(i int) {
		c.use(c.usedString, d.MappingTable[i].GetFilenameStrindex())
		c.use(c.usedAttr, d.MappingTable[i].GetAttributeIndices()...)
	})
	each("function_table", c.usedFunc, func(i int) {
		f := d.FunctionTable[i]
		c.use(c.usedString, f.GetNameStrindex(), f.GetSystemNameStrindex(), f.GetFilenameStrindex())
	})
	each("attribute_table", c.usedAttr, func(i int) {
		a := d.AttributeTable[i]
		c.use(c.usedString, a.GetKeyStrindex(), a.GetUnitStrindex())
		c.useText(a.GetValue())
	})
	each("string_table", c.usedString, nil)
}
