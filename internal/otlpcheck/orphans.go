package otlpcheck

import (
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
)

// use marks elements of a table as used.
func (c *checker) use(table string, indices ...int32) {
	used := c.used[table]
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
		c.use(stringTable, x.StringValueStrindex)
	case *commonpb.AnyValue_ArrayValue:
		for _, e := range x.ArrayValue.GetValues() {
			c.useText(e)
		}
	case *commonpb.AnyValue_KvlistValue:
		c.useKeyValues(x.KvlistValue.GetValues())
	}
}

func (c *checker) useKeyValues(list []*commonpb.KeyValue) {
	for _, kv := range list {
		c.use(stringTable, kv.GetKeyStrindex())
		c.useText(kv.GetValue())
	}
}

// orphans follows the profiles' references through the tables and reports all other elements. An element to which only orphans
// refer is also an orphan.
func (c *checker) orphans() {
	for _, rp := range c.req.GetResourceProfiles() {
		c.useKeyValues(rp.GetResource().GetAttributes())
		for _, sp := range rp.GetScopeProfiles() {
			c.useKeyValues(sp.GetScope().GetAttributes())
		}
	}
	each := func(table string, visit func(i int)) {
		for i, u := range c.used[table] {
			if u && visit != nil {
				visit(i)
			}
			if !u && i > 0 {
				c.Fail(at(table, i), RuleOrphan, "nothing refers to it")
			}
		}
	}
	d := c.dict
	each(stackTable, func(i int) { c.use(locationTable, d.StackTable[i].GetLocationIndices()...) })
	each(linkTable, nil)
	each(locationTable, func(i int) {
		c.use(mappingTable, d.LocationTable[i].GetMappingIndex())
		c.use(attributeTable, d.LocationTable[i].GetAttributeIndices()...)
		for _, line := range d.LocationTable[i].GetLines() {
			c.use(functionTable, line.GetFunctionIndex())
		}
	})
	each(mappingTable, func(i int) {
		c.use(stringTable, d.MappingTable[i].GetFilenameStrindex())
		c.use(attributeTable, d.MappingTable[i].GetAttributeIndices()...)
	})
	each(functionTable, func(i int) {
		f := d.FunctionTable[i]
		c.use(stringTable, f.GetNameStrindex(), f.GetSystemNameStrindex(), f.GetFilenameStrindex())
	})
	each(attributeTable, func(i int) {
		a := d.AttributeTable[i]
		c.use(stringTable, a.GetKeyStrindex(), a.GetUnitStrindex())
		c.useText(a.GetValue())
	})
	each(stringTable, nil)
}
