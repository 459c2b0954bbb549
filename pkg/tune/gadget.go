package tune

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/spf13/viper"
)

// Metadata returns a gadget's metadata, with what parameters and --annotate have changed in it; nil if it has none.
func Metadata(gadgetCtx operators.GadgetContext) *viper.Viper {
	return variable[*viper.Viper](gadgetCtx, "config")
}

// Section returns a gadget's metadata for an operator, nil if it does not use it.
func Section(gadgetCtx operators.GadgetContext, operator string) *viper.Viper {
	metadata := Metadata(gadgetCtx)
	if metadata == nil || !metadata.GetBool("operator."+operator+".enabled") {
		return nil
	}
	return metadata.Sub("operator." + operator)
}

// MapSpec returns a gadget's definition of a map, nil if it has none of that name. It is there before the gadget's programs are
// loaded.
func MapSpec(gadgetCtx operators.GadgetContext, name string) *ebpf.MapSpec {
	return variable[*ebpf.MapSpec](gadgetCtx, operators.MapSpecPrefix+name)
}

// Map returns a map of a gadget whose programs are loaded, nil if it has none of that name.
func Map(gadgetCtx operators.GadgetContext, name string) *ebpf.Map {
	return variable[*ebpf.Map](gadgetCtx, operators.MapPrefix+name)
}

// Maps returns maps that an operator needs of a gadget whose programs are loaded, by their names.
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

// End ends a gadget's run with an error, for an operator that cannot continue, and logs it.
func End(gadgetCtx operators.GadgetContext, operator string, err error) {
	gadgetCtx.Logger().Errorf("%s: the run ends: %v", operator, err)
	gadgetCtx.SetVar(endedVar, fmt.Errorf("%s: %w", operator, err))
	gadgetCtx.Cancel()
}

// Ended returns the error that a run was ended with, nil for none.
func Ended(gadgetCtx operators.GadgetContext) error { return variable[error](gadgetCtx, endedVar) }

// variable returns a variable of a gadget, the zero value where it is of another type.
func variable[T any](gadgetCtx operators.GadgetContext, name string) T {
	v, _ := gadgetCtx.GetVar(name)
	t, _ := v.(T)
	return t
}
