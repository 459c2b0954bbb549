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
	p.sizeMaps(func(name string) *ebpf.MapSpec { return MapSpec(gadgetCtx, name) }, m)
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
	params := map[string]bool{}
	for program := range p.metadata.GetStringMap("programs") {
		params[p.program(program, "param")] = true
	}
	delete(params, "")
	for param := range params {
		programs := p.of(param)
		if len(programs) == 0 {
			continue
		}
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

// Found returns the tracepoints of the programs that a parameter stands for, if they are attached: this machine has them, and the parameter is
// "auto", which Apply makes "true", or has become that.
func Found(gadgetCtx operators.GadgetContext, param string, m Machine) (tracepoints []string) {
	p, ok := parametersOf(gadgetCtx)
	if v, _ := Value(gadgetCtx, param); !ok || v != "auto" && v != "true" {
		return nil
	}
	for _, program := range p.of(param) {
		tracepoints = append(tracepoints, p.program(program, "tracepoint"))
	}
	if slices.ContainsFunc(tracepoints, func(name string) bool { return !m.HasTracepoint(name) }) {
		return nil
	}
	return tracepoints
}

// of returns the programs of tracepoints that a parameter stands for.
func (p parameters) of(param string) (programs []string) {
	for program := range p.metadata.GetStringMap("programs") {
		if p.program(program, "tracepoint") != "" && p.program(program, "param") == param {
			programs = append(programs, program)
		}
	}
	return programs
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
