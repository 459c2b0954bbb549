package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// testMemory checks that profile_alloc shows one pod's allocations, also after the pod restarts, and none of other pods. It
// refuses a namespace with more than ten containers.
func testMemory(t *testing.T, c cluster) {
	c.shareHostPIDs(t)
	start := func() {
		c.apply(t, "memory.yaml")
		c.kubectl(t, "-n", "shop", "wait", "pod", "allocates", "other", "--for=condition=Ready", "--timeout="+patience.String())
	}
	c.remove(t, "memory.yaml")
	defer c.remove(t, "memory.yaml")
	start()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.try(ctx, "kubectl", "gadget", "run", allocImage, "-n", "shop", "--timeout", "5")
	require.ErrorContains(t, err, "more than 10 containers")
	require.ErrorContains(t, err, "--podname")

	since := time.Now()
	c.kubectl(t, "gadget", "run", allocImage, "-n", "shop", "--podname", "allocates", "--detach", "--name", "memory",
		"--sample-bytes=65536", "--otel-profiles-exporter=collector")
	first := c.allocations(t, since, "")
	// The informer reports the second pod after its program has started.
	c.kubectl(t, "-n", "shop", "delete", "pod", "allocates", "--wait")
	again := time.Now()
	start()
	second := c.allocations(t, again, first)
	require.NotEqual(t, first, second)
	c.kubectl(t, "gadget", "delete", "memory")
	for _, s := range c.arrived(t, since) {
		require.Equal(t, "allocates", s.Resource["k8s.pod.name"], "a sample of another pod: %v", s.Resource)
	}
	c.requireAccounted(t)
}

// allocations waits for samples of the pod's container and returns its ID. It ignores the container whose ID is but.
func (c cluster) allocations(t *testing.T, since time.Time, but string) (id string) {
	t.Helper()
	c.eventuallyArrived(t, since, func(samples []receiver.Sample) error {
		sums := map[string]int64{}
		for _, s := range samples {
			if s.Resource["container.id"] == but || s.Type != "alloc_space" {
				continue
			}
			id = s.Resource["container.id"]
			require.NotEmpty(t, id)
			requireOfPod(t, s, "allocates")
			for _, f := range s.Stack {
				sums[f.Name] += s.Total()
			}
		}
		for _, function := range []string{"allocate_much", "allocate_little", "main"} {
			if sums[function] == 0 {
				return fmt.Errorf("no allocation by %s, only by %v", function, sums)
			}
		}
		t.Logf("container %.12s: %d bytes by allocate_much, %d by allocate_little", id, sums["allocate_much"], sums["allocate_little"])
		return nil
	})
	return id
}

// requireOfPod checks a sample's resource. The pod is from memory.yaml, leak.yaml or locks.yaml.
func requireOfPod(t *testing.T, s receiver.Sample, pod string) {
	t.Helper()
	for key, value := range map[string]string{
		"k8s.namespace.name": "shop", "k8s.pod.name": pod, "k8s.container.name": "worker", "k8s.node.name": "node1",
		"k8s.pod.label.tier": "store", "service.name": pod,
	} {
		require.Equal(t, value, s.Resource[key], key)
	}
}

// remove deletes the objects in a file of manifests/, and waits until they no longer exist. This also happens after a failed
// step.
func (c cluster) remove(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.try(ctx, "kubectl", "delete", "--ignore-not-found", "-f", c.manifest(t, name))
	require.NoError(t, err)
}
