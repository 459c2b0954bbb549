package igtest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const igModule = "github.com/inspektor-gadget/inspektor-gadget"

// Prebuilt returns the path of a file that was built on another machine, and false where the tests build on this one. A test
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

// wrapper compiles a source with headers of libbpf from before 1.2, which have the
// macros for user probes under the names of those for kernel probes only.
const wrapper = `#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#ifndef BPF_UPROBE
#define BPF_UPROBE(name, args...) BPF_KPROBE(name, ##args)
#define BPF_URETPROBE(name, args...) BPF_KRETPROBE(name, ##args)
#endif
#include %q
`

// BuildUpstream builds a gadget from Inspektor Gadget's own sources, unchanged, as they are in its Go module, and returns the name of its
// image. The error is ig's. Where it was built on another machine, it is imported, and where it was built from these sources before, it is
// taken from the folder upstream beside that of the gadgets' images.
func BuildUpstream(t *testing.T, name string) (image string, err error) {
	t.Helper()
	image = "upstream-" + name + ":dev"
	if archive, ok := Prebuilt(name + ".tar"); ok {
		if why, err := os.ReadFile(archive + ".why"); err == nil {
			return "", errors.New(string(why))
		}
		importArchive(t, archive)
		return image, nil
	}
	dir := filepath.Join(UpstreamModule(t), "gadgets", name)
	source := filepath.Join(dir, "program.bpf.c")
	text, err := os.ReadFile(source)
	require.NoError(t, err)
	metadata, err := os.ReadFile(filepath.Join(dir, "gadget.yaml"))
	require.NoError(t, err)
	// The folder has the version in its name, which the headers are of.
	sources := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s", dir, text, metadata, wrapper))
	archive := filepath.Join(filepath.Dir(filepath.Clean(os.Getenv(Gadgets))), "upstream", fmt.Sprintf("%s-%x.tar", name, sources[:8]))
	if _, err := os.Stat(archive); err == nil {
		importArchive(t, archive)
		return image, nil
	}
	if bytes.Contains(text, []byte("BPF_UPROBE(")) {
		dir = t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "gadget.yaml"), metadata, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "program.bpf.c"), fmt.Appendf(nil, wrapper, source), 0o600))
	}
	out, err := exec.CommandContext(t.Context(), Built(t, Bin, "ig"), "image", "build", "--local", "-t", image, dir).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building it: %w: %s", err, out)
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(archive), 0o755))
	Output(t, Built(t, Bin, "ig"), "image", "export", image, archive+".part")
	require.NoError(t, os.Rename(archive+".part", archive))
	return image, nil
}
