// Package e2e tests this project's daemon in a real Kubernetes, with a real
// Collector in the cluster: test/k8s/run.sh brings both up and runs it.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

const (
	registryAddress = "10.88.0.1:5000"
	// image is the signed gadget, unsignedImage the same without a signature.
	image         = registryAddress + "/profile_cpu:test"
	unsignedImage = registryAddress + "/unsigned:test"
	polyglotImage = registryAddress + "/profile_polyglot:test"
	allocImage    = registryAddress + "/profile_alloc:test"
	lockImage     = registryAddress + "/profile_lock:test"
	tenant        = "tenant-from-a-secret"
)

// TestKubernetes runs in order: later parts use what earlier ones have set up.
func TestKubernetes(t *testing.T) {
	lab := os.Getenv("LAB")
	if lab == "" {
		t.Skip("needs a running test cluster: use test/k8s/run.sh")
	}
	dir, err := filepath.Abs("..")
	require.NoError(t, err)
	c := cluster{lab: lab, dir: dir}

	type step struct {
		name string
		run  func(*testing.T, cluster)
	}
	steps := []step{
		{"deploy", testDeploy},
		{"verification", testVerification},
		{"identity", testIdentity},
		{"cost", testCost},
		{"collector outage", testCollectorOutage},
		{"two clients", testTwoClients},
		{"headless and daemon restart", testHeadlessAndRestart},
		{"roll-out of a config", testRollout},
		{"locks of a namespace", testLocks},
		{"whole stacks", testPolyglot},
		{"memory of a pod", testMemory},
		{"leak of a pod", testLeak},
		{"short pods", testShortPods},
		{"hook modes", testHookModes},
		{"upgrade", testUpgrade},
		{"life", testLife},
		{"guide", testGuide},
		{"trust", testTrust},
	}
	if text := os.Getenv("SOAK"); text != "" {
		duration, err := time.ParseDuration(text)
		require.NoError(t, err, "SOAK")
		steps = []step{{"deploy", testDeploy}, {"soak", testSoak(duration)}}
	}
	var took bytes.Buffer
	for _, step := range steps {
		start := time.Now()
		ok := t.Run(step.name, func(t *testing.T) { step.run(t, c) })
		fmt.Fprintf(&took, "%6.1f s  %s\n", time.Since(start).Seconds(), step.name)
		if !ok {
			t.Logf("the step began at %s; what there is now:\n%s", start.Format("15:04:05.0"), c.describe())
			break
		}
	}
	t.Logf("took\n%s", took.String())
}

// describe is for people who have no more than the log of a failed step.
func (c cluster) describe() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var b strings.Builder
	section := func(title, text string, err error) {
		if err != nil {
			text += err.Error()
		}
		fmt.Fprintf(&b, "-- %s\n%s\n", title, strings.TrimSpace(text))
	}
	figures, err := c.counters(ctx)
	section("the daemon's counters", figures.text, err)
	for _, s := range []struct {
		title string
		args  []string
	}{
		{"pods", []string{"get", "pods", "-A", "-o", "wide"}},
		{"the daemon's log", []string{"-n", "gadget", "logs", "-l", "k8s-app=gadget", "--tail=60"}},
		{"the Collector's log", []string{"-n", "observability", "logs", "-l", "app=collector", "--tail=20"}},
	} {
		text, err := c.try(ctx, append([]string{"kubectl"}, s.args...)...)
		section(s.title, text, err)
	}
	load, err := os.ReadFile("/proc/loadavg")
	section("load of the machine", string(load), err)
	return b.String()
}

