// Package ci tests the script that runs CI's stages, on tables of its own.
package ci

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// ci runs a table of stages, and returns the output and the exit code. Second-tier stages start only in the first minutes.
func ci(t *testing.T, table, minutes string) (said string, code int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "stages")
	require.NoError(t, os.WriteFile(file, []byte(table), 0o600))
	out, err := exec.CommandContext(t.Context(), "../../.ci/run", file, minutes).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out), exit.ExitCode()
	}
	require.NoError(t, err)
	return string(out), 0
}

func TestStages(t *testing.T) {
	for _, tc := range []struct {
		name, table, minutes string
		code                 int
		says                 string
	}{
		{"passes", "# a comment\n\nfine first 1 true\nmore second 1 /bin/echo it runs\n", "70", 0, `(?s)it runs.*fine +ok.*more +ok`},
		{"goes on after a failure", "bad first 1 false\nfine second 1 echo it runs\n", "70", 1, `(?s)it runs.*bad +FAILED.*fine +ok`},
		{"a failure of the second tier counts", "bad second 1 false\n", "70", 1, `bad +FAILED`},
		{"what is late is left out", "late second 1 false\nbeside beside - false\nfine first 1 true\n", "0", 0, `(?s)late +not run: .*beside +not run: .*fine +ok`},
		{"what takes long is named", "slow first -1 true\n", "70", 0, `slow +ok .*, more than twice its usual -1`},
		{"what is usual is not", "fine first 1 true\n", "70", 0, `fine +ok +0\.0 min\n`},
		{"beside the others", "lint beside - cat /no/such/file\nfine first 1 true\n", "70", 1, `(?s)== lint, beside the others.*No such file.*fine +ok.*lint +FAILED .*, beside`},
		{"what tests said of it comes at the end", `bad first 1 printf x\tError\u0020Trace:here\n,too\n/%d z` + "\nfine first 1 true\n", "70", 1, `(?s)fine +ok.*== bad failed:\n.*Error Trace:here\n.*minutes of each stage`},
		{"an unknown tier", "bad third 1 true\n", "70", 1, `bad has an unknown tier: third`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			said, code := ci(t, tc.table, tc.minutes)
			require.Regexp(t, tc.says, said)
			require.Equal(t, tc.code, code, said)
		})
	}
}
