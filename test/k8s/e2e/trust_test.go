package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

const trustPage = "docs/security.md"

// testTrust checks that a user can run gadgets only with the page's role, and that the daemon has the rights that the page
// lists. Signed gadgets run only if they are in the page's list. The test uses the daemon that the guide installed with the
// chart. It then rolls this daemon back and removes it with the pages' commands.
func testTrust(t *testing.T, c cluster) {
	g := newGuide(t, c)
	t.Cleanup(g.remove)
	gadget := registryAddress + "/gadgets/profile_alloc:v1.0.0"
	allowed := registryAddress + "/gadgets/profile_cpu"
	try := func(args ...string) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := c.try(ctx, append([]string{"kubectl", "gadget"}, args...)...)
		return err
	}
	jane := []string{"--as=jane", "--as-group=profilers", "run", allowed + ":v1.0.0", "-n", "shop", "--timeout", "1"}
	err := try(jane...)
	require.ErrorContains(t, err, "forbidden")
	t.Logf("without the role: %v", err)
	g.run(t, trustPage, pageBlocks(t, g.top, trustPage, "Who may run gadgets"), nil)
	require.NoError(t, try(jane...))
	g.requireRights(t, c.kubectl(t, "gadget", "deploy", "-q", "--print-only"))

	// These are both keys of the guide, and the page's list with a gadget's digest instead of zeros.
	signature := c.in(t, "cosign", "triangulate", "--allow-http-registry", allowed+":v1.0.0")
	digest := regexp.MustCompile(`sha256-([0-9a-f]{64})\.sig`).FindStringSubmatch(signature)
	require.NotNil(t, digest, signature)
	config := func() string {
		t.Helper()
		return c.kubectl(t, "-n", "gadget", "get", "configmap", "gadget", "-o", `jsonpath={.data.config\.yaml}`)
	}
	// The guide's key was removed with the guide's files, but the daemon's config still contains it.
	key := regexp.MustCompile(`(?s)-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----`).FindString(config())
	require.NoError(t, os.WriteFile(g.make(t, "cosign.pub"), []byte(regexp.MustCompile(`(?m)^ +`).ReplaceAllString(key, "")), 0o600))
	upgrade := []string{"helm", "upgrade", "gadget", filepath.Join(c.lab, "chart"), "-n", "gadget", "--reuse-values"}
	for _, file := range []pageBlock{pageFile(t, g.top, guidePage, "two-keys.yaml"), pageFile(t, g.top, trustPage, "allowed.yaml")} {
		text := strings.ReplaceAll(g.standIn(t, file.text), strings.Repeat("0", 64), digest[1])
		values := filepath.Join(t.TempDir(), file.file)
		require.NoError(t, os.WriteFile(values, []byte("config:\n"+regexp.MustCompile(`(?m)^`).ReplaceAllString(text, "  ")), 0o600))
		upgrade = append(upgrade, "-f", values)
	}
	c.in(t, upgrade...)
	policy := filepath.Join(t.TempDir(), "networkpolicy.yaml")
	require.NoError(t, os.WriteFile(policy, []byte(pageFile(t, g.top, "docs/operate/monitoring.md", "networkpolicy.yaml").text), 0o600))
	c.kubectl(t, "apply", "-f", policy) // nothing enforces it in this cluster
	c.kubectl(t, "-n", "gadget", "rollout", "restart", "daemonset/gadget")
	c.daemonPod(t)
	require.Equal(t, 2, strings.Count(config(), "BEGIN PUBLIC KEY"), config())
	require.Contains(t, config(), digest[1])
	err = try("run", gadget, "-n", "shop", "--timeout", "1")
	require.ErrorContains(t, err, "not part of allowed gadgets")
	t.Logf("a gadget that is not in the list: %v", err)
	c.kubectl(t, "gadget", "run", allowed+":v1.0.0", "-n", "shop", "--timeout", "1")

	rest := g.run(t, lifePage, pageBlocks(t, g.top, lifePage, "With the chart"), has("helm rollback"))
	c.daemonPod(t)
	// The previous release has no list of allowed gadgets. So the gadget starts, and can then report too many containers.
	if err := try("run", gadget, "-n", "shop", "--timeout", "1"); err != nil {
		require.ErrorContains(t, err, "the run covers more than 10 containers")
	}
	c.kubectl(t, "gadget", "run", allowed+":v1.0.0", "-n", "shop", "--detach", "--name", "until-the-end")
	var ids kernelObjects
	eventually(t, func() error {
		if ids = programsAndMaps(t, c.daemonProcess(t)); len(ids.programs) == 0 {
			return errors.New("the daemon holds no eBPF programs")
		}
		return nil
	})
	t.Logf("the daemon holds %d eBPF programs and %d maps", len(ids.programs), len(ids.maps))
	g.run(t, lifePage, rest, nil)
	eventually(t, func() error {
		if left := ids.left(); left != "" {
			return errors.New("still in the kernel: " + left)
		}
		return c.leaves(t, beforeGuide, hookSocket, storage)
	})
	onNode := slices.DeleteFunc(pageBlocks(t, g.top, lifePage, "Remove"), func(b pageBlock) bool { return !has("rm -rf")(b) })
	g.run(t, lifePage, onNode, nil)
	require.NoError(t, c.leaves(t, beforeGuide))
}

// pageFile returns the file with this name on a page.
func pageFile(t *testing.T, top, page, name string) pageBlock {
	t.Helper()
	blocks := pageBlocks(t, top, page, "")
	at := slices.IndexFunc(blocks, func(b pageBlock) bool { return b.file == name })
	require.GreaterOrEqual(t, at, 0, "%s does not show %s", page, name)
	return blocks[at]
}

// allVerbs are the verbs that the page calls "all".
var allVerbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

// requireRights compares the page's table of the ServiceAccount's rights with the roles of the manifests.
func (g *guide) requireRights(t *testing.T, manifests string) {
	t.Helper()
	granted := map[string]bool{}
	for documents := yaml.NewDecoder(strings.NewReader(manifests)); ; {
		var role struct {
			Kind  string
			Rules []struct{ Resources, Verbs []string }
		}
		err := documents.Decode(&role)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					granted[fmt.Sprintf("%s of %s, %t", verb, resource, role.Kind == "Role")] = true
				}
			}
		}
	}
	require.NotEmpty(t, granted)

	text, err := os.ReadFile(filepath.Join(g.top, trustPage))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "| right | resource | purpose | needed for profiles |\n|---|---|---|---|\n")
	require.True(t, found, "the page has no table of rights")
	listed := map[string]bool{}
	for row := range strings.Lines(table) {
		columns := strings.Split(row, "|")
		if len(columns) != 6 {
			break
		}
		verbs := strings.Split(strings.TrimSpace(columns[1]), ", ")
		if verbs[0] == "all" {
			verbs = allVerbs
		}
		resources, _, namespaced := strings.Cut(regexp.MustCompile(`\(.*?\)`).ReplaceAllString(columns[2], ""), " in the namespace ")
		for _, resource := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(resources, -1) {
			for _, verb := range verbs {
				listed[fmt.Sprintf("%s of %s, %t", verb, resource[1], namespaced)] = true
			}
		}
	}
	require.Equal(t, granted, listed, "the manifests' rights and the page's (true: only in the daemon's namespace)")
}
