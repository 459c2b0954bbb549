package igtest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const igModule = "github.com/inspektor-gadget/inspektor-gadget"

// Prebuilt returns the path of a file that was built on another machine, and false if the tests build on this one. A test
// TestPrebuild builds into the folder E2E_PREBUILD what the tests of its package need; E2E_PREBUILT names the folder where they run.
func Prebuilt(name string) (string, bool) {
	dir := os.Getenv("E2E_PREBUILT")
	return filepath.Join(dir, name), dir != ""
}

// UpstreamModule returns the folder of Inspektor Gadget's Go module.
func UpstreamModule(t *testing.T) string {
	t.Helper()
	return Output(t, "go", "list", "-m", "-f", "{{.Dir}}", igModule)
}

// BuildUpstream builds a gadget from Inspektor Gadget's own sources, unchanged, as they are in its Go module, and returns the name of its
// image. The error is ig's. An earlier build, from here or from another machine, is imported.
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
	importArchive(t, archive)
	imported.Store(image, true)
	return image, nil
}
