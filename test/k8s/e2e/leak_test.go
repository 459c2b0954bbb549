package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// A pod of leak.yaml leaks this much memory once the test releases it. burn.c defines the count, KEPT_TIMES, and the sizes.
const (
	leakTimes  = 512
	leakMuch   = leakTimes * 6000
	leakLittle = leakTimes * 2000
	// freedAtOnce is the maximum size, at any time, of the memory that the pod later frees.
	freedAtOnce = 30000
)

// testLeak checks that profile_alloc --live shows every byte that a pod leaks, and almost none of the memory that it frees. A
// deleted pod's memory is no longer in use. The gadget refuses a namespace with more than ten containers.
func testLeak(t *testing.T, c cluster) {
	c.shareHostPIDs(t)
	start := func() {
		c.hold(t, "leak")
		c.apply(t, "leak.yaml")
		c.kubectl(t, "-n", "shop", "wait", "pod", "leaks", "leaks-too", "--for=condition=Ready", "--timeout="+patience.String())
	}
	c.remove(t, "leak.yaml")
	defer c.remove(t, "leak.yaml")
	start()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.try(ctx, "kubectl", "gadget", "run", allocImage, "-n", "shop", "--timeout", "5")
	require.ErrorContains(t, err, "more than 10 containers")
	require.ErrorContains(t, err, "--podname")

	since := time.Now()
	// This samples every allocation, whatever the cost.
	c.kubectl(t, "gadget", "run", allocImage, "-n", "shop", "--podname", "leaks", "--live", "--detach", "--name", "leak",
		"--sample-bytes=1", "--max-cost=100", "--otel-profiles-exporter=collector")
	// Memory allocated before the probes are attached is unknown, so the leak begins later.
	first := c.inUse(t, since, func(state inUse) error {
		if state.bytes["leak_before"] == 0 {
			return fmt.Errorf("no memory from leak_before, only %v", state.bytes)
		}
		return nil
	})
	c.release(t, "leak")
	leaked := func(state inUse) error {
		for function, want := range map[string]int64{"leak_much": leakMuch, "leak_little": leakLittle} {
			if state.bytes[function] != want || state.objects[function] != leakTimes {
				return fmt.Errorf("%s has %d bytes in %d allocations in use, instead of %d in %d: %v", function,
					state.bytes[function], state.objects[function], want, leakTimes, state.bytes)
			}
		}
		return nil
	}
	c.inUse(t, since, leaked)
	// The result is still the same some profiles later, after more allocations.
	state := c.inUse(t, time.Now().Add(5*time.Second), leaked)
	t.Logf("container %.12s: in use %v bytes, %v allocations", state.container, state.bytes, state.objects)
	require.Equal(t, first.container, state.container)
	require.LessOrEqual(t, state.bytes["allocate_much"]+state.bytes["allocate_little"], int64(freedAtOnce), "memory that is freed at once")

	c.kubectl(t, "-n", "shop", "delete", "pod", "leaks", "--wait")
	again := time.Now()
	start()
	c.inUse(t, again, func(state inUse) error {
		if state.container == first.container || state.bytes["leak_before"] == 0 || state.bytes["leak_much"] != 0 {
			return fmt.Errorf("in use by container %.12s: %v", state.container, state.bytes)
		}
		return nil
	})
	c.kubectl(t, "gadget", "delete", "leak")
	for _, s := range c.arrived(t, since) {
		for key, value := range map[string]string{
			"k8s.namespace.name": "shop", "k8s.pod.name": "leaks", "k8s.container.name": "worker", "k8s.node.name": "node1",
			"k8s.pod.label.tier": "store", "service.name": "leaks",
		} {
			require.Equal(t, value, s.Resource[key], key)
		}
	}
	c.requireAccounted(t)
}

// inUse is a container's memory in use in one profile, by function on the stack.
type inUse struct {
	container      string
	bytes, objects map[string]int64
}

// inUse waits until the newest state passes the check, and returns this state.
func (c cluster) inUse(t *testing.T, since time.Time, check func(inUse) error) (state inUse) {
	t.Helper()
	c.eventuallyArrived(t, since, func(samples []receiver.Sample) error {
		var last time.Time
		for _, s := range samples {
			if s.End.After(last) {
				last = s.End
			}
		}
		state = inUse{bytes: map[string]int64{}, objects: map[string]int64{}}
		containers := map[string]bool{}
		for _, s := range samples {
			if !s.End.Equal(last) {
				continue
			}
			containers[s.Resource["container.id"]] = true
			for _, f := range s.Stack {
				switch s.Type {
				case "inuse_space":
					state.bytes[f.Name] += s.Total()
				case "inuse_objects":
					state.objects[f.Name] += s.Total()
				}
			}
		}
		if len(containers) != 1 {
			return fmt.Errorf("the last profile is of the containers %v", slices.Sorted(maps.Keys(containers)))
		}
		for state.container = range containers {
		}
		return check(state)
	})
	return state
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
