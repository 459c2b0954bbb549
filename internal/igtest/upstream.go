package igtest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
)

const igModule = "github.com/inspektor-gadget/inspektor-gadget"

// Prebuilt returns the path of a file that was built on another machine. It returns false if the tests build on this machine. A
// package's TestPrebuild builds its files into the folder that E2E_PREBUILD names. The tests find them in the folder that
// E2E_PREBUILT names.
func Prebuilt(name string) (string, bool) {
	dir := os.Getenv("E2E_PREBUILT")
	return filepath.Join(dir, name), dir != ""
}

// UpstreamModule returns the folder of Inspektor Gadget's Go module.
func UpstreamModule(t *testing.T) string {
	t.Helper()
	return Output(t, "go", "list", "-m", "-f", "{{.Dir}}", igModule)
}

// BuildUpstream builds an unchanged gadget from the sources in Inspektor Gadget's Go module, and returns its image name. The error
// comes from ig. If this or another machine has already built the gadget, BuildUpstream imports that build.
func BuildUpstream(t *testing.T, name string) (image string, err error) {
	t.Helper()
	image = "upstream-" + name + ":dev"
	if _, ok := imported.Load(image); ok {
		return image, nil
	}
	archive, ok := Prebuilt(name + ".tar")
	if !ok {
		gadgets, err := filepath.Abs(os.Getenv(Gadgets))
		require.NoError(t, err)
		archive = filepath.Join(filepath.Dir(gadgets), "ig-gadgets", name+".tar")
		top := filepath.Dir(Output(t, "go", "env", "GOMOD"))
		Output(t, filepath.Join(top, ".ci", "ig-gadgets"), Built(t, Bin, "ig"), filepath.Dir(archive), name)
	}
	if why, err := os.ReadFile(archive + ".why"); err == nil {
		return "", errors.New(string(why))
	}
	require.NoError(t, igrun.Import(t.Context(), Built(t, Bin, "ig"), archive))
	imported.Store(image, true)
	return image, nil
}
