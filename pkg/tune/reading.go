package tune

import (
	apihelpers "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api-helpers"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"google.golang.org/grpc/peer"
)

// The parameter of gadgets that decides between text and IDs: "auto", "true" for text, "false" for IDs.
const formatStacks = "format_stacks"

// Reading is the readers of a gadget's rows.
type Reading struct {
	// none has the data sources that are not printed; "" stands for all others.
	none map[string]bool
	// detached reports that the gadget runs for no client.
	detached bool
}

// ReadingOf finds the readers of a gadget's rows. There are three cases:
//
//   - The rows are printed by this process (ig run), or by a client that waits for them (kubectl gadget
//     run): --output says what is printed.
//   - A daemon runs the gadget for no client: --detach, or a manifest. A client can attach to it later,
//     which nobody knows at the start, and gets the rows without text.
//   - A program that embeds Inspektor Gadget runs it, and says nothing: it may read the rows.
func ReadingOf(gadgetCtx operators.GadgetContext) Reading {
	var r Reading
	if gadgetCtx.IsRemoteCall() {
		// Work that a client waits for is run within its call.
		_, called := peer.FromContext(gadgetCtx.Context())
		r.detached = !called
	}
	modes, err := apihelpers.GetStringValuesPerDataSource(variable[string](gadgetCtx, outputVar))
	if err != nil {
		return r // the operator that prints reports the mistake
	}
	r.none = map[string]bool{}
	for source, mode := range modes {
		r.none[source] = mode == "none"
	}
	return r
}

// Anybody reports whether somebody reads the rows of a data source as text.
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

// StacksByID makes a gadget that can do so hand over its stacks by ID and not as text, and reports whether
// it will. It may be called until the gadget starts.
func StacksByID(gadgetCtx operators.GadgetContext) bool {
	p, ok := parametersOf(gadgetCtx)
	if !ok || p.entry(formatStacks, "defaultvalue") != "auto" || !p.isDefault(formatStacks) {
		return false
	}
	p.set(formatStacks, "false")
	return true
}
