package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The service's gadget is tried, and another one takes its place only where both show the same. The program ig is one that does as it
// is told: make test-packages runs the real one.
func TestChooseGadget(t *testing.T) {
	for name, tt := range map[string]struct{ gadget, runs, chosen, said string }{
		"it runs":          {"profile_polyglot", "exit 0", "", ""},
		"it cannot run":    {"profile_polyglot", "echo level=info >&2; echo 'Error: no right to raise limits' >&2; exit 1", "GADGET=profile_cpu\n", "<4>profile_polyglot cannot run on this machine: no right to raise limits. profile_cpu runs in its place"},
		"without a reason": {"profile_polyglot", "echo gone; exit 2", "GADGET=profile_cpu\n", "cannot run on this machine: gone."},
		"another question": {"profile_offcpu", "exit 1", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ig := filepath.Join(dir, "ig")
			script := "#!/bin/sh\n[ \"$1\" = image ] && { [ -e \"$3\" ]; exit; }\ncase \"$*\" in *--frequency=9*) ;; *) exit 3 ;; esac\n" + tt.runs + "\n"
			require.NoError(t, os.WriteFile(ig, []byte(script), 0o700))
			for _, image := range []string{tt.gadget, "profile_cpu"} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, image+".tar"), nil, 0o600))
			}
			stale := filepath.Join(dir, "gadget")
			require.NoError(t, os.WriteFile(stale, []byte("GADGET=stale\n"), 0o600))
			cmd := exec.CommandContext(t.Context(), "sh", "package/choose-gadget")
			cmd.Env = append(os.Environ(), "IG="+ig, "IMAGES="+dir, "RUNTIME_DIRECTORY="+dir, "GADGET="+tt.gadget, "FLAGS=--verbose --frequency=9")
			output, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", output)
			chosen, _ := os.ReadFile(stale) // none is as good as empty
			require.Equal(t, tt.chosen, string(chosen))
			require.Contains(t, string(output), tt.said)
		})
	}
}