// testDeploy brings up the Collector, the daemon with "kubectl gadget deploy",
// and its secrets, as the Kubernetes guide describes it.
func testDeploy(t *testing.T, c cluster) {
	c.apply(t, "collector.yaml")
	c.kubectl(t, "-n", "observability", "rollout", "status", "deployment/collector", "--timeout="+patience.String())
	c.deploy(t, "daemon.yaml")
	c.kubectl(t, "-n", "gadget", "create", "secret", "generic", "otel-profiles",
		"--from-literal=EXPORTERS_COLLECTOR_HEADERS=x-scope-orgid="+tenant)
	c.kubectl(t, "-n", "gadget", "set", "env", "daemonset/gadget", "--from=secret/otel-profiles",
		"--prefix=INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_")
	// Without a request the daemon gets what others leave, and fails its probes on a busy machine. On a
	// very busy one it fails them with a request, too, and would be ended in the middle of a step.
	c.kubectl(t, "-n", "gadget", "set", "resources", "daemonset/gadget", "--requests=cpu=500m,memory=256Mi")
	c.patchProbes(t)
	c.daemonPod(t)
	c.apply(t, "workloads.yaml")
	c.kubectl(t, "-n", "shop", "create", "job", "nightly-by-hand", "--from=cronjob/nightly")
	for _, what := range []string{"deployment/cart", "deployment/web", "statefulset/ledger", "daemonset/agent"} {
		c.kubectl(t, "-n", "shop", "rollout", "status", what, "--timeout="+patience.String())
	}
	c.kubectl(t, "-n", "shop", "wait", "pod", "--all", "--for=condition=Ready", "--timeout="+patience.String())
}

// patchProbes makes probes patient in fields that the manifests do not set, which a later deploy therefore leaves alone.
func (c cluster) patchProbes(t *testing.T) {
	t.Helper()
	const probes = "/spec/template/spec/containers/0/"
	c.kubectl(t, "-n", "gadget", "patch", "daemonset/gadget", "--type=json", "-p", `[
		{"op": "add", "path": "`+probes+`livenessProbe/failureThreshold", "value": 120},
		{"op": "add", "path": "`+probes+`startupProbe/timeoutSeconds", "value": 30}]`)
}

// daemonConfig is the file for --daemon-config, with the test's key.
func (c cluster) daemonConfig(t *testing.T, name string, variables ...string) string {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(c.lab, "cosign.pub"))
	require.NoError(t, err)
	indented := strings.ReplaceAll(strings.TrimSpace(string(key)), "\n", "\n        ")
	return c.manifest(t, name, append(variables, "@PUBLIC_KEY@", indented)...)
}

func (c cluster) deploy(t *testing.T, config string, variables ...string) {
	t.Helper()
	path := c.daemonConfig(t, config, variables...)
	// Not --verify-image=false: it would switch off the verification of gadgets in the config, too.
	c.kubectl(t, "gadget", "deploy", "-q", "--image", "localhost/inspektor-gadget:test", "--image-pull-policy", "Never",
		"--daemon-config", path)
}

// testVerification: the daemon runs a gadget that is signed with the key in
// its config, and refuses the same gadget without a signature.
func testVerification(t *testing.T, c cluster) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.try(ctx, "kubectl", "gadget", "run", unsignedImage, "--timeout", "1")
	require.ErrorContains(t, err, "signing information")
	c.kubectl(t, "gadget", "run", image, "-n", "shop", "--timeout", "1")
}

// expectation is a workload of the cluster and who its profiles have to be of.
type expectation struct {
	kind string
	// pod is the pod's name or, with a star at the end, how it starts.
	pod, container string
	owner, service string // owner as attribute=value
	extra          map[string]string
	pods           int
}

// The kinds that the test has to bring about.
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

// ownerAttributes are all that name an owner: a resource has the expected one and no other.
var ownerAttributes = []string{
	"k8s.deployment.name", "k8s.replicaset.name", "k8s.statefulset.name", "k8s.daemonset.name", "k8s.job.name", "k8s.cronjob.name",
}

// problems compares a resource with what is expected of it.
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

// testIdentity runs the gadget over every kind of workload, and over a process
// of the host, and reads from the Collector whose profiles arrived.
func testIdentity(t *testing.T, c cluster) {
	// A process of the node that is in no container.
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
	// The window of this run is longer than the pod lives.
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
	t.Logf("whose profiles arrived at the Collector\n%s", table.String())
	require.Empty(t, wrong)
}

