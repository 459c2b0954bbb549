// Package captures is the Inspektor Gadget operator captures. It makes the rows of gadgets that sample events in proportion to a
// value (gadgets/include/capture.h). The unwinder takes their stacks, in all languages that it knows. The functions on a stack
// decide how its event counts. Rows go the way of all rows of the gadget. A gadget requests it in its metadata:
//
//	operator:
//	  captures:
//	    enabled: true
//	    source: allocations      # the data source of the map rows
//	    sums: [bytes, calls]     # members of a row's value that are added up: the amount that draw is given, and how many events
//	    unit: bytes              # that of the amount
//	    budget: 1000             # stacks that the unwinder takes of each CPU in a second at most
//	    step: sample_bytes       # the parameter that is the step of draw; it becomes the profiles' period
//	    inner: [malloc, je_*]    # a capture in a function that one of these calls, of the same file, is left out; * stands for anything
//	    kinds: …                 # see kinds.go
//	    shared: …                # see sharedfile.go
//	    live: {param: live, source: in_use, map: live_allocations, execs: live_execs} # if the parameter is true, another data source says what is in use
//
// Importing the package registers the operator.
package captures

import (
	"fmt"
	"strconv"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/params"

	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/refcount"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// Name is the operator's name, and its section in a gadget's metadata: operator.captures.
const Name = "captures"

// ControlVar is the variable of a gadget that holds the Control of its captures, for the operator that attaches the gadget's
// programs. It is set before the gadget starts.
const ControlVar = "captures.control"

// operatorPriority lies between that of the OCI handler (-1000), which loads the programs when it starts, and those of operators
// that use the captures.
const operatorPriority = -200

type operator struct{ code refcount.Value[*code] }

func init() { operators.RegisterDataOperator(&operator{}) }

// Name implements operators.DataOperator.
func (*operator) Name() string { return Name }

// Init implements operators.DataOperator.
func (*operator) Init(*params.Params) error { return nil }

// GlobalParams implements operators.DataOperator: there are none.
func (*operator) GlobalParams() api.Params { return nil }

// InstanceParams implements operators.DataOperator. Inspektor Gadget shows them for gadgets with the section only.
func (*operator) InstanceParams() api.Params { return api.Params{unwinder.UnwindParam()} }

// Priority implements operators.DataOperator.
func (*operator) Priority() int { return operatorPriority }

// InstantiateDataOperator implements operators.DataOperator. It returns nil for gadgets that do not use it, and on a client.
func (o *operator) InstantiateDataOperator(gadgetCtx operators.GadgetContext, values api.ParamValues) (operators.DataOperatorInstance, error) {
	metadata := tune.Section(gadgetCtx, Name)
	if gadgetCtx.IsClient() || metadata == nil {
		return nil, nil
	}
	i := &instance{op: o, log: gadgetCtx.Logger(), metadata: metadata, control: newControl()}
	i.warnings.Warn = func(err error) { i.log.Warnf("%s: %v", Name, err) }
	var err error
	if i.stacks, err = unwinder.NewStacks(gadgetCtx, values[unwinder.ParamUnwind], metadata.GetString("unit")); err != nil {
		return nil, err
	}
	i.control.know = i.stacks.Know
	gadgetCtx.SetVar(ControlVar, i.control)
	return i, nil
}

// setPeriod makes the parameter with the step of draw the period of the gadget's profiles, unless they have another.
func (i *instance) setPeriod(gadgetCtx operators.GadgetContext) error {
	variable := i.metadata.GetString("step")
	if variable == "" {
		return nil
	}
	text, ok := tune.Value(gadgetCtx, variable)
	if !ok {
		return nil
	}
	step, err := strconv.ParseUint(text, 10, 32)
	if err != nil || step == 0 {
		return fmt.Errorf("parameter %q: %q is not a number from 1 to %d", tune.Key(gadgetCtx, variable), text, uint32(maxStep))
	}
	i.step = step
	for _, ds := range gadgetCtx.GetDataSources() {
		if ds.Annotations()["profiles.period"] == "" {
			ds.AddAnnotation("profiles.period", text)
		}
	}
	return nil
}
