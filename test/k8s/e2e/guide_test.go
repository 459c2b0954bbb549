package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// guidePage is the Kubernetes guide. fleetPage is the page for many nodes. backend is the address that the guide's Collector
// sends to.
const (
	guidePage = "docs/operate/install.md"
	fleetPage = "docs/operate/fleet.md"
	// historyPage has a section about Kubernetes.
	historyPage = "docs/quickstart/history.md"
	backend     = "10.88.0.1:24317"
)

// pageBlock is a block on a page: a file, or commands.
type pageBlock struct {
	line       int
	file, text string // empty for commands
}

// pageBlocks returns the blocks of a page, or of one of its sections, in order. These are files (YAML blocks that begin with a
// file name) and commands marked "cluster".
func pageBlocks(t *testing.T, top, page, section string) []pageBlock {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(top, page))
	require.NoError(t, err)
	text := string(data)
	if section != "" {
		start := strings.Index(text, "\n## "+section+"\n")
		require.GreaterOrEqual(t, start, 0, "%s has no section %q", page, section)
		rest := text[start+1:]
		if end := strings.Index(rest[1:], "\n## "); end >= 0 {
			rest = rest[:end+2]
		}
		text = strings.Repeat("\n", strings.Count(text[:start+1], "\n")) + rest
	}
	var blocks []pageBlock
	for _, m := range regexp.MustCompile("(?s)```(yaml\n# (\\S+\\.yaml)|sh cluster)\n(.*?)```").FindAllStringSubmatchIndex(text, -1) {
		b := pageBlock{line: strings.Count(text[:m[0]], "\n") + 1, text: text[m[6]:m[7]]}
		if m[4] >= 0 {
			b.file = text[m[4]:m[5]]
		}
		blocks = append(blocks, b)
	}
	require.NotEmpty(t, blocks, "%s %s", page, section)
	return blocks
}

// guide runs a page's commands in a folder with the layout of a clone.
type guide struct {
	cluster
	top   string
	made  []string        // files made by the pages
	wants [][2]string     // texts of pages, and their replacements here
	used  map[string]bool // the replaced texts
}

// newGuide prepares the replacements for this cluster. They are a registry without TLS, an address instead of DNS, a local
// image, and a chart that is built from its module.
func newGuide(t *testing.T, c cluster) *guide {
	t.Helper()
	top, err := filepath.Abs("../../..")
	require.NoError(t, err)
	authority, err := os.ReadFile(filepath.Join(c.lab, "state/pki/ca.crt"))
	require.NoError(t, err)
	tag := os.Getenv("GADGET_TAG")
	if tag == "" {
		tag = "dev"
	}
	lines := strings.Split(strings.TrimSpace(string(authority)), "\n")
	body := strings.Join(lines[1:len(lines)-1], "\n    ")
	g := &guide{cluster: c, top: top, used: map[string]bool{}, wants: [][2]string{
		{"registry.example.com/profiles", registryAddress},
		{"--timeout 10 ", "--timeout 2 "},
		{"kubectl gadget deploy ", "kubectl gadget deploy --timeout 10m "}, // two minutes are too short for a busy machine
		{"pod_labels: [app, tier]", "pod_labels: [app, tier]"},
		{"-arch amd64,arm64", "-arch " + runtime.GOARCH},
		{"cosign sign ", "cosign sign --allow-http-registry "},
		{"ig image push ", "ig image push --insecure-registries " + registryAddress + " "},
		{"$gadget:dev", "$gadget:" + tag},
		{"public-keys:", `insecure-registries: ["` + registryAddress + `"], public-keys:`},
		{"collector.observability.svc:4317", "10.96.0.100:4317"},
		{"clusterIP: None", "clusterIP: 10.96.0.100"},
		{"otel/opentelemetry-collector-contrib:0.160.0", "localhost/collector:test"},
		{"args: [--config", "args: [/collector, --config"}, // the test's image has no entry point
		{"endpoint: profiles.example.com:4317", "{endpoint: \"" + backend + "\", tls: {insecure: true}}"},
		{"put the certificate here", body},
		{"cloud.google.com/gke-nodepool=canary", "kubernetes.io/os=linux"},
		{"gadget --repo https://inspektor-gadget.github.io/charts --version 0.55.0", filepath.Join(c.lab, "chart")},
	}}
	return g
}

