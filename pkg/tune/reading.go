package tune

import (
	apihelpers "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api-helpers"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"google.golang.org/grpc/peer"
)

// formatStacks is the parameter of gadgets that selects text ("true") or IDs ("false"). Its default is "auto".
const formatStacks = "format_stacks"

// Reading says who reads a gadget's rows.
type Reading struct {
	// none contains the data sources that are not printed. "" stands for all others.
	none map[string]bool
	// detached reports that the gadget runs without a client.
	detached bool
}

// ReadingOf determines who reads a gadget's rows. There are three cases:
//
//   - This process prints the rows (ig run), or a waiting client prints them (kubectl gadget run). --output selects the data
//     sources that are printed.
//   - A daemon runs the gadget without a client: with --detach, or from a manifest. A client can attach later, and then gets the
//     rows without text.
//   - A program that embeds Inspektor Gadget runs the gadget, so it may read the rows.
func ReadingOf(gadgetCtx operators.GadgetContext) Reading {
	var r Reading
	if gadgetCtx.IsRemoteCall() {
		// If a client waits for a gadget, it runs within the client's call.
		_, called := peer.FromContext(gadgetCtx.Context())
		r.detached = !called
	}
	modes, err := apihelpers.GetStringValuesPerDataSource(variable[string](gadgetCtx, outputVar))
	if err != nil {
		return r // the operator that prints reports the error
	}
	r.none = map[string]bool{}
	for source, mode := range modes {
		r.none[source] = mode == "none"
	}
	return r
}

// Detached reports whether a daemon runs the gadget without a client. Then nobody sees the gadget's log.
func (r Reading) Detached() bool { return r.detached }

// Anybody reports whether anybody reads a data source's rows as text.
func (r Reading) Anybody(source string) bool {
	if r.detached {
		return false
	}
	none, named := r.none[source]
	if !named {
		none = r.none[""]
	}
	return !none
}

// StacksByID makes a gadget send stack IDs instead of texts, if possible. It reports whether the gadget will do so. Call it
// before the gadget starts.
func StacksByID(gadgetCtx operators.GadgetContext) bool {
	p, ok := parametersOf(gadgetCtx)
	if !ok || p.entry(formatStacks, "defaultvalue") != "auto" || !p.isDefault(formatStacks) {
		return false
	}
	p.set(formatStacks, "false")
	return true
}
