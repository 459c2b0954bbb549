package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersionNamesBoth(t *testing.T) {
	read, write, err := os.Pipe()
	require.NoError(t, err)
	stdout := os.Stdout
	os.Stdout = write
	cmd := newVersionCommand()
	cmd.SetArgs([]string{})
	err = cmd.Execute()
	os.Stdout = stdout
	require.NoError(t, err)
	require.NoError(t, write.Close())
	out, err := io.ReadAll(read)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, lines, 2)
	require.Regexp(t, `^v\d+\.\d+\.\d+`, lines[0])
	require.Regexp(t, `^ig-otel-profiles \S+`, lines[1])

	cmd.SetArgs([]string{"extra"})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	require.Error(t, cmd.Execute())
}
