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
	// ebpfMediaType is the media type of the layer that contains a gadget's programs.
	ebpfMediaType = "application/vnd.gadget.ebpf.program.v1+binary"

	// Results are stored in the gadget's context under these names.
	valuesVar  = "otel-profiles/ebpf-params"
	offeredVar = "otel-profiles/ebpf-offered"
	outputVar  = "otel-profiles/output"
	eventsVar  = "otel-profiles/events/" // followed by a parameter
)

// Observe registers operators that limit Inspektor Gadget's warnings about single rows and record the parameters of gadgets.
// Call it before a gadget is instantiated; otherwise the other functions know no parameters. It may be called repeatedly.
// Without Inspektor Gadget's eBPF operator in the program, nothing can be tuned.
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

// programs wraps Inspektor Gadget's eBPF operator and stores the map of its parameters. The operator receives that map at
// instantiation and reads it at its start. Until then, the parameters can be changed.
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
	if inst, ok := inst.(programsInstance); ok {
		return pacedPrograms{inst}, err
	}
	return inst, err
}

// programsInstance is what an instance of Inspektor Gadget's eBPF operator implements.
type programsInstance interface {
	operators.ImageOperatorInstance
	operators.ExtraParams
	operators.PreStart
	operators.PreStop
}

// pacedPrograms starts the programs with the limited log, because the goroutines that read events use the log of Start.
type pacedPrograms struct{ programsInstance }

// Start implements operators.ImageOperatorInstance.
func (p pacedPrograms) Start(gadgetCtx operators.GadgetContext) error {
	return p.programsInstance.Start(withPace(gadgetCtx))
}

// Close implements operators.ImageOperatorInstance. It passes the same context as Start, because the operator has a map of them.
func (p pacedPrograms) Close(gadgetCtx operators.GadgetContext) error {
	return p.programsInstance.Close(withPace(gadgetCtx))
}

// userStacks wraps Inspektor Gadget's user stack operator.
type userStacks struct{ operators.DataOperator }

// InstantiateDataOperator implements operators.DataOperator.
func (u userStacks) InstantiateDataOperator(gadgetCtx operators.GadgetContext, values api.ParamValues) (operators.DataOperatorInstance, error) {
	if err := checkSymbolizers(gadgetCtx, values); err != nil {
		return nil, err
	}
	return u.DataOperator.InstantiateDataOperator(withPace(gadgetCtx), values)
}

// Plain is the part of an operator that needs neither global parameters nor initialization. Its value is the operator's priority.
type Plain int

// Priority implements operators.DataOperator.
func (p Plain) Priority() int { return int(p) }

// Init implements operators.DataOperator.
func (Plain) Init(*params.Params) error { return nil }

// GlobalParams implements operators.DataOperator.
func (Plain) GlobalParams() api.Params { return nil }

// output registers under the name of Inspektor Gadget's operator that prints rows. So it receives that operator's parameter
// --output, on the client and on the server. The real operator still prints, because commands add it directly and not from the
// registry.
type output struct{ Plain }

func (output) Name() string               { return "cli" }
func (output) InstanceParams() api.Params { return nil }

// InstantiateDataOperator implements operators.DataOperator. It never returns an instance.
func (output) InstantiateDataOperator(gadgetCtx operators.GadgetContext, values api.ParamValues) (operators.DataOperatorInstance, error) {
	gadgetCtx.SetVar(outputVar, values["output"])
	return nil, nil
}
