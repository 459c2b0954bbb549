package tune

import (
	"slices"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
)

// setSymbols sets a gadget's variables that hold kernel addresses. The metadata lists them by symbol name
// (operator.otel-profiles.symbols, see gadgets/include/kernel_symbol.h). If one address is not available, all variables stay 0,
// because they are bounds.
func setSymbols(gadgetCtx operators.GadgetContext, m Machine) {
	metadata := Metadata(gadgetCtx)
	if metadata == nil {
		return
	}
	symbols := metadata.GetStringSlice("operator.otel-profiles.symbols")
	// Inspektor Gadget sets the variables of the gadget's programs to 0. Other variables may belong to operators.
	symbols = slices.DeleteFunc(symbols, func(symbol string) bool {
		v, _ := gadgetCtx.GetVar(symbol)
		return v != uint64(0)
	})
	if len(symbols) == 0 {
		return
	}
	addrs, err := m.Addresses(symbols...)
	if err != nil {
		gadgetCtx.Logger().Warnf("kernel stacks begin with functions of the tracing code, because their addresses are unknown: %v", err)
		return
	}
	for i, symbol := range symbols {
		gadgetCtx.SetVar(symbol, addrs[i])
	}
}
