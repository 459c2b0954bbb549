//go:build e2e

package polyglot

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// gadgetRun is a running "ig run" of a gadget, or another profiler, with its receiver.
type gadgetRun struct {
	t        *testing.T
	receiver *receiver.Receiver
	cmd      *exec.Cmd
	log      *igtest.Buffer
	cancel   context.CancelFunc
	ended    chan error
	started  time.Time

	mu     sync.Mutex
	resent receiver.Resent
	hits   map[int][]hits // of each process
}

// hits are the samples of an interval.
type hits struct {
	start time.Time
	n     int64
}

// count counts each request once, because resolving all of them repeatedly takes more CPU than the tested code.
func (r *gadgetRun) count(_ context.Context, req *collectorpb.ExportProfilesServiceRequest) (*collectorpb.ExportProfilesServiceResponse, error) {
	by := ofProcess(receiver.Resolve(req))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resent.Is(req) {
		return nil, nil
	}
	for pid, samples := range by {
		for _, s := range samples {
			r.hits[pid] = append(r.hits[pid], hits{s.Start, s.Total()})
		}
	}
	return nil, nil
}

// counted returns how many samples of a process have arrived, from intervals that began at a time or later.
func (r *gadgetRun) counted(pid int, since time.Time) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := int64(0)
	for _, h := range r.hits[pid] {
		if !h.start.Before(since) {
			n += h.n
		}
	}
	return n
}

// patience limits the wait for a run's first samples: two minutes at load 70 on two CPUs.
const patience = 6 * time.Minute

// startRun starts "ig run" with the exporter and returns at once. The run ends with the test at the latest.
func startRun(t *testing.T, image string, flags ...string) *gadgetRun {
	t.Helper()
	run, _ := newRun(t)
	run.start(slices.Concat([]string{igtest.Built(t, igtest.Bin, "ig"), "run", image, "--config=" + igtest.EverySample(t, run.receiver.Addr())}, igrun.GadgetFlags(),
		[]string{"--otel-profiles-exporter=truth", "--otel-profiles-interval=2s", "--output=none"}, flags))
	return run
}

// newRun makes a run with a receiver, and a folder for its files.
func newRun(t *testing.T) (run *gadgetRun, dir string) {
	t.Helper()
	run = &gadgetRun{t: t, log: &igtest.Buffer{}, ended: make(chan error, 1), hits: map[int][]hits{}}
	r, err := receiver.Start(receiver.Options{MaxBytes: 1 << 30, MaxMessageSize: 64 << 20, Respond: run.count})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	run.receiver = r
	return run, t.TempDir()
}

// start starts the profiler, with this machine's prefix.
func (r *gadgetRun) start(command []string) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.started = cancel, time.Now()
	r.cmd = igrun.Command(ctx, command[0], command[1:]...)
	r.cmd.WaitDelay = 3 * time.Minute
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	require.NoError(r.t, r.cmd.Start())
	go func() { r.ended <- r.cmd.Wait() }()
	r.t.Cleanup(func() {
		cancel()
		<-r.ended
		if r.t.Failed() {
			r.t.Logf("%s said:\n%s", command[0], r.log)
		}
	})
}

// wait waits until done is true of the samples so far, and fails after the time.
func (r *gadgetRun) wait(what string, within time.Duration, done func() bool) bool {
	r.t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); {
		if done() {
			return true
		}
		select {
		case err := <-r.ended:
			r.ended <- err
			r.t.Fatalf("ig ended before %s: %v", what, err)
		case <-time.After(500 * time.Millisecond):
		}
	}
	return false
}

// stop interrupts ig, waits until it has delivered everything, and checks that against the protocol.
func (r *gadgetRun) stop() []receiver.Sample {
	r.t.Helper()
	r.cancel()
	err := <-r.ended
	r.ended <- err
	require.True(r.t, err == nil || errors.Is(err, context.Canceled), "ig ended with %v", err)
	return r.receiver.Samples()
}

// ofProcess returns the samples of each process.
func ofProcess(samples []receiver.Sample) map[int][]receiver.Sample {
	by := map[int][]receiver.Sample{}
	for _, s := range samples {
		pid, err := strconv.Atoi(s.Attributes["process.pid"])
		if err != nil {
			pid, err = strconv.Atoi(s.Resource["process.pid"]) // the key of the eBPF profiler's agent
		}
		if err == nil {
			by[pid] = append(by[pid], s)
		}
	}
	return by
}

// startLoads builds and starts programs, which end with the test.
func startLoads(t *testing.T, which []loads.Load) []*loads.Process {
	t.Helper()
	return startAll(t, buildLoads(t, which))
}

// startAll starts programs, which end with the test.
func startAll(t *testing.T, programs []*loads.Program) []*loads.Process {
	t.Helper()
	var running []*loads.Process
	for _, p := range programs {
		r, err := p.Start(t.Context(), loads.DefaultLimit)
		require.NoError(t, err)
		t.Cleanup(func() { r.Stop() })
		running = append(running, r)
	}
	return running
}
