package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// expectation is a workload in the cluster, with the identity that its profiles must have.
type expectation struct {
	kind string
	// pod is the pod's name, or a prefix of it followed by a star.
	pod, container string
	owner, service string // owner as attribute=value
	extra          map[string]string
	pods           int
}

// These kinds of workload must exist in the cluster.
const (
	afterInit   = "after its init"
	endedDuring = "ended during"
)

var expectations = []expectation{
	{
		kind: "Deployment", pod: "cart-*", container: "burn", owner: "k8s.deployment.name=cart", service: "cart", pods: 2,
		extra: map[string]string{"k8s.pod.label.tier": "backend"},
	},
	{
		kind: "Deployment, labels", pod: "web-*", container: "burn", owner: "k8s.deployment.name=web", service: "storefront",
		extra: map[string]string{"service.version": "2.7"},
	},
	{kind: "StatefulSet", pod: "ledger-0", container: "burn", owner: "k8s.statefulset.name=ledger", service: "ledger"},
	{kind: "DaemonSet", pod: "agent-*", container: "burn", owner: "k8s.daemonset.name=agent", service: "agent"},
	{kind: "Job", pod: "report-*", container: "burn", owner: "k8s.job.name=report", service: "report"},
	{kind: "CronJob", pod: "nightly-by-hand-*", container: "burn", owner: "k8s.cronjob.name=nightly", service: "nightly"},
	{kind: "bare pod", pod: "solo", container: "burn", service: "solo"},
	{kind: "two containers", pod: "duo", container: "left", service: "duo"},
	{kind: "two containers", pod: "duo", container: "right", service: "duo"},
	{kind: "host network", pod: "hostnet", container: "burn", service: "hostnet"},
	{kind: "started during", pod: "late", container: "burn", service: "late"},
	{kind: "init container", pod: "prepared", container: "prepare", service: "prepared"},
	{kind: afterInit, pod: "prepared", container: "burn", service: "prepared"},
	{kind: endedDuring, pod: "brief", container: "burn", service: "brief"},
}

// ownerAttributes lists all attributes that name an owner. A resource must have only the expected one.
var ownerAttributes = []string{
	"k8s.deployment.name", "k8s.replicaset.name", "k8s.statefulset.name", "k8s.daemonset.name", "k8s.job.name", "k8s.cronjob.name",
}

// problems compares a resource with the expectation.
func (e expectation) problems(res map[string]string) []string {
	var wrong []string
	want := func(key, value string) {
		if res[key] != value {
			wrong = append(wrong, fmt.Sprintf("%s is %q, not %q", key, res[key], value))
		}
	}
	want("k8s.namespace.name", "shop")
	want("k8s.container.name", e.container)
	want("k8s.node.name", "node1")
	want("host.name", "node1")
	want("service.name", e.service)
	want("service.namespace", "shop")
	want("service.instance.id", "shop."+res["k8s.pod.name"]+"."+e.container)
	want("container.name", e.container)
	want("container.image.name", "localhost/burn")
	want("container.runtime.name", "containerd")
	want("os.type", "linux")
	want("test.tenant", tenant)
	for key, value := range e.extra {
		want(key, value)
	}
	owner, name, _ := strings.Cut(e.owner, "=")
	for _, key := range ownerAttributes {
		if key == owner {
			want(key, name)
		} else if res[key] != "" {
			wrong = append(wrong, fmt.Sprintf("%s is %q without reason", key, res[key]))
		}
	}
	if len(res["container.id"]) != 64 {
		wrong = append(wrong, fmt.Sprintf("container.id is %q", res["container.id"]))
	}
	for key, value := range res {
		if value == "" {
			wrong = append(wrong, key+" is empty")
		}
	}
	slices.Sort(wrong)
	return wrong
}

