package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// testEmptyDir keeps a history in the emptyDir from the page's patch. The step "guide" runs the page's hostPath.
func testEmptyDir(t *testing.T, c cluster) {
	g := newGuide(t, c)
	blocks := pageBlocks(t, g.top, historyPage, "In Kubernetes")
	i := slices.IndexFunc(blocks, func(b pageBlock) bool { return b.file == "history-patch.yaml" })
	require.GreaterOrEqual(t, i, 0)
	volume := regexp.MustCompile(`(?m)^( *)- \{name: history, hostPath: .*\n.*(\{name: history, emptyDir: .*)$`)
	require.Regexp(t, volume, blocks[i].text)
	patch := filepath.Join(t.TempDir(), "patch.yaml")
	require.NoError(t, os.WriteFile(patch, []byte(volume.ReplaceAllString(blocks[i].text, "${1}- ${2}")), 0o600))

	c.kubectl(t, "-n", "gadget", "patch", "daemonset/gadget", "--patch-file", patch)
	pod, _ := c.daemonPod(t)
	c.kubectl(t, "gadget", "run", image, "-A", "--detach", "--name", "recorder", "--otel-profiles-exporter=history")
	c.requireHistory(t, pod)
	c.kubectl(t, "gadget", "delete", "recorder")
	// Nothing is on the node: the history ends with the pod.
	_, err := c.try(t.Context(), "test", "-e", "/var/lib/ig-otel-profiles")
	require.Error(t, err)
}

// requireHistory waits until a query in the daemon's pod finds the workloads' function.
func (c cluster) requireHistory(t *testing.T, pod string) {
	t.Helper()
	eventually(t, func() error {
		answer, err := c.try(t.Context(), "kubectl", "-n", "gadget", "exec", pod, "--", "profile", "history", "--since", "1h", "-o", "/var/lib/ig-otel-profiles/asked")
		if err == nil && !strings.Contains(answer, "burn_leaf") {
			err = fmt.Errorf("no burn_leaf in the answer:\n%s", answer)
		}
		return err
	})
}
