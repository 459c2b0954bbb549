package tune

import (
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
)

// chooseSources removes the data sources that a gadget does not fill because of a parameter. The parameter's metadata names a
// data source for each value (datasource: {"false": sums, "true": events}).
func (p parameters) chooseSources(sources map[string]datasource.DataSource) {
	for variable := range p.metadata.GetStringMap("params.ebpf") {
		choice := p.metadata.GetStringMapString("params.ebpf." + variable + ".datasource")
		chosen := choice[p.value(variable)]
		for _, name := range choice {
			if ds := sources[name]; ds != nil && chosen != "" && name != chosen {
				ds.Unreference()
			}
		}
	}
}
