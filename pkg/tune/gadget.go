package tune

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/spf13/viper"
)

// Metadata returns a gadget's metadata, as changed by parameters and --annotate, or nil.
func Metadata(gadgetCtx operators.GadgetContext) *viper.Viper {
	return variable[*viper.Viper](gadgetCtx, "config")
}

// Section returns an operator's part of a gadget's metadata, or nil if the gadget does not use the operator.
func Section(gadgetCtx operators.GadgetContext, operator string) *viper.Viper {
	metadata := Metadata(gadgetCtx)
	if metadata == nil || !metadata.GetBool("operator."+operator+".enabled") {
		return nil
	}
	return metadata.Sub("operator." + operator)
}

// MapSpec returns a gadget's definition of a map, or nil. It is available before the gadget's programs are loaded.
func MapSpec(gadgetCtx operators.GadgetContext, name string) *ebpf.MapSpec {
	return variable[*ebpf.MapSpec](gadgetCtx, operators.MapSpecPrefix+name)
}

// Map returns a map of a gadget whose programs are loaded, or nil.
func Map(gadgetCtx operators.GadgetContext, name string) *ebpf.Map {
	return variable[*ebpf.Map](gadgetCtx, operators.MapPrefix+name)
}

// Maps returns the named maps of a gadget whose programs are loaded. If a map is missing, it returns an error for the operator.
func Maps(gadgetCtx operators.GadgetContext, operator string, names ...string) (map[string]*ebpf.Map, error) {
	found := map[string]*ebpf.Map{}
	for _, name := range names {
		if found[name] = Map(gadgetCtx, name); found[name] == nil {
			return nil, fmt.Errorf("operator %s: the gadget has no map %q", operator, name)
		}
	}
	return found, nil
}

const endedVar = "otel-profiles/ended"

// End ends a gadget's run with an error, which it logs. An operator that cannot continue calls it.
func End(gadgetCtx operators.GadgetContext, operator string, err error) {
	gadgetCtx.Logger().Errorf("%s: stopping the run: %v", operator, err)
	gadgetCtx.SetVar(endedVar, fmt.Errorf("%s: %w", operator, err))
	gadgetCtx.Cancel()
}

// Ended returns the error that ended a run, or nil.
func Ended(gadgetCtx operators.GadgetContext) error { return variable[error](gadgetCtx, endedVar) }

// variable returns a variable of a gadget, or the zero value if it has another type.
func variable[T any](gadgetCtx operators.GadgetContext, name string) T {
	v, _ := gadgetCtx.GetVar(name)
	t, _ := v.(T)
	return t
}