// standIn replaces the page's texts that do not fit this cluster.
func (g *guide) standIn(t *testing.T, text string) string {
	t.Helper()
	for _, w := range g.wants {
		old, now := w[0], w[1]
		if !strings.Contains(text, old) {
			continue
		}
		g.used[old] = true
		switch old {
		case "public-keys:":
			text = regexp.MustCompile(`(?m)^( *)public-keys:`).ReplaceAllString(text, `${1}insecure-registries: ["`+registryAddress+"\"]\n${1}public-keys:")
		case "pod_labels: [app, tier]": // the test waits for several intervals
			text = regexp.MustCompile(`(?m)^( *)pod_labels: \[app, tier\]$`).ReplaceAllString(text, "$0\n${1}batch: {interval: 2s}")
		case "endpoint: profiles.example.com:4317":
			text = regexp.MustCompile(`(?m)^( *)endpoint: profiles\.example\.com:4317$`).ReplaceAllString(text, "${1}endpoint: "+backend+"\n${1}tls: {insecure: true}")
		default:
			text = strings.ReplaceAll(text, old, now)
		}
	}
	const key = "put the lines of cosign.pub here"
	if strings.Contains(text, key) {
		pem, err := os.ReadFile(filepath.Join(g.top, "cosign.pub"))
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSpace(string(pem)), "\n")
		text = regexp.MustCompile(`(?m)^( *)`+key+`$`).ReplaceAllString(text, "${1}"+strings.Join(lines[1:len(lines)-1], "\n${1}"))
	}
	return text
}

// make returns the path of a new file, and registers the file for removal at the end.
func (g *guide) make(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(g.top, name)
	for _, m := range g.made {
		if m == path {
			return path
		}
	}
	_, err := os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist, "%s exists already, so the guide cannot create it", path)
	g.made = append(g.made, path)
	return path
}

// remove deletes the files that the pages have created.
func (g *guide) remove() {
	for _, file := range g.made {
		_ = os.RemoveAll(file)
	}
}

// run runs the page's blocks, up to and including the first one for which until returns true.
func (g *guide) run(t *testing.T, page string, blocks []pageBlock, until func(pageBlock) bool) []pageBlock {
	t.Helper()
	for i, b := range blocks {
		if b.file != "" {
			require.NoError(t, os.WriteFile(g.make(t, b.file), []byte(g.standIn(t, b.text)), 0o600))
			continue
		}
		text := g.standIn(t, b.text)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		// Commands in the cluster's namespaces start in the root folder.
		cmd := g.command(ctx, "bash", "-euo", "pipefail", "-c", "cd '"+g.top+"'\n"+text)
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		start := time.Now()
		err := cmd.Run()
		cancel()
		t.Logf("%s:%d, %.0f s\n%s\n%s", page, b.line, time.Since(start).Seconds(), indent(b.text, "$ "), tail(output.String(), 12))
		require.NoError(t, err, "%s:%d", page, b.line)
		if until != nil && until(b) {
			return blocks[i+1:]
		}
	}
	require.Nil(t, until, "%s has no block for this step of the test", page)
	return nil
}

func indent(text, with string) string {
	return with + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+strings.Repeat(" ", len(with)))
}

