// Package tune adapts a gadget's parameters to the machine and the run, before the gadget's eBPF programs are loaded:
//
//   - It sets map sizes by the number of CPUs (Apply).
//   - It selects programs for the tracepoints and kprobes that this kernel has (Apply).
//   - It sets variables to kernel addresses, if the kernel shows them (Apply).
//   - It turns on the collection of stacks if rows are exported (CollectStacks).
//   - It turns off stack texts if nobody reads them (Reading, StacksByID).
//
// It only changes a parameter that has the default of the gadget's image, so a user's value stays. Without tuning, an image
// works with its defaults.
//
// It also limits the rate of warnings that Inspektor Gadget's own operators write for single rows.
//
// Inspektor Gadget passes parameters only to the operators that own them. Observe wraps such operators if possible, without
// changing their input.
package tune

import (
	"cmp"
	"slices"
	"strings"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/spf13/viper"
)

// parameters are the parameters of a gadget's eBPF programs, by variable name. values is Inspektor Gadget's own map, so values
// that are set in it take effect.
type parameters struct {
	metadata *viper.Viper
	values   api.ParamValues
}

// parametersOf returns the parameters of a gadget. It returns false if they cannot be set, because the gadget has no eBPF
// programs or Observe was called too late.
func parametersOf(gadgetCtx operators.GadgetContext) (parameters, bool) {
	p := parameters{Metadata(gadgetCtx), variable[api.ParamValues](gadgetCtx, valuesVar)}
	return p, p.metadata != nil && p.values != nil
}

// entry returns a member of a parameter's entry in the metadata. Viper's keys are in lower case.
func (p parameters) entry(variable, member string) string {
	return p.metadata.GetString("params.ebpf." + variable + "." + member)
}

func (p parameters) key(variable string) string { return cmp.Or(p.entry(variable, "key"), variable) }

// value returns the user's value, or else the image's default.
func (p parameters) value(variable string) string {
	return cmp.Or(p.values[p.key(variable)], p.entry(variable, "defaultvalue"))
}

// isDefault reports whether a parameter has the image's default. It is false for a parameter without an entry in the metadata,
// whose default is unknown. An empty value counts as the default, because Inspektor Gadget passes it for texts.
func (p parameters) isDefault(variable string) bool {
	def, value := p.entry(variable, "defaultvalue"), p.values[p.key(variable)]
	return def != "" && (value == "" || strings.EqualFold(value, def))
}

func (p parameters) set(variable, value string) { p.values[p.key(variable)] = value }

// Value returns the value of an eBPF parameter by its variable's name. This is the user's value, or else the image's default.
// It returns false if the value is unknown.
func Value(gadgetCtx operators.GadgetContext, variable string) (string, bool) {
	p, ok := parametersOf(gadgetCtx)
	if !ok {
		return "", false
	}
	v := p.value(variable)
	return v, v != ""
}

// On reports whether the parameter with this variable is true.
func On(gadgetCtx operators.GadgetContext, variable string) bool {
	v, _ := Value(gadgetCtx, variable)
	return v == "true"
}

// Key returns the flag of the parameter with this variable.
func Key(gadgetCtx operators.GadgetContext, variable string) string {
	p, ok := parametersOf(gadgetCtx)
	if !ok {
		return variable
	}
	return p.key(variable)
}

// Flag returns the user's value for a flag of a gadget's eBPF programs, or "".
func Flag(gadgetCtx operators.GadgetContext, flag string) string {
	p, _ := parametersOf(gadgetCtx)
	return p.values[flag]
}

// Offers returns the parameter of a gadget's eBPF programs with this flag, or nil.
func Offers(gadgetCtx operators.GadgetContext, flag string) *api.Param {
	offers := variable[operators.ExtraParams](gadgetCtx, offeredVar)
	if offers == nil {
		return nil
	}
	params := offers.ExtraParams(gadgetCtx)
	if i := slices.IndexFunc(params, func(p *api.Param) bool { return p.Key == flag }); i >= 0 {
		return params[i]
	}
	return nil
}
