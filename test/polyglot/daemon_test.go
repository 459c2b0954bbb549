//go:build e2e

package polyglot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// igDaemon is "ig daemon" with several gadgets that share an unwinder and export to one receiver.
type igDaemon struct {
	*gadgetRun
	client  api.GadgetManagerClient
	metrics string // their address
}

func startDaemon(t *testing.T) *igDaemon {
	t.Helper()
	run, dir := newRun(t)
	socket := "unix://" + filepath.Join(dir, "ig.socket")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	listen := free.Addr().String()
	require.NoError(t, free.Close())
	run.start([]string{igtest.Built(t, igtest.Bin, "ig"), "--config", igtest.EverySample(t, run.receiver.Addr()), "daemon", "--host=" + socket, "--auto-mount-filesystems", "--verify-image=false",
		"--otel-metrics-listen", "--otel-metrics-export-internals", "--otel-metrics-listen-address=" + listen})
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &igDaemon{run, api.NewGadgetManagerClient(conn), "http://" + listen + "/metrics"}
}

// metric returns the sum of a metric over the series with these labels.
func (d *igDaemon) metric(name string, labels ...string) (sum float64) {
	d.t.Helper()
	response, err := http.Get(d.metrics)
	require.NoError(d.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(d.t, err)
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(series, name+"{") || slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(series, l) }) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		require.NoError(d.t, err, line)
		sum += n
	}
	return sum
}

// events returns the amount of events with a result, in the units of the labels.
func (d *igDaemon) events(result string, labels ...string) float64 {
	return d.metric("ig_otel_profiles_unwinder_events_value_total", append(labels, fmt.Sprintf("result=%q", result))...)
}

// attached is a gadget that runs as long as the test is attached to it.
type attached struct {
	t      *testing.T
	gadget string
	stream grpc.BidiStreamingClient[api.GadgetControlRequest, api.GadgetEvent]
	log    *igtest.Buffer
	ended  chan error
}

// attach runs a gadget with whole stacks. flags are flags of "ig run", without the dashes.
func (d *igDaemon) attach(gadget string, flags map[string]string) *attached {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d.t.Cleanup(cancel)
	image := igtest.Import(d.t, gadget)
	info, err := d.client.GetGadgetInfo(ctx, &api.GetGadgetInfoRequest{ImageName: image, Version: api.VersionGadgetInfo}, grpc.WaitForReady(true))
	require.NoError(d.t, err)
	all := map[string]string{"unwind": "whole", "host": "true", "otel-profiles-exporter": "truth", "otel-profiles-interval": "2s"}
	maps.Copy(all, flags)
	values := map[string]string{}
	for _, p := range info.GadgetInfo.Params {
		if value, ok := all[p.Key]; ok {
			values[p.Prefix+p.Key] = value
			delete(all, p.Key)
		}
	}
	require.Empty(d.t, all, "%s has no such flags", gadget)
	stream, err := d.client.RunGadget(ctx)
	require.NoError(d.t, err)
	a := &attached{t: d.t, gadget: gadget, stream: stream, log: &igtest.Buffer{}, ended: make(chan error, 1)}
	require.NoError(d.t, stream.Send(&api.GadgetControlRequest{Event: &api.GadgetControlRequest_RunRequest{RunRequest: &api.GadgetRunRequest{
		ImageName: image, Version: api.VersionGadgetRunProtocol, ParamValues: values, LogLevel: uint32(logger.InfoLevel),
	}}}))
	go func() {
		for {
			event, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				err = nil
			}
			switch {
			case err != nil || event == nil:
				a.ended <- err
				return
			case event.Type>>api.EventLogShift != 0:
				fmt.Fprintf(a.log, "%s\n", event.Payload)
			}
		}
	}()
	d.t.Cleanup(func() {
		if d.t.Failed() {
			d.t.Logf("%s said:\n%s", gadget, a.log)
		}
	})
	return a
}

// end ends the gadget, and returns its output.
func (a *attached) end() string {
	a.t.Helper()
	require.NoError(a.t, a.stream.Send(&api.GadgetControlRequest{Event: &api.GadgetControlRequest_StopRequest{StopRequest: &api.GadgetStopRequest{}}}))
	select {
	case err := <-a.ended:
		require.NoError(a.t, err, a.gadget)
	case <-time.After(2 * time.Minute):
		a.t.Fatalf("%s does not end", a.gadget)
	}
	return a.log.String()
}

// arrived waits until there are samples of a type.
func (d *igDaemon) arrived(kind string) {
	d.t.Helper()
	some := func() bool { return len(igtest.Typed(d.receiver.Samples(), kind)) > 0 }
	require.True(d.t, d.wait(kind, 3*time.Minute, some), "no samples of the type %s", kind)
}

// TestSecondGadget starts profile_offcpu while profile_cpu runs. profile_offcpu's programs call another chain. The unwinder
// must continue, and all events of profile_cpu must reach it. While profile_offcpu starts, some of its events can miss the
// unwinder. Inspektor Gadget attaches a gadget's programs before anyone else can put the unwinder's entry into them.
func TestSecondGadget(t *testing.T) {
	startLoads(t, find(t, "c-fp", "python"))
	d := startDaemon(t)
	without := func() float64 { return d.events("no_unwinder", `unit="samples"`) }
	unwound := func() float64 { return d.events("unwound", `unit="samples"`) }
	cpu := d.attach("profile_cpu", nil)
	d.arrived("samples")
	require.True(t, d.wait("the metrics", time.Minute, func() bool { return unwound() > 0 }))
	first, began, before := d.unwinderPID(), unwound(), without()
	require.NotZero(t, first)
	offcpu := d.attach("profile_offcpu", nil)
	d.arrived("off_cpu")
	require.True(t, d.wait("more samples", time.Minute, func() bool { return unwound() >= began+100 }))
	require.Equal(t, first, d.unwinderPID(), "the unwinder was restarted")
	require.Equal(t, before, without(), "samples without the unwinder")
	require.Zero(t, d.metric("ig_otel_profiles_unwinder_restarts_total"))
	for _, a := range []*attached{offcpu, cpu} {
		closing := readClosingLines(t, a.end())
		require.Zero(t, closing.Restarts)
		require.Zero(t, closing.Away)
		require.Positive(t, closing.Drawn)
	}
	d.stop()
}
