//go:build e2e

package gadgets

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestLibraryInTerminal runs unchanged gadgets of Inspektor Gadget without an exporter. Their text must contain a shared
// library's functions, which Inspektor Gadget's own resolver does not find.
func TestLibraryInTerminal(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	dir := t.TempDir()
	library := compileInto(t, dir, "libworks.so", "-shared", "-fPIC", "-Wl,-soname,libworks.so")
	start(t, compileInto(t, dir, "works", library, "-Wl,-rpath,$ORIGIN"))
	for gadget, function := range map[string]string{"profile_cpu": "lib_spin", "trace_open": "lib_open"} {
		t.Run(gadget, func(t *testing.T) {
			t.Parallel()
			image, err := igtest.BuildUpstream(t, gadget)
			if err != nil {
				words, ok := whyNot(err)
				require.True(t, ok, "%v", err)
				t.Skipf("%s: %v", words, err)
			}
			want := function + "; lib_work; main; "
			var printed []byte
			require.Eventually(t, func() bool { // until it had time to sample and to read the files
				printed = runPlain(t, image)
				return strings.Contains(string(printed), want)
			}, 3*time.Minute, time.Millisecond, "nothing of %s is printed", want)
			t.Logf("%d times %s", strings.Count(string(printed), want), want)
		})
	}
}

// runPlain runs a gadget for some seconds as a user does, and returns its output.
func runPlain(t *testing.T, image string) []byte {
	t.Helper()
	out, err := igtest.Command(t, image, "--collect-ustack", "--timeout=8", "--output=json").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("%v: %s", err, exit.Stderr)
	}
	require.NoError(t, err)
	return out
}
