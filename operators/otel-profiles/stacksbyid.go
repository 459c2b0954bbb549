package otelprofiles

import (
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// present settles what columns and JSON show of the stacks.
func present(gadgetCtx operators.GadgetContext) {
	for _, ds := range gadgetCtx.GetDataSources() {
		fieldmap.Present(ds)
	}
}

// chooseStacks has a gadget hand over its stacks by ID where that loses nothing: all of its data sources
// with such stacks are exported, and nobody reads their rows.
func (i *instance) chooseStacks(gadgetCtx operators.GadgetContext) {
	exported := map[string]bool{}
	for _, p := range i.pipelines {
		exported[p.ds.Name()] = true
	}
	reading, found := tune.ReadingOf(gadgetCtx), false
	for name, ds := range gadgetCtx.GetDataSources() {
		if !fieldmap.HasIDs(ds) {
			continue
		}
		found = true
		if !exported[name] || reading.Anybody(name) {
			return
		}
	}
	if found && tune.StacksByID(gadgetCtx) {
		i.log.Infof("%s: nobody reads the rows: stacks go without their text, which --format-stacks=true brings back", Name)
	}
}
