package tune

import (
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ustack"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/params"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
)

const (
	// ebpfMediaType is that of the layer with a gadget's programs.
	ebpfMediaType = "application/vnd.gadget.ebpf.program.v1+binary"

	// Results are kept with the gadget under these names.
	valuesVar  = "otel-profiles/ebpf-params"
	offeredVar = "otel-profiles/ebpf-offered"
	outputVar  = "otel-profiles/output"
	eventsVar  = "otel-profiles/events/" // and a parameter
)

// Observe registers operators that limit Inspektor Gadget's warnings for single rows, and note the parameters of all gadgets
// instantiated after it. Without it, the other functions know no parameters. It may be called more than once. Where Inspektor
// Gadget's eBPF operator is not part of the program, nothing can be tuned.
func Observe() {
	op, ok := operators.GetImageOperatorForMediaType(ebpfMediaType)
	if _, done := op.(*programs); ok && !done {
		operators.RegisterOperatorForMediaType(ebpfMediaType, &programs{op})
	}
	if op, ok := operators.GetDataOperators()[ustack.Name]; ok {
		if _, done := op.(userStacks); !done {
			operators.RegisterDataOperator(userStacks{op})
		}
	}
	operators.RegisterDataOperator(output{})
}

// programs wraps Inspektor Gadget's eBPF operator and keeps the map of its parameters. The operator reads its parameters when it
// starts, from the map that it got at instantiation. So they can be set until then.
type programs struct{ operators.ImageOperator }

// InstantiateImageOperator implements operators.ImageOperator.
func (p *programs) InstantiateImageOperator(gadgetCtx operators.GadgetContext, target oras.ReadOnlyTarget, layer ocispec.Descriptor, values api.ParamValues) (operators.ImageOperatorInstance, error) {
	if values == nil {
		values = api.ParamValues{}
	}
	gadgetCtx.SetVar(valuesVar, values)
	if err := noteOtelChains(gadgetCtx, target, layer, values); err != nil {
		return nil, err
	}
	inst, err := p.ImageOperator.InstantiateImageOperator(withPace(gadgetCtx), target, layer, values)
	if offers, ok := inst.(operators.ExtraParams); ok {
		gadgetCtx.SetVar(offeredVar, offers)
	}
	return inst, err
}

// userStacks wraps Inspektor Gadget's operator for user stacks.
type userStacks struct{ operators.DataOperator }

// InstantiateDataOperator implements operators.DataOperator.
func (u userStacks) InstantiateDataOperator(gadgetCtx operators.GadgetContext, values api.ParamValues) (operators.DataOperatorInstance, error) {
	if err := checkSymbolizers(gadgetCtx, values); err != nil {
		return nil, err
	}
	return u.DataOperator.InstantiateDataOperator(withPace(gadgetCtx), values)
}

// output registers under the name of Inspektor Gadget's operator that prints rows. So it gets that operator's parameter --output,
// on the client and on the server. The real one still prints: commands add it directly, it is not in the registry.
type output struct{}

func (output) Name() string               { return "cli" }
func (output) Init(*params.Params) error  { return nil }
func (output) GlobalParams() api.Params   { return nil }
func (output) InstanceParams() api.Params { return nil }
func (output) Priority() int              { return 0 }

// InstantiateDataOperator implements operators.DataOperator: it never has an instance.
func (output) InstantiateDataOperator(gadgetCtx operators.GadgetContext, values api.ParamValues) (operators.DataOperatorInstance, error) {
	gadgetCtx.SetVar(outputVar, values["output"])
	return nil, nil
}
