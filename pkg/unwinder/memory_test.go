package unwinder

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLimitAlong(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "pod/container"), 0o755))
	write := func(path, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, path, "memory.max"), []byte(text), 0o600))
	}
	for _, c := range []struct {
		root, pod, container string
		want                 uint64
	}{
		{"max\n", "max\n", "max\n", math.MaxUint64},
		{"max\n", "max\n", "1073741824\n", 1 << 30},
		{"max\n", "536870912\n", "1073741824\n", 1 << 29},
		{"268435456\n", "max\n", "max\n", 1 << 28},
		{"", "what", "-1", math.MaxUint64},
	} {
		write("", c.root)
		write("pod", c.pod)
		write("pod/container", c.container)
		assert.Equal(t, c.want, limitAlong(dir, "/pod/container", "memory.max"), "%v", c)
	}
	assert.EqualValues(t, uint64(math.MaxUint64), limitAlong(dir, "/elsewhere/../..", "other"))
}

// TestMemoryBound runs itself in a cgroup with a limit, if this machine allows that.
func TestMemoryBound(t *testing.T) {
	if os.Getenv("MEMORY_BOUND") != "" {
		_, _ = os.Stdin.Read(make([]byte, 1)) // until it is in its group
		t.Logf("bound %d.", memoryBound())
		return
	}
	assert.LessOrEqual(t, memoryBound(), uint64(memoryMost))
	group, file := memoryGroup(t)
	for limit, want := range map[uint64]uint64{600 << 20: 300 << 20, 100 << 20: memoryLeast, 8 << 30: memoryMost} {
		require.NoError(t, os.WriteFile(filepath.Join(group, file), []byte(strconv.FormatUint(limit, 10)), 0o600))
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestMemoryBound$", "-test.v")
		cmd.Env = append(os.Environ(), "MEMORY_BOUND=1")
		var out strings.Builder
		cmd.Stdout = &out
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		err = os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
		_ = stdin.Close()
		require.NoError(t, cmd.Wait())
		require.NoError(t, err)
		assert.Contains(t, out.String(), "bound "+strconv.FormatUint(want, 10)+".")
	}
}

// memoryGroup creates a cgroup below this process's cgroup. It returns the new cgroup's path, and the name of the file with the
// limit.
func memoryGroup(t *testing.T) (group, file string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		root, file := "/sys/fs/cgroup", "memory.max"
		_, line, _ = strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(line, ":")
		if controllers == "memory" {
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if controllers != "" {
			continue
		}
		group := filepath.Join(root, path, "unwinder-test-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(group, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			require.Eventually(t, func() bool { return os.Remove(group) == nil }, 10*time.Second, 10*time.Millisecond)
		})
		if _, err := os.Stat(filepath.Join(group, file)); err == nil {
			return group, file
		}
	}
	t.Skip("no control group for memory can be made here")
	return "", ""
}

// TestHungry checks that an unwinder is replaced if it uses too much memory.
func TestHungry(t *testing.T) {
	t.Parallel()
	b, l := newTestBroker()
	b.meterInterval = 10 * time.Millisecond
	b.memoryBound = func() uint64 { return memoryLeast }
	s := subscribe(t, b, ask(playHungry))
	require.Eventually(t, func() bool { return b.Totals().Restarts >= 1 }, time.Minute, 10*time.Millisecond)
	s.Close()
	assert.Contains(t, l.String(), "MiB of memory, and the limit is 128 MiB")
	assert.Equal(t, b.Totals().Taken, sum(t, s)+s.Overrun()+b.Totals().Crashed)
}
