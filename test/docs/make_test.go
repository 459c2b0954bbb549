package docs

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMakeProfile requires that "make profile" stops if PID=, COMM= or CONTAINER= has no value. It would otherwise profile the
// whole machine, for example because a command in PID=$(…) found no process.
func TestMakeProfile(t *testing.T) {
	try := func(t *testing.T, env []string, args ...string) (string, error) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "make", append([]string{"--dry-run"}, args...)...)
		cmd.Dir = top
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
			name, _, _ := strings.Cut(v, "=")
			return slices.Contains([]string{"PID", "COMM", "CONTAINER", "SECONDS", "PROFILE", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}, name)
		}), env...)
		said, err := cmd.CombinedOutput()
		return string(said), err
	}
	for _, name := range []string{"PID", "COMM", "CONTAINER"} {
		for way, tc := range map[string]struct{ env, args []string }{
			"command line": {nil, []string{"profile", name + "="}},
			"environment":  {[]string{name + "= "}, []string{"profile", "SECONDS=10"}},
		} {
			t.Run(name+" "+way, func(t *testing.T) {
				said, err := try(t, tc.env, tc.args...)
				require.Error(t, err, said)
				require.Contains(t, said, name+"= has no value")
				require.NotContains(t, said, "go build")
			})
		}
	}
	for want, args := range map[string][]string{
		`build/bin/profile +`:                          {"profile"},
		`build/bin/profile +--pid 1234 +--seconds 10 `: {"profile", "PID=1234", "SECONDS=10"},
		`build/bin/profile +--comm 'shop' +`:           {"profile", "COMM=shop"},
		`awk .*`:                                       {"help", "PID="}, // only the target "profile" uses the variable
	} {
		said, err := try(t, nil, args...)
		require.NoError(t, err, said)
		require.Regexp(t, `(?m)^`+want+`$`, said)
	}
}