// testIdentity runs the gadget on every kind of workload, and on a process of the host. It then checks the profiles that the
// Collector received.
func testIdentity(t *testing.T, c cluster) {
	// This process runs on the node, outside containers.
	hostBurn := c.command(t.Context(), filepath.Join(c.lab, "burn"))
	require.NoError(t, hostBurn.Start())
	t.Cleanup(func() {
		_ = hostBurn.Process.Kill()
		_ = hostBurn.Wait()
	})

	c.hold(t, "prepare")
	c.hold(t, "brief")
	since := time.Now()
	g := c.start(t, "-A", "--otel-profiles-exporter=collector", "--include-host")
	g.waitFor(t, "solo", 1)
	c.apply(t, "during.yaml")
	c.eventuallyArrived(t, since, allOf(func(e expectation) bool { return e.kind != afterInit && e.kind != endedDuring }))
	c.release(t, "prepare")
	c.eventuallyArrived(t, since, allOf(func(e expectation) bool { return e.kind != endedDuring }))
	c.eventuallyArrived(t, since, func(s []receiver.Sample) error {
		if host := byContainer(s)["/"]; host == nil || !host.burns {
			return errors.New("no burn_leaf of the host")
		}
		return nil
	})
	g.stop(t)
	// The interval of this run is longer than the pod's life.
	g = c.start(t, "-n", "shop", "--podname", "brief", "--otel-profiles-exporter=collector", "--otel-profiles-interval=30m")
	c.apply(t, "brief.yaml")
	g.waitForBurn(t, "brief")
	c.release(t, "brief")
	c.kubectl(t, "-n", "shop", "wait", "pod", "brief", "--for=jsonpath={.status.phase}=Succeeded", "--timeout="+patience.String())
	g.stop(t)
	c.eventuallyArrived(t, since, allOf(func(expectation) bool { return true }))

	groups := byContainer(c.arrived(t, since))
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "workload\tpod/container\texpected identity\tsamples\tarrived as")
	var wrong []string
	for _, e := range expectations {
		for _, key := range e.matches(groups) {
			g := groups[key]
			problems := e.problems(g.resource)
			verdict := "exactly that"
			if len(problems) > 0 {
				verdict = "WRONG: " + strings.Join(problems, ", ")
				wrong = append(wrong, key+": "+verdict)
			}
			fmt.Fprintf(w, "%s\t%s\tservice.name=%s %s\t%d\t%s\n", e.kind, key, e.service, e.owner, g.value, verdict)
		}
	}
	host := groups["/"]
	verdict := "exactly that"
	if host.resource["service.name"] == "" || host.resource["host.name"] != "node1" ||
		host.resource["k8s.node.name"] != "node1" || host.resource["container.id"] != "" {
		verdict = fmt.Sprintf("WRONG: %v", host.resource)
		wrong = append(wrong, "host process: "+verdict)
	}
	fmt.Fprintf(w, "host process\t\tservice.name=%s\t%d\t%s\n", host.resource["service.name"], host.value, verdict)
	require.NoError(t, w.Flush())
	t.Logf("profiles that arrived at the Collector\n%s", table.String())
	require.Empty(t, wrong)
}

// allOf requires samples with burn_leaf from every selected expectation's container.
func allOf(which func(expectation) bool) func([]receiver.Sample) error {
	return func(s []receiver.Sample) error {
		groups := byContainer(s)
		var missing []string
		for _, e := range expectations {
			keys := slices.DeleteFunc(e.matches(groups), func(key string) bool { return !groups[key].burns })
			if n := max(e.pods, 1); which(e) && len(keys) < n {
				missing = append(missing, fmt.Sprintf("%s (%s/%s): burn_leaf of %d containers, not of %d", e.kind, e.pod, e.container, len(keys), n))
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("missing: %s", strings.Join(missing, "; "))
		}
		return nil
	}
}

func (e expectation) matches(groups map[string]*container) []string {
	var keys []string
	for key := range groups {
		pod, name, _ := strings.Cut(key, "/")
		prefix, open := strings.CutSuffix(e.pod, "*")
		if name == e.container && (pod == e.pod || open && strings.HasPrefix(pod, prefix)) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
