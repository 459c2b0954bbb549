package igrun

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// If /proc/1/ns is unreadable, the error names the cause and a remedy. With the remedy, the folder is readable.
func TestHostNamespaces(t *testing.T) {
	_, denied := os.Readlink(hostNamespace)
	if denied == nil {
		require.NoError(t, HostNamespaces())
		require.Empty(t, Prefix())
		return
	}
	err := HostNamespaces()
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorContains(t, err, "supports neither --host nor containers")
	require.ErrorContains(t, err, "unshare --mount sh -c 'mount --bind /proc/$$ /proc/1")
	if os.Geteuid() != 0 {
		t.Skip("the remedy is for root")
	}
	argv := append(Prefix(), "readlink", hostNamespace)
	output, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Contains(t, string(output), "pid:[")
}

// ig refuses an import while another program changes the images, so the import must be repeated.
func TestImportIsRepeated(t *testing.T) {
	dir := t.TempDir()
	ig := filepath.Join(dir, "ig")
	write := func(script string) {
		require.NoError(t, os.WriteFile(ig, []byte("#!/bin/sh\n"+script), 0o755))
	}
	write("[ -e " + dir + "/second ] && exit\ntouch " + dir + "/second\necho 'Error: importing images: retry' >&2\nexit 1\n")
	require.NoError(t, Import(t.Context(), ig, "cpu.tar"))
	write("echo 'Error: importing images: no such file' >&2\nexit 1\n")
	require.ErrorContains(t, Import(t.Context(), ig, "cpu.tar"), "importing the gadget from cpu.tar: exit status 1\nError: importing images: no such file")
}
