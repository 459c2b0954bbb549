package e2e

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testUpgrade upgrades a daemon and rolls it back, with the page's commands for "kubectl gadget deploy". The next step checks
// the rows of this time.
func testUpgrade(t *testing.T, c cluster) {
	g := newGuide(t, c)
	t.Cleanup(g.remove)
	const ours, gadget = "registry.example.com/profiles/ig-otel-profiles", "registry.example.com/profiles/gadgets/profile_cpu"
	g.wants = [][2]string{
		{"kubectl gadget deploy ", "kubectl gadget deploy --timeout 10m --image-pull-policy Never "},
		{ours + ":v1.0.0", oldImage},
		{ours + ":v1.1.0", newImage},
		{gadget + ":v1.0.0", oldGadget},
		{gadget + ":v1.1.0", image},
	}
	if _, err := c.try(t.Context(), "kubectl", "get", "namespace", "gadget"); err == nil {
		c.kubectl(t, "gadget", "undeploy", "--delete-namespace")
	}
	c.apply(t, "collector.yaml")
	c.collectorReplicas(t, 1)
	config, err := os.ReadFile(c.daemonConfig(t, "daemon.yaml"))
	require.NoError(t, err)
	file := g.make(t, "daemon-config.yaml")
	require.NoError(t, os.WriteFile(file, config, 0o600))
	deploy := func(image string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
		defer cancel()
		_, err := c.try(ctx, "kubectl", "gadget", "deploy", "-q", "--timeout", "10m", "--image", image, "--image-pull-policy", "Never", "--daemon-config", file)
		return err
	}
	runs := func(image string) {
		t.Helper()
		c.daemonPod(t)
		// The page's patches must apply to every daemon.
		kept := c.kubectl(t, "-n", "gadget", "get", "daemonset/gadget", "-o", "jsonpath={.spec.template.spec.hostPID} {.spec.template.spec.containers[0].image}")
		require.Equal(t, "true "+image, kept)
		since := time.Now()
		c.eventuallyArrived(t, since, some("solo", since, since.Add(time.Hour)))
	}

	require.NoError(t, deploy(oldImage))
	c.shareHostPIDs(t)
	c.kubectl(t, "gadget", "run", oldGadget, "-A", "--detach", "--name", "cpu", "--otel-profiles-exporter=collector")
	runs(oldImage)

	rest := g.run(t, lifePage, pageBlocks(t, g.top, lifePage, "Upgrade"), has("--detach"))
	runs(newImage)
	t.Log("upgraded: samples of the new daemon arrive")

	c.kubectl(t, "-n", "gadget", "set", "image", "daemonset/gadget", "gadget="+oldImage)
	c.daemonPod(t)
	err = deploy(newImage)
	require.ErrorContains(t, err, `conflict with "kubectl-set"`)
	t.Logf("deploy after set image: %v", err)
	g.run(t, lifePage, rest, nil)
	runs(newImage)

	g.run(t, lifePage, pageBlocks(t, g.top, lifePage, "Roll back"), nil)
	runs(oldImage)
	pace := c.kubectl(t, "-n", "gadget", "get", "daemonset/gadget", "-o", "jsonpath={.spec.updateStrategy.rollingUpdate.maxUnavailable}")
	require.Equal(t, "10%", pace, "a later deploy leaves the pace alone")
	t.Log("rolled back: samples of the old daemon arrive")
	for _, w := range g.wants {
		require.True(t, g.used[w[0]], "the page no longer says %q", w[0])
	}
}
