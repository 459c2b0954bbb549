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

	steps := []struct {
		name string
		run  func(*testing.T, cluster)
	}{
		{"deploy", testDeploy},
		{"verification", testVerification},
		{"identity", testIdentity},
		{"cost", testCost},
		{"collector outage", testCollectorOutage},
		{"two clients", testTwoClients},
		{"headless and daemon restart", testHeadlessAndRestart},
		{"roll-out of a config", testRollout},
		{"hook modes", testHookModes},
	}
	var took bytes.Buffer
	for _, step := range steps {
		start := time.Now()
		ok := t.Run(step.name, func(t *testing.T) { step.run(t, c) })
		fmt.Fprintf(&took, "%6.1f s  %s\n", time.Since(start).Seconds(), step.name)
		if !ok {
			t.Logf("the daemon's log:\n%s", c.daemonLog())
			break
		}
	}
	t.Logf("took\n%s", took.String())
}

// daemonLog is for people: the end of the daemon's log, or why there is none.
func (c cluster) daemonLog() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := c.try(ctx, "kubectl", "-n", "gadget", "logs", "-l", "k8s-app=gadget", "--tail=60")
	if err != nil {
		return err.Error()
	}
	return out
}

// testDeploy brings up the Collector, the daemon with "kubectl gadget deploy",
// and its secrets, as the Kubernetes guide describes it.
func testDeploy(t *testing.T, c cluster) {
	c.apply(t, "collector.yaml")
	c.kubectl(t, "-n", "observability", "rollout", "status", "deployment/collector", "--timeout=60s")
	c.deploy(t, "daemon.yaml")
	c.kubectl(t, "-n", "gadget", "create", "secret", "generic", "otel-profiles",
		"--from-literal=EXPORTERS_COLLECTOR_HEADERS=x-scope-orgid="+tenant)
	c.kubectl(t, "-n", "gadget", "set", "env", "daemonset/gadget", "--from=secret/otel-profiles",
		"--prefix=INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_")
	// Without a request the daemon gets what others leave, and fails its probes on a busy machine.
	c.kubectl(t, "-n", "gadget", "set", "resources", "daemonset/gadget", "--requests=cpu=500m,memory=256Mi")
	c.daemonPod(t)
	c.apply(t, "workloads.yaml")
	c.kubectl(t, "-n", "shop", "create", "job", "nightly-by-hand", "--from=cronjob/nightly")
	for _, what := range []string{"deployment/cart", "deployment/web", "statefulset/ledger", "daemonset/agent"} {
		c.kubectl(t, "-n", "shop", "rollout", "status", what, "--timeout=120s")
	}
	c.kubectl(t, "-n", "shop", "wait", "pod", "--all", "--for=condition=Ready", "--timeout=120s")
}

func (c cluster) deploy(t *testing.T, config string, variables ...string) {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(c.lab, "cosign.pub"))
	require.NoError(t, err)
	indented := strings.ReplaceAll(strings.TrimSpace(string(key)), "\n", "\n        ")
	path := c.manifest(t, config, append(variables, "@PUBLIC_KEY@", indented)...)
	// Not --verify-image=false: it would switch off the verification of gadgets in the config, too.
	c.kubectl(t, "gadget", "deploy", "-q", "--image", "localhost/inspektor-gadget:test", "--image-pull-policy", "Never",
		"--daemon-config", path)
}