func tail(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func has(words string) func(pageBlock) bool {
	return func(b pageBlock) bool { return strings.Contains(b.text, words) }
}

// startBackend starts the backend that the guide's Collector sends to. The backend writes its input to the files that arrived
// reads.
func (g *guide) startBackend(t *testing.T) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "backend.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
receivers: {otlp: {protocols: {grpc: {endpoint: %q}}}}
exporters: {file: {path: %q, flush_interval: 100ms}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {profiles: {receivers: [otlp], exporters: [file]}}
`, backend, filepath.Join(g.lab, "state/collector/guide.jsonl")), 0o600))
	cmd := g.command(t.Context(), os.Getenv("COLLECTOR"), "--config", config, "--feature-gates=service.profilesSupport")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Wait() })
}

// whole requires that each of these pods has a whole stack.
func whole(pods ...string) func([]receiver.Sample) error {
	return func(samples []receiver.Sample) error {
		for _, pod := range pods {
			if !wholeStack(samples, pod) {
				return fmt.Errorf("no stack of the pod %s from burn_leaf to main", pod)
			}
		}
		return nil
	}
}

// removeInstalled removes the daemon and the Collector of earlier steps.
func (c cluster) removeInstalled(ctx context.Context) error {
	if _, err := c.try(ctx, "kubectl", "get", "namespace", "gadget"); err == nil {
		if _, err := c.try(ctx, "kubectl", "gadget", "undeploy", "--delete-namespace"); err != nil {
			return err
		}
	}
	_, err := c.try(ctx, "kubectl", "delete", "namespace", "observability", "--ignore-not-found", "--wait")
	return err
}

// beforeGuide lists the node's files and mounts from before the guide. The step that removes the guide's daemon compares with
// this list.
var beforeGuide []string

// testGuide runs the Kubernetes guide's commands, and checks that profiles arrive where the guide says.
func testGuide(t *testing.T, c cluster) {
	g := newGuide(t, c)
	t.Cleanup(g.remove)
	// The guide must not depend on anything from other steps. The images are built meanwhile.
	removed := make(chan error, 1)
	go func() { removed <- c.removeInstalled(t.Context()) }()
	chart(t, c)
	// This removes the signatures of an earlier run on this cluster. The page signs each image once, and an image with two
	// signatures is refused.
	for _, gadget := range []string{"profile_cpu", "profile_alloc"} {
		_, _ = c.try(t.Context(), "cosign", "clean", "--force", "--allow-http-registry", registryAddress+"/gadgets/"+gadget+":v1.0.0")
	}
	for _, name := range []string{"cosign.key", "cosign.pub", "gadget.yaml", "ca.crt", "post-render"} {
		g.make(t, name)
	}
	authority, err := os.ReadFile(filepath.Join(c.lab, "state/pki/ca.crt"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(g.top, "ca.crt"), authority, 0o600))

	blocks := pageBlocks(t, g.top, guidePage, "")
	pods := []string{"solo", "hostnet", "ledger-0"}
	rest := g.run(t, guidePage, blocks, has("cosign sign"))
	require.NoError(t, <-removed)
	c.in(t, "rm", "-rf", hookSocket, storage) // of an earlier daemon
	beforeGuide = c.traces(t)
	g.startBackend(t)
	rest = g.run(t, guidePage, rest, has("gadget deploy"))
	c.daemonPod(t)
	rest = g.run(t, guidePage, rest, has("--detach"))
	since := time.Now()
	c.eventuallyArrived(t, since, whole(pods...))
	t.Log("continuous profiling: whole stacks arrive")

	rest = g.run(t, guidePage, rest, has("rollout restart"))
	since = time.Now()
	c.eventuallyArrived(t, since, whole(pods...))
	t.Log("after a change of the config: the detached run goes on in the new pods")
	kept := c.kubectl(t, "-n", "gadget", "get", "daemonset/gadget", "-o",
		"jsonpath={.spec.template.spec.hostPID} {.spec.template.spec.containers[0].resources.limits.memory}")
	require.Equal(t, "true 1Gi", kept, "a later deploy keeps the patches")

	rest = g.run(t, guidePage, rest, has("kubectl kustomize"))
	c.daemonPod(t)
	since = time.Now()
	c.eventuallyArrived(t, since, whole(pods...))
	t.Log("after patching the manifests: the run goes on")

	g.fleet(t)
	c.daemonPod(t)
	since = time.Now()
	c.eventuallyArrived(t, since, whole(pods...))
	t.Log("installed for many nodes: the declared run sends")

	g.history(t)

	rest = g.run(t, guidePage, rest, has("helm install"))
	c.daemonPod(t)
	since = time.Now()
	c.eventuallyArrived(t, since, whole(pods...))
	t.Log("installed by the chart: its run sends without another command")
	g.run(t, fleetPage, slices.DeleteFunc(pageBlocks(t, g.top, fleetPage, firstRollout), func(b pageBlock) bool { return !withChart(b) }), nil)
	g.requirePatched(t)
	t.Log("installed by the chart with the patch for many nodes")
	g.run(t, guidePage, rest, nil)
	c.in(t, "rm", "-r", "/var/lib/ig-otel-profiles") // the history remains without its daemon
	for _, w := range g.wants {
		require.True(t, g.used[w[0]], "the page no longer says %q: the test does not need to replace it", w[0])
	}
}

// firstRollout is a section of the page for many nodes. Its commands that install with the chart are run separately.
const firstRollout = "Before the first rollout"

var withChart = has("helm upgrade")

// fleet runs the commands of the page for many nodes. The daemon is installed anew, as the page describes, and must start only
// once. A declared run replaces the detached run. The cluster's only node is also the node pool that tries a new daemon.
func (g *guide) fleet(t *testing.T) {
	t.Helper()
	g.kubectl(t, "gadget", "undeploy") // keeps the namespace with the detached runs
	rest := g.run(t, fleetPage, slices.DeleteFunc(pageBlocks(t, g.top, fleetPage, ""), withChart), has("--print-only"))
	g.requirePatched(t)
	require.Equal(t, "1", g.kubectl(t, "-n", "gadget", "get", "daemonset/gadget", "-o", "jsonpath={.metadata.generation}"), "the daemon was rolled out more than once")
	pod := g.kubectl(t, "-n", "gadget", "get", "pods", "-l", "k8s-app=gadget", "-o", "jsonpath={.items[*].metadata.uid}")
	rest = g.run(t, fleetPage, rest, has("delete pod"))
	require.NotEqual(t, pod, g.kubectl(t, "-n", "gadget", "get", "pods", "-l", "k8s-app=gadget", "-o", "jsonpath={.items[*].metadata.uid}"))
	g.run(t, fleetPage, rest, nil)
	g.requirePatched(t)
	// The Collector's address in this cluster differs from the address on the page.
	g.kubectl(t, "-n", "gadget", "delete", "networkpolicy", "egress")
}

// requirePatched requires the settings for many nodes.
func (g *guide) requirePatched(t *testing.T) {
	t.Helper()
	const pod = "{.spec.template.spec"
	require.Equal(t, "RollingUpdate 10% system-node-critical true 384Mi 1Gi", g.kubectl(t, "-n", "gadget", "get", "daemonset/gadget", "-o",
		"jsonpath={.spec.updateStrategy.type} {.spec.updateStrategy.rollingUpdate.maxUnavailable} "+pod+".priorityClassName} "+pod+".hostPID} "+
			pod+".containers[0].resources.requests.memory} "+pod+".containers[0].resources.limits.memory}"))
}

// history queries the history of the daemon that Kustomize has patched, with the page's commands.
func (g *guide) history(t *testing.T) {
	t.Helper()
	rest := g.run(t, historyPage, pageBlocks(t, g.top, historyPage, "In Kubernetes"), has("--detach"))
	pod, _ := g.daemonPod(t)
	g.requireHistory(t, pod)
	g.run(t, historyPage, rest, nil)
	g.kubectl(t, "gadget", "delete", "recorder")
}

// chart builds Inspektor Gadget's chart from its module, as Inspektor Gadget's release does.
func chart(t *testing.T, c cluster) {
	t.Helper()
	var module struct{ Dir, Version string }
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-json", "github.com/inspektor-gadget/inspektor-gadget")
	cmd.Dir = filepath.Join(c.dir, "modules/kubectl-gadget")
	out, err := cmd.Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &module))
	folder := filepath.Join(c.lab, "chart")
	require.NoError(t, os.RemoveAll(folder))
	require.NoError(t, os.CopyFS(folder, os.DirFS(filepath.Join(module.Dir, "charts/gadget"))))
	template, err := os.ReadFile(filepath.Join(folder, "Chart.yaml.tmpl"))
	require.NoError(t, err)
	version := strings.TrimPrefix(module.Version, "v")
	text := strings.NewReplacer("%VERSION%", version, "%APP_VERSION%", module.Version).Replace(string(template))
	require.NotContains(t, text, "%")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "Chart.yaml"), []byte(text), 0o600))
}
