//go:build e2e

package loads

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRun builds and runs every load, which must use CPU time and end.
func TestRun(t *testing.T) {
	for _, l := range All() {
		t.Run(l.Name, func(t *testing.T) {
			start := time.Now()
			p, err := l.Build(t.Context(), t.TempDir())
			require.NoError(t, err)
			built := time.Since(start)
			r, err := p.Start(t.Context(), time.Minute)
			require.NoError(t, err)
			defer r.Stop()
			before, err := r.CPU()
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				now, err := r.CPU()
				return err == nil && now > before
			}, time.Minute, 100*time.Millisecond, "no CPU time is spent")
			if l.Known() {
				require.Positive(t, r.Stop())
			}
			t.Logf("built in %.1f s, ready %.1f s later", built.Seconds(), (time.Since(start) - built).Seconds())
		})
	}
}

// TestStartFails starts programs that are not loads.
func TestStartFails(t *testing.T) {
	p := &Program{Load: Load{Name: "broken"}, Dir: t.TempDir(), Args: []string{"/bin/sh", "-c", "echo oh no >&2; exit 3"}}
	_, err := p.Start(context.Background(), time.Minute)
	require.ErrorContains(t, err, "broken")
	require.ErrorContains(t, err, "oh no")
}

// TestEndsWithOwner makes a process start a load and end without stopping it.
func TestEndsWithOwner(t *testing.T) {
	const inside = "LOADS_TEST_OWNER"
	l, err := Find("perl")
	require.NoError(t, err)
	if dir := os.Getenv(inside); dir != "" {
		p, err := l.Build(t.Context(), dir)
		require.NoError(t, err)
		r, err := p.Start(context.Background(), time.Minute)
		require.NoError(t, err)
		fmt.Printf("PID %d\n", r.PID)
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=TestEndsWithOwner")
	cmd.Env = append(os.Environ(), inside+"="+t.TempDir())
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	_, after, found := strings.Cut(string(out), "PID ")
	require.True(t, found, "%s", out)
	pid, err := strconv.Atoi(strings.Fields(after)[0])
	require.NoError(t, err)
	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, 30*time.Second, 50*time.Millisecond)
}
