package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// testLanguages checks that profile_cpu with --unwind=whole and profile_alloc report a missing PID namespace of the node, and
// that the daemon continues. With this namespace, as in the guide, pods have whole stacks, and pods of other namespaces are
// absent.
func testLanguages(t *testing.T, c cluster) {
	before, _ := c.daemonPod(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	for image, flags := range map[string][]string{image: {"--unwind=whole"}, allocImage: nil} {
		_, err := c.try(ctx, append([]string{"kubectl", "gadget", "run", image, "-n", "shop", "--podname", "solo", "--timeout", "30"}, flags...)...)
		require.ErrorContains(t, err, "the host's PID namespace", image)
		require.ErrorContains(t, err, "hostPID", image)
	}
	after, _ := c.daemonPod(t)
	require.Equal(t, before, after, "the daemon goes on")

	c.shareHostPIDs(t)
	since := time.Now()
	g := c.follow(t, "run", image, "--unwind=whole", "-n", "shop", "-o", "json", "--frequency=99", "--otel-profiles-exporter=collector")
	// The run continues until the stacks arrive, because a pod's first rows can be older than the unwinder's knowledge of its
	// process.
	c.eventuallyArrived(t, since, whole("solo", "hostnet", "ledger-0"))
	g.stop(t)
	for _, s := range c.arrived(t, since) {
		require.Equal(t, "shop", s.Resource["k8s.namespace.name"], "a sample of another namespace: %v", s.Resource)
	}
	c.requireAccounted(t)
	// The client gets the run's closing line, but Inspektor Gadget can lose a client's last lines. So this reads the same
	// numbers from the daemon's counters.
	figures := c.figures(t)
	require.Positive(t, figures.sum["ig_otel_profiles_unwinder_samples_total"], figures.text)
	t.Logf("the run's closing lines:\n%s\nthe daemon's counters:\n%s", g.stderr.String(), figures.text)
}

// shareHostPIDs gives the daemon the node's PID namespace, as in the guide.
func (c cluster) shareHostPIDs(t *testing.T) {
	t.Helper()
	c.kubectl(t, "-n", "gadget", "patch", "daemonset", "gadget", "--type=merge", "-p", `{"spec": {"template": {"spec": {"hostPID": true}}}}`)
	c.daemonPod(t)
}

// wholeStack reports whether a pod has a stack with all callers.
func wholeStack(samples []receiver.Sample, pod string) bool {
	for _, s := range samples {
		if s.Resource["k8s.pod.name"] != pod {
			continue
		}
		var names []string
		for _, f := range s.Stack {
			names = append(names, f.Name)
		}
		if strings.Contains(strings.Join(names, ";"), "burn_leaf;burn_middle;burn_outer;main") {
			return true
		}
	}
	return false
}
