// Package captures is the Inspektor Gadget operator captures. It creates the rows of gadgets that sample events in proportion to
// a value (gadgets/include/capture.h). The unwinder collects the stacks of these events in all languages that it supports.
// Functions on the stack can decide how an event is classified. A gadget requests the operator in its metadata:
//
//	operator:
//	  captures:
//	    enabled: true
//	    source: allocations      # the data source of the map rows
//	    sums: [bytes, calls]     # members of a row's value to add up: the amount passed to draw, and the number of events
//	    unit: bytes              # unit of the amount
//	    budget: 1000             # the most stacks per CPU and second that the unwinder takes
//	    step: sample_bytes       # the parameter with the step of draw; it becomes the profiles' period
//	    inner: [malloc, je_*]    # skips captures of a function that one of these calls in the same file; a final * matches any text
//	    kinds: …                 # see kinds.go
//	    shared: …                # see sharedfile.go
//	    live: {param: live, source: in_use, map: live_allocations, execs: live_execs} # if the parameter is true, the source in_use has the allocations in use
//
// Importing the package registers the operator.
package captures

import (
	"fmt"
	"strconv"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/refcount"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// Name is the operator's name. A gadget's metadata configures the operator in the section operator.captures.
const Name = "captures"

// ControlVar is the gadget variable that holds the Control for the captures. The operator that attaches the gadget's programs
// uses it. It is set before the gadget starts.
const ControlVar = "captures.control"

// operatorPriority makes the operator run after the OCI handler (-1000), which loads the programs, and before the operators that
// use the captures.
const operatorPriority = -200

type operator struct {
	tune.Plain
	names refcount.Value[*names.Namer]
}

func init() { operators.RegisterDataOperator(&operator{Plain: operatorPriority}) }

// Name implements operators.DataOperator.
func (*operator) Name() string { return Name }

// InstanceParams implements operators.DataOperator. Inspektor Gadget shows the parameters only for gadgets whose metadata
// contains the section.
func (*operator) InstanceParams() api.Params { return api.Params{unwinder.UnwindParam()} }

// InstantiateDataOperator implements operators.DataOperator. It returns nil on a client, and for gadgets that do not use the
// operator.
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

// setPeriod sets the profiles' period to the step of draw, unless the gadget already sets a period.
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
		return fmt.Errorf("parameter %q: got %q, expected a number from 1 to %d", tune.Key(gadgetCtx, variable), text, uint32(maxStep))
	}
	i.step = step
	for _, ds := range gadgetCtx.GetDataSources() {
		if ds.Annotations()["profiles.period"] == "" {
			ds.AddAnnotation("profiles.period", text)
		}
	}
	return nil
}
