package tune

import (
	"testing"

	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ustack"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// TestDebugFileSymbolizers checks that a run is refused if it could not look up debug files.
func TestDebugFileSymbolizers(t *testing.T) {
	const noDaemon = "--symbolizers=debuginfod-cache-on-ig-server is for a daemon, and this run has none: use debuginfod-cache"
	withoutIDs := func(name string) string {
		return "--symbolizers=" + name + " finds debug files by their build IDs, which the gadget does not collect: also set --collect-build-id"
	}
	offered := api.Params{{Key: "collect-build-id", DefaultValue: "false"}}
	for _, tc := range []struct {
		remote  bool
		offered api.Params
		values  api.ParamValues
		want    string
	}{
		{false, offered, api.ParamValues{"symbolizers": "debuginfod-cache-on-ig-server", "collect-build-id": "true"}, noDaemon},
		{true, offered, api.ParamValues{"symbolizers": "debuginfod-cache-on-ig-server", "collect-build-id": "true"}, ""},
		{true, offered, api.ParamValues{"symbolizers": "symtab,debuginfod-cache-on-ig-server"}, withoutIDs("debuginfod-cache-on-ig-server")},
		{false, offered, api.ParamValues{"symbolizers": "debuginfod-cache", "collect-build-id": "false"}, withoutIDs("debuginfod-cache")},
		{false, offered, api.ParamValues{"symbolizers": "debuginfod-cache", "collect-build-id": "true"}, ""},
		{false, nil, api.ParamValues{"symbolizers": "debuginfod-cache"}, ""}, // an older gadget, whose build IDs cannot be turned off
		{false, offered, api.ParamValues{"symbolizers": "auto"}, ""},
	} {
		gadgetCtx := gadgetcontext.New(t.Context(), "gadget", gadgetcontext.WithAsRemoteCall(tc.remote))
		_, err := (&programs{offering{params: tc.offered}}).InstantiateImageOperator(gadgetCtx, nil, ocispec.Descriptor{}, tc.values)
		require.NoError(t, err)
		_, err = userStacks{&ustack.Operator{}}.InstantiateDataOperator(gadgetCtx, tc.values)
		if tc.want == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, tc.want)
		}
	}
}
