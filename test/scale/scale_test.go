//go:build e2e

// Package scale lets a thousand simulated nodes send to one real OpenTelemetry Collector. Each node sends real requests of a
// node's size over its own connection, at jittered intervals.
package scale

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

var (
	nodes    = flag.Int("nodes", 1000, "simulated nodes")
	interval = flag.Duration("interval", 10*time.Second, "batch window of each node")
	duration = flag.Duration("duration", 30*time.Second, "how long to send")
	cpus     = flag.Int("cpus", 16, "CPUs of a node, which are half busy")
	hertz    = flag.Int("frequency", 49, "samples a second of a busy CPU")
	lines    = flag.Bool("lines", false, "frames with files and lines, as whole stacks and those of Go have them")
	out      = flag.String("out", "", "write the table to this file")

	compression = flag.String("compression", "gzip", "the nodes' compression: gzip, zstd or none")
	profiled    = flag.String("profile", "", "profile the Collector for the duration, into this folder (root)")
)

// A node has 40 containers and, by default, 16 half-busy CPUs, which are sampled 49 times a second. An interval of 10 s has
// about 3,900 samples with about 1,200 distinct stacks.
const (
	containers = 40
	stacks     = 1200
	depth      = 28
)

// window returns a node's encoded data of one interval.
func window(t *testing.T, node int) profile.Message {
	a := profile.New(profile.Config{
		Scope: profile.Scope{Name: "profile_cpu"}, Types: []profile.ValueType{{Type: "samples", Unit: "count"}},
		PeriodType: profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 20408163,
	})
	for c := range uint64(containers) {
		a.SetResource(c, profile.Resource{Attributes: attributes(node, int(c))})
	}
	r := rand.New(rand.NewPCG(uint64(node), 1))
	one := []int64{1}
	for range int(interval.Seconds() * float64(*cpus**hertz) / 2) {
		// A few stacks are hot, and most are rare.
		s := int(float64(stacks*max(*cpus, 4)/16) * r.Float64() * r.Float64())
		if a.Add(uint64(s), one, 0) == profile.NeedSample {
			require.Equal(t, profile.Added, a.Insert(uint64(s%containers), uint64(s), profile.Sample{
				Stack:      frames(s),
				Attributes: []profile.Attribute{{Key: "thread.name", Value: profile.String(fmt.Sprintf("worker-%d", s%3))}},
			}, one, 0))
		}
	}
	now := uint64(time.Now().UnixNano())
	messages := a.Flush(now, now+uint64(*interval), profile.Limits{}).Messages
	require.Len(t, messages, 1)
	return messages[0]
}

func frames(s int) []profile.Frame {
	f := make([]profile.Frame, depth)
	for d := range f {
		f[d] = profile.Frame{Name: fmt.Sprintf("github.com/shop/service%d/pkg.(*Handler).method%d_%d", s%containers, d, s%(1+(depth-d)/4)), Type: profile.FrameNative}
		if *lines {
			f[d].File, f[d].Line = fmt.Sprintf("/go/src/github.com/shop/service%d/pkg/handler%d.go", s%containers, d), int64(10+s%(1+(depth-d)/4))
		}
	}
	return f
}

func attributes(node, c int) []profile.Attribute {
	var a []profile.Attribute
	for k, v := range map[string]string{
		"service.name": fmt.Sprintf("service-%d", c), "service.namespace": "shop", "service.version": "1.2.3",
		"service.instance.id": fmt.Sprintf("shop.service-%d-%d.main", c, node),
		"k8s.namespace.name":  "shop", "k8s.pod.name": fmt.Sprintf("service-%d-%d", c, node), "k8s.container.name": "main",
		"k8s.deployment.name": fmt.Sprintf("service-%d", c), "k8s.node.name": fmt.Sprintf("node-%d", node),
		"container.id": fmt.Sprintf("%032x%032x", node, c), "container.name": "main", "container.image.name": "registry.example/shop/service",
		"container.runtime.name": "containerd", "host.name": fmt.Sprintf("node-%d", node), "host.arch": "amd64", "os.type": "linux",
	} {
		a = append(a, profile.Attribute{Key: k, Value: profile.String(v)})
	}
	return a
}

