//go:build e2e

// Package soak runs the operator through many intervals of a busy node with short-lived containers and stacks. It checks that
// nothing grows with time.
package soak

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
)

// An interval of 20 ms simulates one of 10 s. So 12 s are 600 intervals, which simulate 100 minutes.
var duration = flag.Duration("soak", 12*time.Second, "how long to run")

const window = 20 * time.Millisecond

func TestContainersComeAndGo(t *testing.T) {
	// The receiver keeps few of its requests.
	r, err := receiver.Start(receiver.Options{MaxBytes: 1 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	gadgettest.Config(t, fmt.Sprintf("operator: {otel-profiles: {exporters: {x: {exporter: otlp-grpc, endpoint: %q, insecure: true}}}}", r.Addr()))
	op := otelprofiles.New()
	require.NoError(t, op.Init(nil))

	var early, worst int64
	var rows, containers, stacks int
	g := &gadgettest.Gadget{Type: datasource.TypeArray}
	g.Start = func(g *gadgettest.Gadget) {
		began := time.Now()
		for tick := 0; time.Since(began) < *duration; tick++ {
			p, err := g.Source.NewPacketArray()
			if err != nil {
				panic(err)
			}
			for i := range 100 {
				// There are always 30 containers, which each live for 10 intervals. Half of the stacks are new.
				c := i%30 + 30*(tick/10)
				leaf := fmt.Sprintf("leaf_%d", i)
				if i%2 == 0 {
					leaf = fmt.Sprintf("leaf_%d_%d", tick, i)
					stacks++
				}
				d := p.New()
				g.FillRow(d, gadgettest.Row{Leaf: leaf, Value: 1, Container: fmt.Sprintf("container-%d", c)})
				p.Append(d)
				rows++
				containers = max(containers, c+1)
			}
			if err := g.Source.EmitAndRelease(p); err != nil {
				panic(err)
			}
			// The dictionary is renewed every 60 intervals, so after 150 intervals it has been renewed twice.
			if elapsed := time.Since(began); elapsed > 150*window && tick%50 == 0 {
				h := igtest.Heap()
				if elapsed < 300*window {
					early = max(early, h)
				} else {
					worst = max(worst, h)
				}
			}
			time.Sleep(window)
		}
		g.Context.Cancel()
	}
	require.NoError(t, g.Make(context.Background(), op).Run(gadgettest.Params("x", otelprofiles.ParamInterval, window.String())))
	st := r.Stats()
	t.Logf("%d rows of %d containers and %d stacks in %d requests; heap at most %.1f MiB in windows 150 to 300 and %.1f MiB after", rows, containers,
		stacks, st.Requests, float64(early)/(1<<20), float64(worst)/(1<<20))
	require.Empty(t, r.Findings())
	require.Contains(t, g.Log.String(), fmt.Sprintf("%d rows read, %d exported, 0 not", rows, rows))
	require.Contains(t, g.Log.String(), fmt.Sprintf("%d delivered, 0 held", rows))
	require.Positive(t, early)
	require.Less(t, worst, early+early/2, "the heap grows with time")
}