// allOf wants samples with burn_leaf of every container of these expectations.
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

// testCost prints what the daemon uses for the same gadget with and without
// the exporter.
func testCost(t *testing.T, c cluster) {
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "run\tCPU\tresident at the end")
	for _, way := range []struct {
		name string
		args []string
	}{
		{"without exporter", nil},
		{"with exporter", []string{"--otel-profiles-exporter=collector"}},
	} {
		g := c.start(t, append([]string{"-A"}, way.args...)...)
		g.waitFor(t, "solo", 2)
		began := time.Now()
		pid := c.daemonProcess(t)
		before := usageOf(t, pid)
		time.Sleep(15 * time.Second)
		after := usageOf(t, pid)
		took := time.Since(began)
		g.stop(t)
		cpu := after.cpu - before.cpu
		fmt.Fprintf(w, "%s\t%.1f %% of one CPU\t%d MiB\n", way.name, 100*cpu.Seconds()/took.Seconds(), after.rss>>20)
		require.Less(t, after.rss, int64(1<<30), way.name)
	}
	require.NoError(t, w.Flush())
	t.Logf("what the daemon uses, streaming all rows to one client as well\n%s", table.String())
}

// testCollectorOutage takes the Collector away during two runs, one over gRPC and one over HTTP. What was
// gathered meanwhile arrives when it is back, under its own time, also of a pod that has come and gone.
func testCollectorOutage(t *testing.T, c cluster) {
	c.kubectl(t, "-n", "shop", "delete", "pod", "brief", "--ignore-not-found")
	c.hold(t, "brief")
	since := time.Now()
	runs := []*gadget{
		c.start(t, "-n", "shop", "--otel-profiles-exporter=collector"),
		c.start(t, "-n", "shop", "--otel-profiles-exporter=collector-http"),
	}
	c.eventuallyArrived(t, since, overBoth(some("solo", since, since.Add(time.Hour))))

	c.kubectl(t, "-n", "observability", "scale", "deployment/collector", "--replicas=0")
	c.kubectl(t, "-n", "observability", "wait", "pod", "-l", "app=collector", "--for=delete", "--timeout="+patience.String())
	down := time.Now()
	// A pod comes and goes while nothing can be sent.
	c.apply(t, "brief.yaml")
	for _, g := range runs {
		g.waitFor(t, "solo", 3)
		g.waitFor(t, "brief", 2)
	}
	c.release(t, "brief")
	c.kubectl(t, "-n", "shop", "wait", "pod", "brief", "--for=jsonpath={.status.phase}=Succeeded", "--timeout="+patience.String())
	up := time.Now()
	c.kubectl(t, "-n", "observability", "scale", "deployment/collector", "--replicas=1")
	c.kubectl(t, "-n", "observability", "rollout", "status", "deployment/collector", "--timeout="+patience.String())
	ready := time.Now()
	c.eventuallyArrived(t, since, overBoth(some("solo", down, up)))
	c.eventuallyArrived(t, since, overBoth(some("brief", down, up)))
	t.Logf("the Collector was away for %.0f s; what was gathered meanwhile had arrived %.1f s after it was back",
		ready.Sub(down).Seconds(), time.Since(ready).Seconds())
	for _, g := range runs {
		g.stop(t)
	}
	c.requireAccounted(t)
}

// overBoth has the check hold for what came over gRPC and for what came over HTTP. Only the exporter
// for gRPC has a tenant in its headers.
func overBoth(check func([]receiver.Sample) error) func([]receiver.Sample) error {
	return func(samples []receiver.Sample) error {
		var grpc, http []receiver.Sample
		for _, s := range samples {
			if s.Resource["test.tenant"] == tenant {
				grpc = append(grpc, s)
			} else {
				http = append(http, s)
			}
		}
		var errs []error
		if err := check(grpc); err != nil {
			errs = append(errs, fmt.Errorf("over gRPC: %w", err))
		}
		if err := check(http); err != nil {
			errs = append(errs, fmt.Errorf("over HTTP: %w", err))
		}
		return errors.Join(errs...)
	}
}

