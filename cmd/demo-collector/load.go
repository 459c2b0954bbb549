package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// The load equals a thousand nodes that send every 10 seconds. Each has 40 containers and 16 half busy CPUs, sampled 49 times a
// second.
const (
	perSecond  = 100
	nodes      = 4
	containers = 40
	stacks     = 1200
	rows       = 3900
	depth      = 28
)

// window is one node's encoded data of an interval.
type window = profile.Message

// recordWindows encodes the requests in advance, so the senders only send.
func recordWindows() ([]window, error) {
	var windows []window
	for node := range nodes {
		a, err := profile.New(profile.Config{
			Scope: profile.Scope{Name: "profile_cpu"}, Types: []profile.ValueType{{Type: "samples", Unit: "count"}},
			PeriodType: profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 20408163,
		})
		if err != nil {
			return nil, fmt.Errorf("creating the load: %w", err)
		}
		for c := range uint64(containers) {
			a.SetResource(c, profile.Resource{Attributes: attributes(node, c)})
		}
		r := rand.New(rand.NewPCG(uint64(node), 1))
		one := []int64{1}
		for range rows {
			// A few stacks are hot. Most are rare.
			s := uint64(stacks * r.Float64() * r.Float64())
			if a.Add(s, one, 0) == profile.NeedSample {
				a.Insert(s%containers, s, profile.Sample{
					Stack:      frames(s),
					Attributes: []profile.Attribute{{Key: "thread.name", Value: profile.String(fmt.Sprintf("worker-%d", s%3))}},
				}, one, 0)
			}
		}
		now := uint64(time.Now().UnixNano())
		windows = append(windows, a.Flush(now, now+uint64(10*time.Second), profile.Limits{}).Messages...)
	}
	return windows, nil
}

func frames(s uint64) []profile.Frame {
	f := make([]profile.Frame, depth)
	for d := range uint64(depth) {
		// Stacks share their outer frames.
		f[d] = profile.Frame{Name: fmt.Sprintf("example.com/shop/service%d.(*Handler).step%d_%d", s%containers, d, s%(1+(depth-d)/4)), Type: profile.FrameNative}
	}
	return f
}

func attributes(node int, c uint64) []profile.Attribute {
	var a []profile.Attribute
	for _, kv := range [][2]string{
		{"service.name", fmt.Sprintf("service-%d", c)},
		{"k8s.namespace.name", "shop"},
		{"k8s.pod.name", fmt.Sprintf("service-%d-%d", c, node)},
		{"k8s.container.name", "main"},
		{"k8s.node.name", fmt.Sprintf("node-%d", node)},
		{"container.id", fmt.Sprintf("%032x%032x", node, c)},
		{"container.image.name", "registry.example/shop/service"},
	} {
		a = append(a, profile.Attribute{Key: kv[0], Value: profile.String(kv[1])})
	}
	return a
}

// load sends windows until stop is called.
type load struct {
	exporter *export.Exporter
	cancel   context.CancelFunc
	ended    chan struct{}
}

// startLoad starts sending windows to a Collector at a constant rate.
func startLoad(endpoint, compression string, windows []window) (*load, error) {
	file := viper.New()
	file.Set("operator.otel-profiles.exporters.load", map[string]any{"endpoint": endpoint, "insecure": true, "compression": compression})
	cfg, err := config.Load(config.Sources{File: file, FileName: "the load"}).Exporter("load")
	if err != nil {
		return nil, err
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	e, err := export.New(cfg, export.Options{Logger: quiet})
	if err != nil {
		return nil, fmt.Errorf("starting the load: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{exporter: e, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		ticker := time.NewTicker(time.Second / perSecond)
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case now := <-ticker.C:
				m := windows[i%len(windows)]
				// The exporter keeps the body, but does not change it.
				e.Enqueue(export.Message{Body: m.Body, Rows: m.Rows, Samples: m.Samples, Profiles: m.Profiles, Start: now, End: now})
			}
		}
	}()
	return l, nil
}

// delivered returns the number of requests that the Collector has accepted.
func (l *load) delivered() int64 {
	s := l.exporter.Stats()
	return s.Requests - s.Retries
}

// stop ends the load.
func (l *load) stop() error {
	l.cancel()
	<-l.ended
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := l.exporter.Shutdown(ctx); err != nil {
		return fmt.Errorf("stopping the load: %w", err)
	}
	return nil
}
