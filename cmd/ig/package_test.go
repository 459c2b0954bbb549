package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// script runs one of the package's scripts with a replacement for the program that it starts. make test-packages runs the real
// programs.
func script(t *testing.T, name, program string, env []string, args ...string) string {
	t.Helper()
	stand := filepath.Join(t.TempDir(), "stand-in")
	require.NoError(t, os.WriteFile(stand, []byte("#!/bin/sh\n"+program+"\n"), 0o700))
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{"package/" + name}, args...)...)
	cmd.Env = append(os.Environ(), append(env, "IG="+stand, "COMMAND="+stand)...)
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", output)
	return string(output)
}

// A plain name is a gadget of the package, and not an image in a registry.
func TestCommand(t *testing.T) {
	images := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(images, "profile_cpu.tar"), nil, 0o600))
	config := filepath.Join(images, "config.yaml")
	require.NoError(t, os.WriteFile(config, nil, 0o600))
	imported := "image import " + images + "/profile_cpu.tar\n"
	const own = " --verify-image=false --pull=never"
	for args, want := range map[string]string{
		"run profile_cpu --host":             imported + "CONFIG run profile_cpu:@TAG@ --host" + own,
		"run --host profile_cpu profile_cpu": imported + "CONFIG run --host profile_cpu:@TAG@ profile_cpu" + own,
		"run trace_open":                     "CONFIG run trace_open",
		"run example.com/profile_cpu":        "CONFIG run example.com/profile_cpu",
		"run profile_cpu:v9":                 "CONFIG run profile_cpu:v9",
		"--config mine run profile_cpu":      imported + "--config mine run profile_cpu:@TAG@" + own,
		"--config=mine version":              "--config=mine version",
		"image inspect profile_cpu":          "CONFIG image inspect profile_cpu",
		"":                                   "CONFIG",
	} {
		log := filepath.Join(t.TempDir(), "log")
		script(t, "ig-otel-profiles", `echo "$@" >>`+log, []string{"IMAGES=" + images, "CONFIG=" + config}, strings.Fields(args)...)
		said, err := os.ReadFile(log)
		require.NoError(t, err)
		require.Equal(t, strings.ReplaceAll(want, "CONFIG", "--config="+config)+"\n", string(said), args)
	}
	said := script(t, "ig-otel-profiles", `echo "$@"`, []string{"IMAGES=" + images, "CONFIG=" + images + "/none"}, "version")
	require.Equal(t, "version\n", said, "no configuration to read")
}

// No setting of a unit is also in the shared file sandbox.
func TestUnits(t *testing.T) {
	sandbox, err := os.ReadFile("package/sandbox")
	require.NoError(t, err)
	for _, unit := range []string{"ig-otel-profiles", "ig-otel-profiles-daemon"} {
		text, err := os.ReadFile("package/" + unit + ".service")
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if key, _, ok := strings.Cut(line, "="); ok && key != "" && key[0] != '#' {
				require.NotContains(t, "\n"+string(sandbox), "\n"+key+"=", unit)
			}
		}
	}
}
