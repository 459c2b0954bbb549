// Package e2e tests this project's daemon in a real Kubernetes cluster with a real Collector. test/k8s/run.sh starts both and
// then runs the tests.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

const (
	registryAddress = "10.88.0.1:5000"
	// image is the signed gadget. unsignedImage is the same gadget without a signature.
	image         = registryAddress + "/profile_cpu:test"
	unsignedImage = registryAddress + "/unsigned:test"
	allocImage    = registryAddress + "/profile_alloc:test"
	// oldGadget is a profile_cpu that is as old as oldImage.
	oldGadget = registryAddress + "/profile_cpu_old:test"
	tenant    = "tenant-from-a-secret"
)

// TestKubernetes runs its steps in order, because later steps use what earlier steps set up.
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
		{"collector outage", testCollectorOutage},
		{"two clients", testTwoClients},
		{"headless and daemon restart", testHeadlessAndRestart},
		{"rollout of a config", testRollout},
		{"whole stacks", testLanguages},
		{"leak of a pod", testLeak},
		{"short pods", testShortPods},
		{"history in an emptyDir", testEmptyDir},
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
			t.Logf("the step began at %s; the current state:\n%s", start.Format("15:04:05.0"), c.describe())
			break
		}
	}
	t.Logf("took\n%s", took.String())
}

// describe returns the cluster's state, for readers who only have the log of a failed step.
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

// testDeploy deploys the Collector, the daemon's secrets, and the daemon with "kubectl gadget deploy", as in the Kubernetes
// guide.
func testDeploy(t *testing.T, c cluster) {
	c.apply(t, "probes.yaml")
	c.apply(t, "collector.yaml")
	c.kubectl(t, "-n", "observability", "rollout", "status", "deployment/collector", "--timeout="+patience.String())
	c.deploy(t, "daemon.yaml")
	c.kubectl(t, "-n", "gadget", "create", "secret", "generic", "otel-profiles",
		"--from-literal=EXPORTERS_COLLECTOR_HEADERS=x-scope-orgid="+tenant)
	c.kubectl(t, "-n", "gadget", "set", "env", "daemonset/gadget", "--from=secret/otel-profiles",
		"--prefix=INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_")
	// Without a CPU request, the daemon gets too little CPU time on a busy machine, and its probes fail.
	c.kubectl(t, "-n", "gadget", "set", "resources", "daemonset/gadget", "--requests=cpu=500m,memory=256Mi")
	c.daemonPod(t)
	c.apply(t, "workloads.yaml")
	c.kubectl(t, "-n", "shop", "create", "job", "nightly-by-hand", "--from=cronjob/nightly")
	for _, what := range []string{"deployment/cart", "deployment/web", "statefulset/ledger", "daemonset/agent"} {
		c.kubectl(t, "-n", "shop", "rollout", "status", what, "--timeout="+patience.String())
	}
	c.kubectl(t, "-n", "shop", "wait", "pod", "--all", "--for=condition=Ready", "--timeout="+patience.String())
}

// daemonConfig returns the file for --daemon-config, with the test's key.
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
	// --verify-image=false would also switch off the verification of gadgets in the config.
	c.kubectl(t, "gadget", "deploy", "-q", "--image", "localhost/inspektor-gadget:test", "--image-pull-policy", "Never",
		"--daemon-config", path)
}

// testVerification: the daemon runs a gadget signed with the key in its config, and refuses the same gadget without a signature.
func testVerification(t *testing.T, c cluster) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.try(ctx, "kubectl", "gadget", "run", unsignedImage, "--timeout", "1")
	require.ErrorContains(t, err, "signing information")
	c.kubectl(t, "gadget", "run", image, "-n", "shop", "--timeout", "1")
}

// testTwoClients runs the gadget for three clients at once, each with its own pod. Two clients share an exporter, and the third
// uses HTTP. When the first client exits, the others continue.
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
	// These are more rows than were possibly under way when the first client exited.
	require.Less(t, igtest.Resident(c.daemonProcess(t)), int64(1<<30))
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
		require.Contains(t, pods, s.Resource["k8s.pod.name"], "a sample of a pod that no run selects; arrived:\n%s", inventory(arrived))
	}
	require.Zero(t, startedAfter(arrived, pods[0], firstEnded), inventory(arrived))
}

// testRollout changes the config. A running daemon keeps the old config until it restarts.
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

// testHookModes starts the daemon in each mode whose hooks the image contains. The daemon must copy the hooks to the host and
// become ready.
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
	// Before the pod stops, the manifest calls /cleanup, which removes the hooks.
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
