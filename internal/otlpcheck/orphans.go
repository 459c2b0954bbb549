package otlpcheck

import (
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
)

func (c *checker) use(used []bool, indices ...int32) {
	for _, i := range indices {
		if i >= 0 && int(i) < len(used) {
			used[i] = true
		}
	}
}

// useText marks the targets of a value's references.
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

// orphans follows the profiles' references through the tables and reports all other elements. An element to which only orphans
// refer is also an orphan.
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
