package igtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// CPUTime returns the user and kernel CPU time that a process has used, to a hundredth of a second.
func CPUTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, ok := procfs.Stat("/proc", uint32(pid), 14, 15)
	require.True(t, ok, "process %d has exited", pid)
	return time.Duration(stat[0]+stat[1]) * procfs.Tick
}

// ScheduledTime returns how long a process's threads have run on a CPU, in nanoseconds. Exited threads do not count.
func ScheduledTime(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has exited
		}
		n, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		require.NoError(t, err)
		sum += time.Duration(n)
	}
	return sum
}

// Resident returns the resident memory of a process in bytes, or 0 if it has exited.
func Resident(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(text) + " 0 0")[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// Compile compiles a program into a test folder. The program's name is its source file's name without the extension.
func Compile(t *testing.T, source, compiler string, flags ...string) string {
	t.Helper()
	return CompileInto(t, t.TempDir(), source, compiler, flags...)
}

// CompileInto is like Compile, but for a folder that the caller has made.
func CompileInto(t *testing.T, dir, source, compiler string, flags ...string) string {
	t.Helper()
	program := filepath.Join(dir, strings.TrimSuffix(filepath.Base(source), filepath.Ext(source)))
	Output(t, compiler, append([]string{"-Wall", "-Werror", "-pthread", "-o", program, source}, flags...)...)
	return program
}