func TestThousandNodes(t *testing.T) {
	c := collectortest.New(t, "nop")
	c.Start()
	file := viper.New()
	file.Set("operator.otel-profiles.exporters.x", map[string]any{"exporter": "otlp-grpc", "endpoint": c.GRPC, "insecure": true, "compression": *compression})
	cfg, err := config.Load(config.Sources{File: file}).Exporter("x")
	require.NoError(t, err)
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)

	// All nodes replay the data of a few, because a request's cost does not depend on its node.
	windows := make([]profile.Message, 20)
	for i := range windows {
		windows[i] = window(t, i)
	}

	cpu0, rss0, _ := c.Usage()
	began := time.Now()
	var wg sync.WaitGroup
	exporters := make([]*export.Exporter, *nodes)
	stop := make(chan struct{})
	for n := range exporters {
		e := export.New(cfg, export.Options{Logger: quiet})
		require.NoError(t, e.Opened(t.Context()))
		exporters[n] = e
		wg.Go(func() {
			// Each node waits for a random part of the first interval. After that, it sends once per interval.
			next := began.Add(rand.N(*interval))
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Until(next)):
				}
				m := windows[n%len(windows)]
				now := time.Now()
				e.Enqueue(export.Message{Body: m.Body, Rows: m.Rows, Samples: m.Samples, Profiles: m.Profiles, Start: now.Add(-*interval), End: now})
				next = next.Add(*interval)
			}
		})
	}
	if *profiled == "" {
		time.Sleep(*duration)
	} else {
		profileCollector(t, c.PID())
	}
	close(stop)
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var rows export.RowCounts
	var requests, bytes, wire int64
	for _, e := range exporters {
		require.NoError(t, e.Shutdown(ctx))
		s := e.Stats()
		rows.Enqueued += s.Rows.Enqueued
		rows.Delivered += s.Rows.Delivered
		rows.Held += s.Rows.Held
		requests += s.Requests
		bytes += s.RequestBytes
		wire += s.WireBytes
	}
	elapsed := time.Since(began).Seconds()
	cpu, _, peak := c.Usage()
	require.Equal(t, rows.Enqueued, rows.Delivered, "every row of every node is delivered")
	require.Greater(t, requests, int64(*nodes), "more than one request a node")

	cores := (cpu - cpu0).Seconds() / elapsed
	perRequest := (cpu - cpu0).Seconds() / float64(requests)
	text := fmt.Sprintf("%d nodes for %.0f s: %d rows delivered of %d, %.0f requests/s, %.2f MB/s uncompressed (%.1f kB a request, %.1f kB with compression %s), Collector: %.2f cores (%.2f ms a request), %d MiB resident before, %d MiB at most\n\n",
		*nodes, elapsed, rows.Delivered, rows.Enqueued, float64(requests)/elapsed, float64(bytes)/elapsed/1e6, float64(bytes)/float64(requests)/1e3, float64(wire)/float64(requests)/1e3, *compression,
		cores, perRequest*1e3, rss0>>20, peak>>20)
	text += fmt.Sprintf("| nodes | requests/s | MB/s, uncompressed | MB/s, compression %[1]s | GB a day, compression %[1]s | Collector, cores |\n|---|---|---|---|---|---|\n", *compression)
	for _, n := range []int{100, 200, 1000, 10_000} {
		rps := float64(n) / interval.Seconds()
		text += fmt.Sprintf("| %d | %.0f | %.1f | %.2f | %.0f | %.2f |\n", n, rps, rps*float64(bytes)/float64(requests)/1e6,
			rps*float64(wire)/float64(requests)/1e6, rps*float64(wire)/float64(requests)/1e9*86400, rps*perRequest)
	}
	t.Log("\n" + text)
	if *out != "" {
		require.NoError(t, os.MkdirAll(filepath.Dir(*out), 0o755))
		require.NoError(t, os.WriteFile(*out, []byte(text), 0o644))
	}
}

// profileCollector prints a table of the Collector's functions, and writes the result of the command profile. The frequency is
// above the default, for a result after seconds. It is odd, so sampling is not synchronous with the nodes.
func profileCollector(t *testing.T, pid int) {
	cmd := exec.CommandContext(t.Context(), igtest.Built(t, igtest.Bin, "profile"), fmt.Sprintf("--pid=%d", pid), "--frequency=499", "--seconds="+duration.String(), "--output="+*profiled)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	require.NoError(t, cmd.Run())
}
