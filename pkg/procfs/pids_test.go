package procfs

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSharesPIDs runs this test again in a new PID namespace.
func TestSharesPIDs(t *testing.T) {
	const inside = "PROCFS_TEST_INSIDE"
	if os.Getenv(inside) != "" {
		require.False(t, SharesPIDs())
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("a new PID namespace takes root")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestSharesPIDs$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestSharesPIDs")
}
