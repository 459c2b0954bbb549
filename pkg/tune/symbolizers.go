package tune

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
)

// These are values of Inspektor Gadget's flag --symbolizers. The first names the stacks of OtelFlag. The others look up debug
// files, on the client or in the daemon.
const (
	otelSymbolizer   = "otel-ebpf-profiler"
	clientDebugFiles = "debuginfod-cache"
	daemonDebugFiles = "debuginfod-cache-on-ig-server"
)

// buildIDFlag is Inspektor Gadget's flag that makes a gadget collect build IDs.
const buildIDFlag = "collect-build-id"

// checkSymbolizers returns an error if a run requests a symbolizer that certainly names nothing. Inspektor Gadget would ignore it.
func checkSymbolizers(gadgetCtx operators.GadgetContext, values api.ParamValues) error {
	if gadgetCtx.IsClient() {
		return nil
	}
	names := strings.Split(values["symbolizers"], ",")
	if slices.Contains(names, otelSymbolizer) && len(OtelChains(gadgetCtx)) == 0 {
		return fmt.Errorf("--symbolizers=%s needs the flag --%s: set this flag, or remove --symbolizers", otelSymbolizer, OtelFlag)
	}
	if slices.Contains(names, daemonDebugFiles) && !gadgetCtx.IsRemoteCall() {
		return fmt.Errorf("--symbolizers=%s is for a daemon, and this run has none: use %s", daemonDebugFiles, clientDebugFiles)
	}
	for _, name := range []string{clientDebugFiles, daemonDebugFiles} {
		if slices.Contains(names, name) && withoutBuildIDs(gadgetCtx) {
			return fmt.Errorf("--symbolizers=%s finds debug files by their build IDs, which the gadget does not collect: also set --%s", name, buildIDFlag)
		}
	}
	return nil
}

// withoutBuildIDs reports whether a gadget can collect build IDs, and this is off.
func withoutBuildIDs(gadgetCtx operators.GadgetContext) bool {
	offered := Offers(gadgetCtx, buildIDFlag)
	return offered != nil && cmp.Or(Flag(gadgetCtx, buildIDFlag), offered.DefaultValue) == "false"
}
