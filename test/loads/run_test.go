//go:build e2e

package loads

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRun builds and runs every load, and sees it burn CPU time and end.
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

// TestStartFails starts what is no load.
func TestStartFails(t *testing.T) {
	p := &Program{Load: Load{Name: "broken"}, Dir: t.TempDir(), Args: []string{"/bin/sh", "-c", "echo oh no >&2; exit 3"}}
	_, err := p.Start(context.Background(), time.Minute)
	require.ErrorContains(t, err, "broken")
	require.ErrorContains(t, err, "oh no")
}
