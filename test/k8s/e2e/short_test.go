package e2e

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/polyglot"
)

// shortPods is the number of pods of the job in the profiled namespace.
const shortPods = 8

// shortThread matches the names of the short pods, which are also the names of their threads.
var shortThread = regexp.MustCompile(`^(brf|asd)-[a-z0-9]{5}$`)

// testShortPods requires samples for each pod that lives for two seconds, and none of a namespace that is not profiled. Every
// sample is accounted for.
func testShortPods(t *testing.T, c cluster) {
	c.shareHostPIDs(t)
	c.remove(t, "short.yaml")
	defer c.remove(t, "short.yaml")
	drawn := c.drawn(t)
	since := time.Now()
	// The run is detached, because its closing lines are then in the daemon's log. Inspektor Gadget can lose a client's last
	// lines.
	c.kubectl(t, "gadget", "run", image, "--unwind=whole", "-n", "shop", "--detach", "--name", "short", "--frequency=99", "--otel-profiles-exporter=collector")
	c.eventuallyArrived(t, since, whole("solo"))
	c.apply(t, "short.yaml")
	for job, namespace := range map[string]string{"brf": "shop", "asd": "aside"} {
		c.kubectl(t, "-n", namespace, "wait", "job", job, "--for=condition=complete", "--timeout="+patience.String())
	}
	pods := strings.Fields(c.kubectl(t, "-n", "shop", "get", "pods", "-l", "app=brf", "--field-selector=status.phase=Succeeded", "-o", "jsonpath={.items[*].metadata.name}"))
	require.GreaterOrEqual(t, len(pods), shortPods, "%v", pods)
	c.kubectl(t, "gadget", "delete", "short")
	name, _ := c.daemonPod(t)
	var closing polyglot.ClosingLines
	eventually(t, func() (err error) {
		closing, err = polyglot.ReadClosingLines(c.kubectl(t, "-n", "gadget", "logs", name, "--since-time="+since.UTC().Format(time.RFC3339)))
		return err
	})
	var arrived []receiver.Sample
	c.eventuallyArrived(t, since, func(samples []receiver.Sample) error {
		arrived = samples
		return closing.Check(igtest.Total(samples))
	})
	byPod := map[string]int64{}
	for _, s := range arrived {
		pod, thread := s.Resource["k8s.pod.name"], s.Attributes["thread.name"]
		require.Equal(t, "shop", s.Resource["k8s.namespace.name"], "a sample of the thread %q in another namespace: %v", thread, s.Resource)
		if shortThread.MatchString(thread) {
			require.Equal(t, thread, pod, "a sample of a pod with another pod's name: %v", s.Resource)
			byPod[pod] += s.Total()
		}
	}
	var list []string
	for _, pod := range pods {
		list = append(list, fmt.Sprintf("%s %d", pod, byPod[pod]))
		require.Positive(t, byPod[pod], "no sample of the pod %s, only of %v", pod, byPod)
	}
	slices.Sort(list)
	t.Logf("samples by pod: %s", strings.Join(list, ", "))
	require.Subset(t, pods, slices.Collect(maps.Keys(byPod)))

	now := c.drawn(t)
	t.Logf("%d samples drawn, %d of them of a container that had exited; the daemon's counters: %.0f drawn", closing.Drawn, closing.Container, now-drawn)
	require.GreaterOrEqual(t, now-drawn, float64(closing.Drawn), "samples drawn, by the daemon's counters")
}

// drawn returns how many events gadgets have sampled, according to the daemon's counters.
func (c cluster) drawn(t *testing.T) float64 {
	t.Helper()
	return c.figures(t).sum["ig_otel_profiles_unwinder_events_total"]
}
