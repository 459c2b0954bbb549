//go:build e2e

package backends

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// TestGadgets profiles the whole machine with every gadget, and sends the samples to the servers through a receiver that adds them
// up. A server must accept every request. Its data and its flame graph must contain everything that was sent.
func TestGadgets(t *testing.T) {
	igtest.NeedRoot(t)
	// Short-lived processes have page faults and waits.
	igtest.StartEndless(t, exec.Command("sh", "-c", "while :; do /bin/true; done"))
	start := map[string]func(*testing.T) server{"parca": func(t *testing.T) server { return startParca(t) }}
	if asked("pyroscope") {
		start["pyroscope"] = func(t *testing.T) server { return startPyroscope(t) }
	}
	for _, run := range []struct {
		gadget string
		flags  []string
	}{
		{"profile_cpu", []string{"--frequency=200", "--unwind=frame-pointers"}},
		{"profile_cpu", []string{"--frequency=50", "--unwind=whole"}},
		{"profile_offcpu", nil},
		{"profile_pagefault", nil},
		{"profile_pagefault", []string{"--single-events"}},
	} {
		for backend, start := range start {
			t.Run(strings.Join(append([]string{run.gadget, backend}, run.flags...), " "), func(t *testing.T) {
				everything(t, start(t), run.gadget, run.flags)
			})
		}
	}
}

// passOn returns a receiver that forwards all requests to a server, and stores them.
func passOn(t *testing.T, addr string) *receiver.Receiver {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	next := collectorpb.NewProfilesServiceClient(conn)
	between, err := receiver.Start(receiver.Options{
		MaxBytes: 1 << 30,
		Respond: func(ctx context.Context, req *collectorpb.ExportProfilesServiceRequest) (*collectorpb.ExportProfilesServiceResponse, error) {
			return next.Export(ctx, req)
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, between.Close()) })
	return between
}

// everything runs a gadget on the whole machine and compares a server's data with what was sent.
func everything(t *testing.T, s server, gadget string, flags []string) {
	between := passOn(t, s.addr())
	config := "operator:\n  otel-profiles:\n    exporters:\n" + exporter(t, s.name(), s.name(), "server", between.Addr()) + patient
	said, all := sampled(t, gadget, config, "server", append([]string{"--timeout=10"}, flags...)...)
	require.Contains(t, said, " 0 dropped", "%s", said)
	require.NotContains(t, said, "refused", "%s", said)

	var sent int64
	samples := between.Samples()
	require.NotEmpty(t, samples)
	for _, one := range samples {
		require.NotEmpty(t, one.Stack, "no flame graph shows a sample without a frame")
		value := one.Total()
		if one.Unit == "count" && one.PeriodUnit == "nanoseconds" {
			value *= one.Period // both servers show time
		}
		sent += value
	}
	require.Positive(t, sent)
	var types []string
	require.Eventually(t, func() bool { types = s.profileTypes(t, all); return len(types) > 0 }, time.Minute, time.Second)
	require.Len(t, types, 1)
	s = s.of(types[0])
	require.Eventually(t, func() bool { return s.stored(t, "{}", all) == sent }, 30*time.Second, 2*time.Second, "%s: %d stored, %d sent", types[0], s.stored(t, "{}", all), sent)
	require.Eventually(t, func() bool { return s.flame(t, "{}", all) == sent }, 30*time.Second, 2*time.Second, "the flame graph of %s: %d of %d", types[0], s.flame(t, "{}", all), sent)
	stacks := s.query(t, "{}", all)
	require.Equal(t, sent, total(stacks), "the sum of the shown stacks")
	kernel := slices.ContainsFunc(stacks, func(one stack) bool {
		return slices.Contains(one.functions, "do_syscall_64") || slices.Contains(one.functions, "el0_svc")
	})
	require.True(t, kernel, "system calls are in the stacks")
	t.Logf("%s has %d of %d in %s, %d stacks", s.name(), s.flame(t, "{}", all), sent, types[0], len(stacks))
}
