// Package workload generates the requests of busy machines without a kernel.
package workload

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// Workload generates the stacks of busy programs. A few paths in their call trees take most of the time, and new rare paths keep
// appearing.
type Workload struct {
	t        testing.TB
	agg      *profile.Aggregator
	rnd      *rand.Rand
	services []string
}

// New returns a gadget's workload for some services. The result is always the same.
func New(t testing.TB, gadget string, services ...string) *Workload {
	agg := profile.New(profile.Config{
		Scope: profile.Scope{Name: gadget}, SchemaURL: "https://opentelemetry.io/schemas/1.41.0", Types: []profile.ValueType{{Type: "samples", Unit: "count"}},
		PeriodType: profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 20_408_163,
	})
	return &Workload{t, agg, rand.New(rand.NewPCG(1, 2)), services}
}

// walk goes down a call tree, the outermost function first. At each function, a few callees get most of the calls.
func (w *Workload) walk(service string) []uint64 {
	path := make([]uint64, 8+4*w.rnd.IntN(6))
	at := hash(service)
	for i := range path {
		at = at*0x9e3779b97f4a7c15 + uint64(w.rnd.ExpFloat64()*0.2)
		at ^= at >> 29
		path[i] = at
	}
	return path
}

func stack(service string, path []uint64) []profile.Frame {
	frames := make([]profile.Frame, 0, len(path))
	for _, at := range slices.Backward(path) {
		frames = append(frames, profile.Frame{
			Name: fmt.Sprintf("%s/internal/package%d.(*Type%d).Function%d", service, at%40, at%300, at%3_000),
			File: fmt.Sprintf("/src/%s/package%d/file%d.go", service, at%40, at%900), Line: int64(at % 1000), Address: 0x400000 + at%3_000*64 + at%7,
			Mapping: profile.Mapping{File: "/usr/bin/" + service, GNUBuildID: fmt.Sprintf("%040x", len(service))}, Type: profile.FrameNative,
		})
	}
	return frames
}

func hash(s string) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, s)
	return h.Sum64()
}

// Sample adds n samples.
func (w *Workload) Sample(n int) {
	for range n {
		service := w.services[w.rnd.IntN(len(w.services))]
		thread := fmt.Sprint("worker-", w.rnd.IntN(4))
		w.Add(service, thread, w.walk(service), 1)
	}
}

// Add adds a sample, with a stack from the outermost function to the innermost one.
func (w *Workload) Add(service, thread string, path []uint64, value int64) {
	key, res := path[len(path)-1]^hash(thread), hash(service)
	for range 3 {
		st := w.agg.Add(key, []int64{value}, 0)
		if st == profile.NeedSample {
			one := profile.Sample{Stack: stack(service, path), Attributes: []profile.Attribute{
				{Key: "process.executable.name", Value: profile.String(service)}, {Key: "thread.name", Value: profile.String(thread)},
			}}
			st = w.agg.Insert(res, key, one, []int64{value}, 0)
		}
		if st != profile.NeedResource {
			require.Equal(w.t, profile.Added, st)
			return
		}
		w.agg.SetResource(res, profile.Resource{Attributes: []profile.Attribute{{Key: "service.name", Value: profile.String(service)}, {Key: "host.name", Value: profile.String("node")}}})
	}
}

// Flush returns the requests of an interval.
func (w *Workload) Flush(from, to time.Time) []wire.Message {
	var out []wire.Message
	for _, m := range w.agg.Flush(uint64(from.UnixNano()), uint64(to.UnixNano()), profile.Limits{}).Messages {
		out = append(out, wire.Message{Body: m.Body, Rows: m.Rows, Samples: m.Samples, Profiles: m.Profiles, Start: from, End: to})
	}
	return out
}
