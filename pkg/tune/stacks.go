package tune

import (
	"cmp"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
)

// These are the variables of parameters that turn on stack collection. Inspektor Gadget gives the first one the flag below,
// unless the metadata defines another.
const (
	collectUser     = "collect_ustack"
	collectKernel   = "collect_kstack"
	collectUserFlag = "collect-ustack"
)

// CollectStacks turns on the parameters that make a gadget collect kernel or user stacks, if their default is off. It returns
// their flags. It also overrides a default that the user typed, because clients send defaults, too. Call it at PreStart.
func CollectStacks(gadgetCtx operators.GadgetContext, kernel, user bool) (flags []string) {
	p, params := collecting(gadgetCtx, kernel, user)
	for _, param := range params {
		if param.DefaultValue == "false" && cmp.Or(p.values[param.Key], "false") == "false" {
			p.values[param.Key] = "true"
			flags = append(flags, "--"+param.Key)
		}
	}
	return flags
}

// Uncollected returns the flags that are off and that would make a gadget collect kernel or user stacks.
func Uncollected(gadgetCtx operators.GadgetContext) (flags []string) {
	p, params := collecting(gadgetCtx, true, true)
	for _, param := range params {
		if cmp.Or(p.values[param.Key], param.DefaultValue) == "false" {
			flags = append(flags, "--"+param.Key)
		}
	}
	return flags
}

// collecting returns a gadget's parameters that turn on stack collection, the kernel's first.
func collecting(gadgetCtx operators.GadgetContext, kernel, user bool) (p parameters, params []*api.Param) {
	p, ok := parametersOf(gadgetCtx)
	if !ok {
		return p, nil
	}
	if param := Offers(gadgetCtx, p.key(collectKernel)); kernel && param != nil {
		params = append(params, param)
	}
	if param := Offers(gadgetCtx, cmp.Or(p.entry(collectUser, "key"), collectUserFlag)); user && param != nil {
		params = append(params, param)
	}
	return p, params
}
