// Package tune sets the parameters of a gadget to what fits the machine and the run, before its eBPF
// programs are loaded:
//
//   - sizes of maps to the number of CPUs (Apply),
//   - programs for tracepoints and kprobes that not every kernel has to whether this one has them (Apply),
//   - variables that hold addresses of the kernel to these, where it tells them (Apply),
//   - the collection of stacks to on, where rows are exported (CollectStacks),
//   - stacks as text or by ID to whether anybody reads the text (Reading, StacksByID).
//
// A parameter is set only while it has the default of the gadget's image. A user's value stays. An image with untuned parameters
// works with its defaults.
//
// It also paces what Inspektor Gadget's own operators say of each row with something missing.
//
// Inspektor Gadget hands parameters to the operators that own them and to nobody else. Observe inserts itself if that is possible
// without changing their input.
package tune

import (
	"strings"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/spf13/viper"
)

// parameters are those of a gadget's eBPF programs, by the name of their variable. values is Inspektor Gadget's own map, so
// values that are set there take effect.
type parameters struct {
	metadata *viper.Viper
	values   api.ParamValues
}

// parametersOf returns the parameters of a gadget. It returns false if they cannot be set: the gadget has no eBPF programs, or
// Observe was called too late.
func parametersOf(gadgetCtx operators.GadgetContext) (parameters, bool) {
	p := parameters{Metadata(gadgetCtx), variable[api.ParamValues](gadgetCtx, valuesVar)}
	return p, p.metadata != nil && p.values != nil
}

// entry returns a member of a parameter's entry in the metadata. Viper's keys have no capitals.
func (p parameters) entry(variable, member string) string {
	return p.metadata.GetString("params.ebpf." + variable + "." + member)
}

func (p parameters) key(variable string) string {
	if key := p.entry(variable, "key"); key != "" {
		return key
	}
	return variable
}

// isDefault reports whether a parameter has the default of the image. It is false for a parameter without an entry in the
// metadata, because its default is unknown. An empty value counts as the default: Inspektor Gadget passes that for texts.
func (p parameters) isDefault(variable string) bool {
	def, value := p.entry(variable, "defaultvalue"), p.values[p.key(variable)]
	return def != "" && (value == "" || strings.EqualFold(value, def))
}

func (p parameters) set(variable, value string) { p.values[p.key(variable)] = value }

// Value returns the value of a parameter of a gadget's eBPF programs by the name of its variable. It is the user's value, or the
// image's default. It is false if that is not known.
func Value(gadgetCtx operators.GadgetContext, variable string) (string, bool) {
	p, ok := parametersOf(gadgetCtx)
	if !ok {
		return "", false
	}
	if v := p.values[p.key(variable)]; v != "" {
		return v, true
	}
	v := p.entry(variable, "defaultvalue")
	return v, v != ""
}

// On reports whether a parameter is true, by the name of its variable.
func On(gadgetCtx operators.GadgetContext, variable string) bool {
	v, _ := Value(gadgetCtx, variable)
	return v == "true"
}

// Key returns the flag of a parameter by the name of its variable.
func Key(gadgetCtx operators.GadgetContext, variable string) string {
	p, ok := parametersOf(gadgetCtx)
	if !ok {
		return variable
	}
	return p.key(variable)
}

// Flag returns the user's value for a parameter of a gadget's eBPF programs by its flag, "" for none.
func Flag(gadgetCtx operators.GadgetContext, flag string) string {
	p, _ := parametersOf(gadgetCtx)
	return p.values[flag]
}
