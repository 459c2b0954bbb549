package tune

import (
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
)

// Apply tunes a gadget to a machine. It is for PreStart: the parameters are known by then, and the programs
// are not yet loaded.
func Apply(gadgetCtx operators.GadgetContext, m Machine) {
	setSymbols(gadgetCtx, m)
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
//
// Programs with one parameter are attached together, if the kernel has the tracepoints of all.
func (p parameters) choosePrograms(m Machine) {
	together := map[string][]string{}
	for program := range p.metadata.GetStringMap("programs") {
		param := p.program(program, "param")
		if p.program(program, "tracepoint") != "" && param != "" {
			together[param] = append(together[param], program)
		}
	}
	for param, programs := range together {
		missing := func(program string) bool { return !m.HasTracepoint(p.program(program, "tracepoint")) }
		if p.entry(param, "defaultvalue") != "auto" || !p.isDefault(param) || slices.ContainsFunc(programs, missing) {
			continue
		}
		p.set(param, "true")
		for _, program := range programs {
			p.metadata.Set("programs."+program+".attach_to", p.program(program, "tracepoint"))
			if spared := p.program(program, "spares"); spared != "" && p.isDefault(spared) {
				p.set(spared, "1")
			}
		}
	}
}

// program returns a member of a program's entry in the metadata.
func (p parameters) program(program, member string) string {
	return p.metadata.GetString("programs." + program + "." + member)
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
