package e2e

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// lockTolerance is the fraction by which a thread's own measurement can exceed the wait in the kernel. A thread measures the
// whole call.
const lockTolerance = 0.1

// testLocks compares profile_lock's waits for two mutexes with the times that a pod's threads measure themselves. The same pod
// in another namespace must not appear. The daemon has the node's PID namespace: in frame-pointer stacks, the caller of glibc's
// function is missing, and this caller is the function that the test looks for.
func testLocks(t *testing.T, c cluster) {
	c.shareHostPIDs(t)
	c.remove(t, "locks.yaml")
	defer c.remove(t, "locks.yaml")
	c.hold(t, "contend")
	c.apply(t, "locks.yaml")
	for _, namespace := range []string{"shop", "beside"} {
		c.kubectl(t, "-n", namespace, "wait", "pod", "contends", "--for=condition=Ready", "--timeout="+patience.String())
	}
	since := time.Now()
	c.kubectl(t, "gadget", "run", lockImage, "-n", "shop", "--detach", "--name", "locks", "--otel-profiles-exporter=collector")
	c.eventuallyArrived(t, since, func(samples []receiver.Sample) error {
		if waits, _ := waitsBy(samples, "wait_before"); waits == 0 {
			return fmt.Errorf("no wait in wait_before among %d samples", len(samples))
		}
		return nil
	})
	c.release(t, "contend")
	own, other := c.waited(t, "shop"), c.waited(t, "beside")
	require.Positive(t, other["take_long"], "the other namespace's pod has waited for no lock")
	c.kubectl(t, "gadget", "delete", "locks")

	shown := map[string]float64{}
	c.eventuallyArrived(t, since, func(samples []receiver.Sample) error {
		for function, want := range own {
			waits, delay := waitsBy(samples, function)
			shown[function] = float64(delay)
			if waits == 0 || math.Abs(float64(delay)-want) > lockTolerance*want {
				return fmt.Errorf("%s: %d waits of %d ns, measured by the program %.0f ns", function, waits, delay, want)
			}
		}
		return nil
	})
	percent := func(sums map[string]float64) float64 {
		return 100 * sums["take_long"] / (sums["take_long"] + sums["take_short"])
	}
	t.Logf("seconds measured by the program: take_long %.3f, take_short %.3f; shown: %.3f, %.3f; share of take_long: %.1f %%, shown %.1f %%",
		own["take_long"]/1e9, own["take_short"]/1e9, shown["take_long"]/1e9, shown["take_short"]/1e9, percent(own), percent(shown))
	require.InDelta(t, percent(own), percent(shown), 3)

	id := ""
	for _, s := range c.arrived(t, since) {
		require.Equal(t, "shop", s.Resource["k8s.namespace.name"], "a wait of another namespace: %v", s.Resource)
		if !throughAny(s, "take_long", "take_short", "wait_before") {
			continue
		}
		requireOfPod(t, s, "contends")
		require.NotEmpty(t, s.Resource["container.id"])
		if id == "" {
			id = s.Resource["container.id"]
		}
		require.Equal(t, id, s.Resource["container.id"], "of one container")
		// Locks that the kernel takes during the call or in an interrupt have the same user stack.
		if kind := s.Attributes["lock.kind"]; !strings.HasPrefix(kind, "kernel_") {
			require.Equal(t, "user_mutex", kind)
		}
		require.True(t, throughAny(s, "contend_for"), "a stack without the thread's first function: %v", s.Stack)
	}
	c.requireAccounted(t)
}

// waited returns the nanoseconds that a pod's threads spent in each function, from the last output of a pod in locks.yaml.
func (c cluster) waited(t *testing.T, namespace string) map[string]float64 {
	t.Helper()
	var long, short float64
	eventually(t, func() error {
		text := c.kubectl(t, "-n", namespace, "logs", "contends")
		_, err := fmt.Sscanf(text, "take_long %g\ntake_short %g\n", &long, &short)
		if err != nil {
			return fmt.Errorf("the pod has printed %q: %w", text, err)
		}
		return nil
	})
	return map[string]float64{"take_long": long, "take_short": short}
}

// waitsBy returns the number and the nanoseconds of the mutex waits with a function in their stack.
func waitsBy(samples []receiver.Sample, function string) (waits, delay int64) {
	for _, s := range samples {
		if s.Attributes["lock.kind"] != "user_mutex" || !throughAny(s, function) {
			continue
		}
		switch s.Type {
		case "contentions":
			waits += s.Total()
		case "delay":
			delay += s.Total()
		}
	}
	return waits, delay
}

// throughAny reports whether one of the functions is in the stack.
func throughAny(s receiver.Sample, functions ...string) bool {
	for _, f := range s.Stack {
		for _, name := range functions {
			if f.Name == name {
				return true
			}
		}
	}
	return false
}
