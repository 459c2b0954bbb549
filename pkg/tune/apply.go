package tune

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
)

// Apply tunes a gadget to a machine. It is for PreStart: the parameters are known by then, and the programs
// are not yet loaded.
func Apply(gadgetCtx operators.GadgetContext, m Machine) {
	p, ok := parametersOf(gadgetCtx)
	if !ok {
		return
	}
	p.chooseSources(gadgetCtx.GetDataSources())
	p.choosePrograms(m)
	p.sizeMaps(func(name string) *ebpf.MapSpec {
		v, _ := gadgetCtx.GetVar(operators.MapSpecPrefix + name)
		spec, _ := v.(*ebpf.MapSpec)
		return spec
	}, m)
}

// choosePrograms attaches the programs of tracepoints that this kernel has. Such a program is a raw_tp one
// and disabled in the metadata; its entry there says
//
//	tracepoint  what to attach it to,
//	param       a parameter that becomes "true" then; it is not attached if that is not "auto",
//	spares      the size of a map that is not needed then, and gets one entry.
func (p parameters) choosePrograms(m Machine) {
	for program := range p.metadata.GetStringMap("programs") {
		entry := "programs." + program + "."
		name, param := p.metadata.GetString(entry+"tracepoint"), p.metadata.GetString(entry+"param")
		if name == "" || param == "" || p.entry(param, "defaultvalue") != "auto" || !p.isDefault(param) || !m.HasTracepoint(name) {
			continue
		}
		p.metadata.Set(entry+"attach_to", name)
		p.set(param, "true")
		if spared := p.metadata.GetString(entry + "spares"); spared != "" && p.isDefault(spared) {
			p.set(spared, "1")
		}
	}
}

// hasTracepoint reports whether the kernel has a tracepoint that raw_tp programs can be attached to.
func hasTracepoint(name string) bool {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return false
	}
	var typ *btf.Typedef
	return spec.TypeByName("btf_trace_"+name, &typ) == nil
}
