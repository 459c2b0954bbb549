package e2e

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const trustPage = "cmd/gadgettracermanager/TRUST.md"

// testTrust: a user without the page's role may not run gadgets, with it the page's command works; and of gadgets that are signed
// only those run that the list allows. It goes on with the daemon that the guide has installed by the chart.
func testTrust(t *testing.T, c cluster) {
	g := newGuide(t, c)
	t.Cleanup(g.remove)
	gadget := registryAddress + "/gadgets/profile_cpu:v1.0.0"
	try := func(args ...string) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := c.try(ctx, append([]string{"kubectl", "gadget"}, args...)...)
		return err
	}
	jane := []string{"--as=jane", "--as-group=profilers", "run", gadget, "-n", "shop", "--timeout", "1"}
	err := try(jane...)
	require.ErrorContains(t, err, "forbidden")
	t.Logf("without the role: %v", err)
	g.run(t, trustPage, pageBlocks(t, g.top, trustPage, "Who may run gadgets"), nil)
	require.NoError(t, try(jane...))

	c.in(t, "helm", "upgrade", "gadget", filepath.Join(c.lab, "chart"), "-n", "gadget", "--reuse-values",
		"--set", "config.operator.oci.allowed-gadgets={"+registryAddress+"/gadgets/profile_polyglot:*}")
	c.kubectl(t, "-n", "gadget", "rollout", "restart", "daemonset/gadget")
	c.daemonPod(t)
	err = try("run", gadget, "-n", "shop", "--timeout", "1")
	require.ErrorContains(t, err, "not part of allowed gadgets")
	t.Logf("a gadget that the list does not have: %v", err)
	c.kubectl(t, "gadget", "run", registryAddress+"/gadgets/profile_polyglot:v1.0.0", "-n", "shop", "--timeout", "5")
}
