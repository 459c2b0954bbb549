//go:build e2e

// Package delivery tests that rows survive while the real OpenTelemetry Collector stops, freezes and comes back.
package delivery

import (
	"context"
	"encoding/hex"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
)

// received adds up all values that the Collector wrote. Delivery is at least once. A repeated profile has the same ID, so it
// counts once.
func received(t *testing.T, c *collectortest.Collector) (sum int64, profiles, repeated int) {
	seen := map[string]bool{}
	for _, req := range c.Received() {
		for _, rp := range req.ResourceProfiles {
			for _, sp := range rp.ScopeProfiles {
				for _, p := range sp.Profiles {
					id := hex.EncodeToString(p.ProfileId)
					require.NotEmpty(t, id)
					if seen[id] {
						repeated++
						continue
					}
					seen[id] = true
					profiles++
					for _, s := range p.Samples {
						for _, v := range s.Values {
							sum += v
						}
					}
				}
			}
		}
	}
	return sum, profiles, repeated
}

func operator(t *testing.T, yaml string) *otelprofiles.Operator {
	gadgettest.Config(t, yaml)
	op := otelprofiles.New()
	require.NoError(t, op.Init(nil))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = op.Shutdown(ctx)
	})
	return op
}

// load emits rows until stop is closed and returns the sum of their values.
func load(g *gadgettest.Gadget, stop <-chan struct{}) int64 {
	sum := int64(0)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return sum
		default:
		}
		p, err := g.Source.NewPacketArray()
		if err != nil {
			panic(err)
		}
		for r := range 500 {
			d := p.New()
			g.Fill(d, fmt.Sprintf("leaf_%d", (i*7+r)%1000), uint64(1+r%3))
			p.Append(d)
			sum += int64(1 + r%3)
		}
		if err := g.Source.EmitAndRelease(p); err != nil {
			panic(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// trouble sends a load to the Collector while the function during disturbs the Collector. It checks that every value finally
// arrives.
func trouble(t *testing.T, transport string, during func(c *collectortest.Collector)) {
	c := collectortest.New(t, "file")
	c.Start()
	endpoint := c.GRPC
	if transport == "otlp-http" {
		endpoint = "http://" + c.HTTP
	}
	op := operator(t, fmt.Sprintf(`
operator:
  otel-profiles:
    exporters:
      collector:
        exporter: %s
        endpoint: %s
        insecure: true
        timeout: 2s
        shutdown_timeout: 60s
        retry_on_failure: {initial_interval: 100ms, max_interval: 500ms}
`, transport, endpoint))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	stop, sent := make(chan struct{}), make(chan int64, 1)
	g := &gadgettest.Gadget{Type: datasource.TypeArray}
	g.Start = func(g *gadgettest.Gadget) { go func() { sent <- load(g, stop); g.Context.Cancel() }() }
	gc := g.Make(context.Background(), op)
	done := make(chan error, 1)
	go func() { done <- gc.Run(gadgettest.Params("collector", otelprofiles.ParamInterval, "100ms")) }()
	during(c)
	runtime.GC()
	runtime.ReadMemStats(&after)
	close(stop)
	want := <-sent
	require.NoError(t, <-done)
	c.Stop()
	got, profiles, repeated := received(t, c)
	t.Logf("values sent %d, received %d in %d profiles (%d repeated); heap grew by %.1f MiB", want, got, profiles, repeated,
		float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/(1<<20))
	for _, line := range strings.Split(g.Log.String(), "\n") {
		if strings.Contains(line, "rows read") {
			t.Log(line)
		}
	}
	require.Equal(t, want, got)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(96<<20), "the queue's bound plus 32 MiB")
}

func TestCollectorStoppedAndStartedAgain(t *testing.T) {
	for _, transport := range []string{"otlp-grpc", "otlp-http"} {
		t.Run(transport, func(t *testing.T) {
			trouble(t, transport, func(c *collectortest.Collector) {
				time.Sleep(time.Second)
				c.Stop()
				time.Sleep(5 * time.Second)
				c.Start()
				time.Sleep(time.Second)
			})
		})
	}
}

func TestCollectorFrozen(t *testing.T) {
	trouble(t, "otlp-grpc", func(c *collectortest.Collector) {
		time.Sleep(time.Second)
		c.Signal(syscall.SIGSTOP)
		time.Sleep(6 * time.Second)
		c.Signal(syscall.SIGCONT)
		time.Sleep(time.Second)
	})
}

func TestCollectorRestartedTenTimes(t *testing.T) {
	trouble(t, "otlp-grpc", func(c *collectortest.Collector) {
		for range 10 {
			time.Sleep(500 * time.Millisecond)
			c.Stop()
			time.Sleep(300 * time.Millisecond)
			c.Start()
		}
		time.Sleep(time.Second)
	})
}