// testVerification: the daemon runs a gadget that is signed with the key in
// its config, and refuses the same gadget without a signature.
func testVerification(t *testing.T, c cluster) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := c.try(ctx, "kubectl", "gadget", "run", unsignedImage, "--timeout", "1")
	require.ErrorContains(t, err, "signing information")
	c.start(t, "-n", "shop", "--timeout", "1").wait(t)
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
	{kind: "after its init", pod: "prepared", container: "burn", service: "prepared"},
	{kind: "ended during", pod: "brief", container: "burn", service: "brief"},
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

	since := time.Now()
	g := c.start(t, "-A", "--otel-profiles-exporter=collector", "--otel-profiles-interval=10s", "--include-host", "--timeout", "30")
	c.eventuallyArrived(t, since, func(s []receiver.Sample) error {
		if len(s) == 0 {
			return fmt.Errorf("nothing has arrived; the gadget says %q", g.stderr.String())
		}
		return nil
	})
	c.apply(t, "during.yaml")
	g.wait(t)

	groups := map[string]*container{}
	var missing []string
	c.settle(t, since, func(s []receiver.Sample) error {
		groups = byContainer(s)
		missing = nil
		for _, e := range expectations {
			if n := len(e.matches(groups)); n < max(e.pods, 1) {
				missing = append(missing, fmt.Sprintf("%s (%s/%s): %d containers", e.kind, e.pod, e.container, n))
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("missing: %s", strings.Join(missing, "; "))
		}
		return nil
	})

	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "workload\tpod/container\texpected identity\tsamples\tarrived as")
	var wrong []string
	for _, e := range expectations {
		keys := e.matches(groups)
		for _, key := range keys {
			g := groups[key]
			problems := e.problems(g.resource)
			if !g.burns {
				problems = append(problems, "burn_leaf is in no stack")
			}
			verdict := "exactly that"
			if len(problems) > 0 {
				verdict = "WRONG: " + strings.Join(problems, ", ")
				wrong = append(wrong, key+": "+verdict)
			}
			fmt.Fprintf(w, "%s\t%s\tservice.name=%s %s\t%d\t%s\n", e.kind, key, e.service, e.owner, g.value, verdict)
		}
		if len(keys) == 0 {
			fmt.Fprintf(w, "%s\t%s/%s\tservice.name=%s %s\t0\tMISSING\n", e.kind, e.pod, e.container, e.service, e.owner)
		}
	}
	host := groups["/"]
	verdict := "exactly that"
	switch {
	case host == nil:
		verdict, host = "MISSING", &container{}
	case host.resource["service.name"] != "host", host.resource["host.name"] != "node1",
		host.resource["k8s.node.name"] != "node1", host.resource["container.id"] != "", !host.burns:
		verdict = fmt.Sprintf("WRONG: %v, burn_leaf %t", host.resource, host.burns)
	}
	if verdict != "exactly that" {
		wrong = append(wrong, "host process: "+verdict)
	}
	fmt.Fprintf(w, "host process\t\tservice.name=host\t%d\t%s\n", host.value, verdict)
	require.NoError(t, w.Flush())
	t.Logf("whose profiles arrived at the Collector\n%s", table.String())
	require.Empty(t, missing)
	require.Empty(t, wrong)
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

// eventuallyArrived waits up to 20 s for samples since the given time to pass the check.
func (c cluster) eventuallyArrived(t *testing.T, since time.Time, check func([]receiver.Sample) error) {
	t.Helper()
	eventually(t, 20*time.Second, func() error { return check(c.arrived(t, since)) })
}

// settle is eventuallyArrived that leaves the verdict to its caller.
func (c cluster) settle(t *testing.T, since time.Time, check func([]receiver.Sample) error) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); check(c.arrived(t, since)) != nil && time.Now().Before(deadline); {
		time.Sleep(250 * time.Millisecond)
	}
}

// testCost prints what the daemon uses for the same gadget with and without
// the exporter.
func testCost(t *testing.T, c cluster) {
	const run = 15 * time.Second
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
		g := c.start(t, append([]string{"-A", "--timeout", fmt.Sprint(run.Seconds() + 5)}, way.args...)...)
		time.Sleep(4 * time.Second) // the gadget starts
		before := c.daemonUsage(t)
		time.Sleep(run)
		after := c.daemonUsage(t)
		g.wait(t)
		cpu := after.cpu - before.cpu
		fmt.Fprintf(w, "%s\t%.1f %% of one CPU\t%d MiB\n", way.name, 100*cpu.Seconds()/run.Seconds(), after.rss>>20)
		require.Less(t, after.rss, int64(1<<30), way.name)
	}
	require.NoError(t, w.Flush())
	t.Logf("what the daemon uses, streaming all rows to one client as well\n%s", table.String())
}

// testCollectorOutage takes the Collector away during a run. What was gathered
// meanwhile arrives when it is back, under its own time.
func testCollectorOutage(t *testing.T, c cluster) {
	since := time.Now()
	g := c.start(t, "-n", "shop", "--otel-profiles-exporter=collector", "--timeout", "40")
	c.eventuallyArrived(t, since, some("solo", since, since.Add(time.Hour)))

	c.kubectl(t, "-n", "observability", "scale", "deployment/collector", "--replicas=0")
	c.kubectl(t, "-n", "observability", "wait", "pod", "-l", "app=collector", "--for=delete", "--timeout=30s")
	down := time.Now()
	// Pods come and go while nothing can be sent.
	c.kubectl(t, "-n", "shop", "delete", "pod", "late", "prepared", "brief", "--ignore-not-found")
	c.apply(t, "during.yaml")
	time.Sleep(6 * time.Second)
	up := time.Now()
	c.kubectl(t, "-n", "observability", "scale", "deployment/collector", "--replicas=1")
	c.kubectl(t, "-n", "observability", "rollout", "status", "deployment/collector", "--timeout=60s")
	g.wait(t)

	c.eventuallyArrived(t, since, some("solo", down.Add(time.Second), up.Add(-time.Second)))
	c.eventuallyArrived(t, since, some("brief", down, up.Add(20*time.Second)))
	c.requireAccounted(t)
}

