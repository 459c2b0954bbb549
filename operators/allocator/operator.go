// Package allocator is the Inspektor Gadget operator allocator. It attaches the eBPF programs of profile_alloc to the memory
// allocators that processes use. It supports glibc, musl, jemalloc, tcmalloc and other allocators that export malloc.
//
// Inspektor Gadget itself would attach probes to a file for all processes on the machine. Each probe of this operator belongs
// to one process, and does not slow down other processes. The operator measures the cost of the probes. Above a limit, it
// attaches them only during random periods. The code calls these periods stretches.
//
//	operator:
//	  allocator:
//	    enabled: true
//
// The gadget's map allocator_programs holds its programs, in the order of the constants in package allocators. The programs write
// their counts to the array allocator_counts, whose entry 0 holds the totals. Each process can have its own entry, its slot. The
// operator stores the slot's index under the PID in the map allocator_processes.
//
// Importing the package registers the operator.
package allocator

import (
	"fmt"
	"strconv"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// Name is the operator's name. A gadget's metadata configures the operator in the section operator.allocator.
const Name = "allocator"

// Users set these parameters as flags of ig run and kubectl gadget run.
const (
	ParamMaxCost    = "max-cost"
	ParamEverywhere = "everywhere"
)

// operatorPriority makes the operator run after localmanager and kubemanager (-1), which choose a run's containers in PreStart.
// It also runs after the operator captures, which must start reading before the first events.
const operatorPriority = 100

type operator struct{ tune.Plain }

func init() { operators.RegisterDataOperator(operator{operatorPriority}) }

// Name implements operators.DataOperator.
func (operator) Name() string { return Name }

// InstanceParams implements operators.DataOperator. Inspektor Gadget shows the parameters only for gadgets that use the operator.
func (operator) InstanceParams() api.Params {
	return api.Params{
		{
			Key: ParamMaxCost, DefaultValue: "5", TypeHint: api.TypeUint32,
			Description: "Maximum cost of the probes, in percent of one CPU. Above it, the most expensive processes have probes only during random periods, and their values are scaled up. With --live, the run ends instead",
		},
		{
			Key: ParamEverywhere, DefaultValue: "false", TypeHint: api.TypeBool,
			Description: "Allow probes in all processes of the machine, or in more than 10 containers",
		},
	}
}

// InstantiateDataOperator implements operators.DataOperator. It returns nil on a client, and for gadgets that do not use the
// operator.
func (operator) InstantiateDataOperator(gadgetCtx operators.GadgetContext, values api.ParamValues) (operators.DataOperatorInstance, error) {
	if gadgetCtx.IsClient() || tune.Section(gadgetCtx, Name) == nil {
		return nil, nil
	}
	percent, err := strconv.ParseUint(values[ParamMaxCost], 10, 16)
	if err != nil || percent == 0 {
		return nil, fmt.Errorf("parameter %q: got %q, expected a percentage of at least 1", ParamMaxCost, values[ParamMaxCost])
	}
	everywhere, err := strconv.ParseBool(values[ParamEverywhere])
	if err != nil {
		return nil, fmt.Errorf("parameter %q: got %q, expected true or false", ParamEverywhere, values[ParamEverywhere])
	}
	i := &instance{log: gadgetCtx.Logger(), maxCost: float64(percent) / 100, everywhere: everywhere}
	i.warnings.Warn = func(err error) { i.log.Warnf("%s: %v", Name, err) }
	return i, nil
}