// requireAccounted holds the daemon's own figures against each other: once all
// gadgets have ended, every row that it read was delivered or dropped with a reason.
func (c cluster) requireAccounted(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		figures, err := c.counters(ctx)
		if err != nil {
			return err
		}
		read, delivered, dropped := figures.rows()
		if read == 0 || read != delivered+dropped {
			return fmt.Errorf("%.0f rows read, %.0f delivered, %.0f dropped:\n%s", read, delivered, dropped, figures.text)
		}
		t.Logf("rows read %.0f, delivered %.0f, dropped %.0f", read, delivered, dropped)
		return nil
	})
}

// testTwoClients runs the gadget for two clients at once over one exporter,
// and for a third over HTTP, each for a pod of its own. The one that ends
// first leaves the others alone.
func testTwoClients(t *testing.T, c cluster) {
	since := time.Now()
	pods := []string{"solo", "hostnet", "ledger-0"}
	gadgets := []*gadget{
		c.start(t, "-n", "shop", "--podname", pods[0], "--otel-profiles-exporter=collector"),
		c.start(t, "-n", "shop", "--podname", pods[1], "--otel-profiles-exporter=collector"),
		c.start(t, "-n", "shop", "--podname", pods[2], "--otel-profiles-exporter=collector-http"),
	}
	for i, g := range gadgets {
		g.waitFor(t, pods[i], 1)
	}
	gadgets[0].stop(t)
	firstEnded := time.Now()
	// Two times are more than what may have been on its way when the first ended.
	gadgets[1].waitFor(t, pods[1], 2)
	gadgets[2].waitFor(t, pods[2], 2)
	gadgets[1].stop(t)
	gadgets[2].stop(t)
	c.requireAccounted(t)
	forever := since.Add(time.Hour)
	c.eventuallyArrived(t, since, func(samples []receiver.Sample) error {
		return errors.Join(
			some(pods[0], since, firstEnded)(samples),
			some(pods[1], firstEnded, forever)(samples),
			some(pods[2], firstEnded, forever)(samples))
	})
	arrived := c.arrived(t, since)
	for _, s := range arrived {
		require.Contains(t, pods, s.Resource["k8s.pod.name"], "a sample of a pod that no run is about; arrived:\n%s", inventory(arrived))
	}
	require.Zero(t, startedAfter(arrived, pods[0], firstEnded), inventory(arrived))
}

// startedAfter sums the values of a pod's samples whose profiles start after the time.
func startedAfter(samples []receiver.Sample, pod string, after time.Time) int64 {
	var sum int64
	for _, s := range samples {
		if s.Resource["k8s.pod.name"] == pod && s.Start.After(after) {
			sum += s.Total()
		}
	}
	return sum
}