// some wants samples of a pod whose profiles cover some of the time.
func some(pod string, start, end time.Time) func([]receiver.Sample) error {
	return func(s []receiver.Sample) error {
		if at(s, pod, start, end) == 0 {
			return fmt.Errorf("nothing of the pod %s between %s and %s", pod, start.Format(time.TimeOnly), end.Format(time.TimeOnly))
		}
		return nil
	}
}

// requireAccounted holds the daemon's own figures against each other: once all
// gadgets have ended, every row that it read was delivered or dropped with a reason.
func (c cluster) requireAccounted(t *testing.T) {
	t.Helper()
	var m map[string]float64
	eventually(t, 30*time.Second, func() error {
		m = c.metrics(t)
		read, delivered, dropped := m["ig_otel_profiles_rows_read_total"], m["ig_otel_profiles_rows_delivered_total"], m["ig_otel_profiles_rows_dropped_total"]
		if read == 0 || read != delivered+dropped {
			return fmt.Errorf("%.0f rows read, %.0f delivered, %.0f dropped", read, delivered, dropped)
		}
		return nil
	})
	t.Logf("rows read %.0f, delivered %.0f, dropped %.0f", m["ig_otel_profiles_rows_read_total"],
		m["ig_otel_profiles_rows_delivered_total"], m["ig_otel_profiles_rows_dropped_total"])
}

// testTwoClients runs the gadget for two clients at once over one exporter,
// and for a third over HTTP, each for a pod of its own. The one that ends
// first leaves the others alone.
func testTwoClients(t *testing.T, c cluster) {
	since := time.Now()
	pods := []string{"solo", "hostnet", "ledger-0"}
	gadgets := []*gadget{
		c.start(t, "-n", "shop", "--podname", pods[0], "--otel-profiles-exporter=collector", "--timeout", "10"),
		c.start(t, "-n", "shop", "--podname", pods[1], "--otel-profiles-exporter=collector", "--timeout", "25"),
		c.start(t, "-n", "shop", "--podname", pods[2], "--otel-profiles-exporter=collector-http", "--timeout", "25"),
	}
	gadgets[0].wait(t)
	firstEnded := time.Now()
	gadgets[1].wait(t)
	gadgets[2].wait(t)
	c.requireAccounted(t)
	forever := since.Add(time.Hour)
	c.eventuallyArrived(t, since, func(samples []receiver.Sample) error {
		for _, s := range samples {
			if pod := s.Resource["k8s.pod.name"]; !slices.Contains(pods, pod) {
				return fmt.Errorf("a sample of the pod %q, which no run is about", pod)
			}
		}
		return errors.Join(
			some(pods[0], since, firstEnded)(samples),
			some(pods[1], firstEnded, forever)(samples),
			some(pods[2], firstEnded, forever)(samples))
	})
	require.Zero(t, startedAfter(c.arrived(t, since), pods[0], firstEnded))
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
	c.kubectl(t, "gadget", "run", image, "-n", "shop", "--detach", "--name", "always-on",
		"--otel-profiles-exporter=collector", "--otel-profiles-interval=20s")
	time.Sleep(8 * time.Second)
	name, _ := c.daemonPod(t)
	logs := make(chan string, 1)
	follow := c.command(t.Context(), "kubectl", "-n", "gadget", "logs", "-f", "--tail=5", name)
	go func() {
		out, _ := follow.CombinedOutput()
		logs <- string(out)
	}()
	time.Sleep(time.Second)
	told := time.Now()
	c.kubectl(t, "-n", "gadget", "delete", "pod", name)
	gone := time.Now()
	t.Logf("the daemon's pod was gone after %.1f s; its last words:\n%s", gone.Sub(told).Seconds(), <-logs)
	// The window that was open when the daemon was told to stop: it begins before and ends after.
	c.eventuallyArrived(t, since, func(samples []receiver.Sample) error {
		for _, s := range samples {
			if s.Resource["k8s.pod.name"] == "solo" && s.Start.Before(told) && !s.End.Before(told) {
				return nil
			}
		}
		return errors.New("nothing of the last window arrived")
	})

	// The new daemon takes up the instance by itself.
	c.daemonPod(t)
	again := time.Now()
	eventually(t, 60*time.Second, func() error { return some("solo", again, again.Add(time.Hour))(c.arrived(t, again)) })
	c.kubectl(t, "gadget", "delete", "always-on")
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
	c.start(t, "-n", "shop", "--otel-profiles-exporter=collector", "--timeout", "5").wait(t)
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
			c.in(t, "test", "-s", file)
		}
	}
	// /cleanup, which the manifest calls before the pod stops, takes them away again.
	c.kubectl(t, "gadget", "undeploy")
	eventually(t, 20*time.Second, func() error {
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
