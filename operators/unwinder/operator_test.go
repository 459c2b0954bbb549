package unwinder

import (
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/stretchr/testify/require"
)

// values are what a run gets that sets one parameter.
func values(key, value string) api.ParamValues {
	v := api.ParamValues{}
	for _, p := range (&operator{}).InstanceParams() {
		v[p.Key] = p.DefaultValue
	}
	v[key] = value
	return v
}

// What cannot be is refused, with the name of the parameter; a label that could never match, too.
func TestConfigure(t *testing.T) {
	for _, c := range []struct{ key, value, refused string }{
		{ParamFrequency, "many", `"frequency"`},
		{ParamPID, "init", `"init"`},
		{ParamText, "yes", `"yes"`},
		{ParamComm, "", ""},
	} {
		i := &instance{}
		err := i.configure(values(c.key, c.value))
		if c.refused == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.refused)
	}
}
