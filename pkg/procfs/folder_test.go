package procfs

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFolder(t *testing.T) {
	pid := uint32(os.Getpid())
	for _, pid := range []uint32{pid, 1 << 31, 2} { // this process, none, and a kernel thread
		folder, thread := Folder("/proc", pid)
		require.Equal(t, fmt.Sprintf("/proc/%d", pid), folder)
		require.Equal(t, pid, thread)
	}
}
