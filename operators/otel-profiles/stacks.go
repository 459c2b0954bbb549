package otelprofiles

import (
	"strings"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// collectStacks makes a gadget collect stacks for the export, unless all exporters leave this choice to the gadget's flags.
func (i *instance) collectStacks(gadgetCtx operators.GadgetContext) {
	var kernel, user bool
	for _, p := range i.pipelines {
		if p.exp.cfg.CollectStacks {
			k, u := p.plan.Kinds()
			kernel, user = kernel || k, user || u
		}
	}
	if flags := tune.CollectStacks(gadgetCtx, kernel, user); len(flags) > 0 {
		i.log.Infof("%s: the gadget collects stacks for the exporter, as if you had set %s. To turn this off, set collect_stacks to off", Name, strings.Join(flags, " and "))
	}
	i.uncollected = tune.Uncollected(gadgetCtx)
	i.otelStacks = tune.Offers(gadgetCtx, tune.OtelFlag) != nil
}

// chooseStacks makes a gadget pass its stacks by ID, if all data sources with such stacks are exported and nothing else reads
// their rows.
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
		i.log.Infof("%s: stacks are not formatted as text, because rows are not printed: to format them anyway, set --format-stacks=true", Name)
	}
}
