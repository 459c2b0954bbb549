package e2e

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// testCollectorOutage stops the Collector during two runs, one over gRPC and one over HTTP. The data of this time arrives later
// with its own timestamps. It includes a pod that ran only during the outage.
func testCollectorOutage(t *testing.T, c cluster) {
	c.kubectl(t, "-n", "shop", "delete", "pod", "brief", "--ignore-not-found")
	c.hold(t, "brief")
	since := time.Now()
	runs := []*gadget{
		c.start(t, "-n", "shop", "--otel-profiles-exporter=collector"),
		c.start(t, "-n", "shop", "--otel-profiles-exporter=collector-http"),
	}
	c.eventuallyArrived(t, since, overBoth(some("solo", since, since.Add(time.Hour))))

	c.collectorReplicas(t, 0)
	down := time.Now()
	// A pod starts and exits while the Collector is stopped.
	c.apply(t, "brief.yaml")
	for _, g := range runs {
		g.waitFor(t, "solo", 3)
		g.waitFor(t, "brief", 2)
	}
	c.release(t, "brief")
	c.kubectl(t, "-n", "shop", "wait", "pod", "brief", "--for=jsonpath={.status.phase}=Succeeded", "--timeout="+patience.String())
	up := time.Now()
	c.collectorReplicas(t, 1)
	ready := time.Now()
	c.eventuallyArrived(t, since, overBoth(some("solo", down, up)))
	c.eventuallyArrived(t, since, overBoth(some("brief", down, up)))
	t.Logf("the Collector was away for %.0f s; data from that time arrived %.1f s after its return",
		ready.Sub(down).Seconds(), time.Since(ready).Seconds())
	for _, g := range runs {
		g.stop(t)
	}
	c.requireAccounted(t)
}

// overBoth applies the check to the samples that arrived over gRPC, and to the samples that arrived over HTTP. Only the gRPC
// exporter has a tenant in its headers.
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

// requireAccounted waits until all gadgets have ended. It then requires that the daemon's counters account for every row as
// delivered or dropped.
func (c cluster) requireAccounted(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		figures, err := c.counters(t.Context())
		if err != nil {
			return err
		}
		rows := figures.rows()
		if rows.read == 0 || rows.read != rows.delivered+rows.dropped {
			return fmt.Errorf("rows %+v:\n%s", rows, figures.text)
		}
		t.Logf("rows %+v", rows)
		return nil
	})
}

// startedAfter sums the values of a pod's samples whose profiles start after a time.
func startedAfter(samples []receiver.Sample, pod string, after time.Time) int64 {
	var sum int64
	for _, s := range samples {
		if s.Resource["k8s.pod.name"] == pod && s.Start.After(after) {
			sum += s.Total()
		}
	}
	return sum
}

// testHeadlessAndRestart checks that an instance without a client continues, also in a new daemon. Rows that the old daemon had
// read before it stopped must arrive.
func testHeadlessAndRestart(t *testing.T, c cluster) {
	since := time.Now()
	// The interval is still open when the daemon exits. No client reads the output of a detached run.
	c.kubectl(t, "gadget", "run", image, "-n", "shop", "--detach", "--name", "always-on",
		"--otel-profiles-exporter=collector", "--otel-profiles-interval=30m", "--format-stacks=false")
	attached := c.follow(t, "attach", "always-on", "-o", "json")
	attached.waitFor(t, "solo", 5) // it is unlikely that none of them is in burn_leaf
	name, _ := c.daemonPod(t)
	log := c.followLog(t, name)
	told := time.Now()
	c.kubectl(t, "-n", "gadget", "delete", "pod", name)
	gone := time.Now()
	t.Logf("the daemon's pod was gone after %.1f s; its closing lines:\n%s", gone.Sub(told).Seconds(), tail(<-log, 12))
	// This interval was open when the daemon was stopped, so it begins before and ends after that time.
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
		return fmt.Errorf("%d samples of the interval that was open at %s, none in burn_leaf", open, told.Format("15:04:05.0"))
	})

	// The new daemon restarts the instance by itself.
	c.daemonPod(t)
	again := time.Now()
	attached = c.follow(t, "attach", "always-on", "-o", "json")
	attached.waitFor(t, "solo", 2)
	c.kubectl(t, "gadget", "delete", "always-on")
	c.eventuallyArrived(t, again, some("solo", again, again.Add(time.Hour)))
}
