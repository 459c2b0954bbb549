package igtest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const igModule = "github.com/inspektor-gadget/inspektor-gadget"

// Prebuilt returns the path of a file that was built on another machine, and false if the tests build on this one. TestPrebuild of
// a package builds its files into the folder E2E_PREBUILD. The tests find them in the folder E2E_PREBUILT.
func Prebuilt(name string) (string, bool) {
	dir := os.Getenv("E2E_PREBUILT")
	return filepath.Join(dir, name), dir != ""
}

// UpstreamModule returns the folder of Inspektor Gadget's Go module.
func UpstreamModule(t *testing.T) string {
	t.Helper()
	return Output(t, "go", "list", "-m", "-f", "{{.Dir}}", igModule)
}

// BuildUpstream builds a gadget unchanged from the sources in Inspektor Gadget's Go module, and returns the name of its image. The
// error is ig's. If there is an earlier build, from this machine or another, it imports that.
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
