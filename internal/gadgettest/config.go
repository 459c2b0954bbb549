package gadgettest

import (
	"strings"
	"testing"

	igconfig "github.com/inspektor-gadget/inspektor-gadget/pkg/config"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"
)

// Config sets Inspektor Gadget's config until the end of the test.
func Config(t testing.TB, yaml string) {
	t.Helper()
	old := igconfig.Config
	t.Cleanup(func() { igconfig.Config = old })
	igconfig.Config = viper.New()
	igconfig.Config.SetConfigType("yaml")
	require.NoError(t, igconfig.Config.ReadConfig(strings.NewReader(yaml)))
}