// testHeadlessAndRestart: an instance without a client goes on, also in a new
// daemon; what the old daemon had read when it was told to stop arrives.
func testHeadlessAndRestart(t *testing.T, c cluster) {
	since := time.Now()
	// The window is still open when the daemon ends. Nobody reads what such a run prints.
	c.kubectl(t, "gadget", "run", image, "-n", "shop", "--detach", "--name", "always-on",
		"--otel-profiles-exporter=collector", "--otel-profiles-interval=30m", "--format-stacks=false")
	attached := c.follow(t, "attach", "always-on", "-o", "json")
	attached.waitFor(t, "solo", 5) // that none of them is in burn_leaf is unlikely
	name, _ := c.daemonPod(t)
	logs := make(chan string, 1)
	follow := c.command(t.Context(), "kubectl", "-n", "gadget", "logs", "-f", "--tail=5", name)
	go func() {
		out, _ := follow.CombinedOutput()
		logs <- string(out)
	}()
	told := time.Now()
	c.kubectl(t, "-n", "gadget", "delete", "pod", name)
	gone := time.Now()
	t.Logf("the daemon's pod was gone after %.1f s; its last words:\n%s", gone.Sub(told).Seconds(), <-logs)
	// The window that was open when the daemon was told to stop: it begins before and ends after.
	c.eventuallyArrived(t, since, func(samples []receiver.Sample) error {
		open := 0
		for _, s := range samples {
			if s.Resource["k8s.pod.name"] != "solo" || !s.Start.Before(told) || s.End.Before(told) {
				continue
			}
			if slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return f.Name == "burn_leaf" }) {
				return nil
			}
			open++
		}
		return fmt.Errorf("%d samples of the window that was open at %s, none in burn_leaf", open, told.Format("15:04:05.0"))
	})

	// The new daemon takes up the instance by itself.
	c.daemonPod(t)
	again := time.Now()
	attached = c.follow(t, "attach", "always-on", "-o", "json")
	attached.waitFor(t, "solo", 2)
	c.kubectl(t, "gadget", "delete", "always-on")
	c.eventuallyArrived(t, again, some("solo", again, again.Add(time.Hour)))
}

// testRollout changes the config: a running daemon keeps the old one until it
// is restarted.
func testRollout(t *testing.T, c cluster) {
	_, before := c.daemonPod(t)
	c.deploy(t, "daemon.yaml", "pod_labels: [tier]", "pod_labels: [tier]\n        resource: [deployment.environment.name=staging]")
	_, same := c.daemonPod(t)
	require.Equal(t, before, same, "a changed ConfigMap restarts nothing")
	c.kubectl(t, "-n", "gadget", "rollout", "restart", "daemonset/gadget")
	_, after := c.daemonPod(t)
	require.NotEqual(t, before, after)

	since := time.Now()
	g := c.start(t, "-n", "shop", "--otel-profiles-exporter=collector")
	g.waitFor(t, "solo", 1)
	g.stop(t)
	c.eventuallyArrived(t, since, func(samples []receiver.Sample) error {
		for _, s := range samples {
			if s.Resource["deployment.environment.name"] == "staging" {
				return nil
			}
		}
		return fmt.Errorf("no resource of %d samples has the new attribute", len(samples))
	})
}

// testHookModes starts the daemon in the modes whose hooks the image carries:
// it copies them to the host and becomes ready.
func testHookModes(t *testing.T, c cluster) {
	for mode, files := range map[string][]string{
		"nri": {"/opt/nri/bin/nrigadget", "/etc/nri/conf.json"},
		"crio": {
			"/opt/hooks/oci/ocihookgadget", "/opt/hooks/oci/prestart.sh", "/opt/hooks/oci/poststop.sh",
			"/etc/containers/oci/hooks.d/gadget-prestart.json", "/etc/containers/oci/hooks.d/gadget-poststop.json",
		},
	} {
		c.deploy(t, "daemon.yaml", "hook-mode: auto", "hook-mode: "+mode)
		c.kubectl(t, "-n", "gadget", "rollout", "restart", "daemonset/gadget")
		c.daemonPod(t)
		for _, file := range files {
			eventually(t, func() error {
				if _, err := c.try(t.Context(), "test", "-s", file); err != nil {
					return fmt.Errorf("hook mode %s: %w", mode, err)
				}
				return nil
			})
		}
	}
	// /cleanup, which the manifest calls before the pod stops, takes them away again.
	c.kubectl(t, "gadget", "undeploy")
	eventually(t, func() error {
		var exit *exec.ExitError
		err := c.command(t.Context(), "test", "-e", "/opt/hooks/oci/ocihookgadget").Run()
		switch {
		case err == nil:
			return errors.New("the hook is still on the host")
		case errors.As(err, &exit) && exit.ExitCode() == 1:
			return nil
		}
		return err
	})
}
