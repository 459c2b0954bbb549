package flamepage

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// of returns a sample that represents n hits of a 10 ms timer.
func of(service, thread string, n int64, stack ...receiver.Frame) receiver.Sample {
	return receiver.Sample{
		Type: "samples", Unit: "count", PeriodType: "cpu", PeriodUnit: "nanoseconds", Period: 10_000_000, Service: service,
		Attributes: map[string]string{"thread.name": thread}, Values: []int64{n}, Stack: stack,
	}
}

func shop() []receiver.Sample {
	work := receiver.Frame{Name: "main.work", Type: "go", Mapping: "/usr/bin/app"}
	return []receiver.Sample{
		of("shop", "worker", 3, receiver.Frame{Name: "vfs_read", Type: "kernel", Mapping: "[kernel]"}, work),
		of("shop", "worker", 2, work),
		of("shop", "other", 1, receiver.Frame{Type: "native", Mapping: "/usr/lib/libz.so.1", Address: 0x2345}, work),
		of("shop", "worker", 4, work),
	}
}

func TestData(t *testing.T) {
	d := newData(Page{Title: "t", Own: true, Sides: []Side{{Samples: shop()}}})
	require.Equal(t, "s", d.Unit)
	require.EqualValues(t, 1e6, d.Scale)
	require.Equal(t, []string{"all"}, d.Sides)
	require.Equal(t, []string{"worker", "other"}, d.Threads)
	var nodes []string
	for _, n := range d.Nodes {
		nodes = append(nodes, fmt.Sprintf("%d %s [%s] %s", n[0], d.Names[n[1]], d.Kinds[n[2]], d.Files[n[3]]))
	}
	require.Equal(t, []string{
		"-1 shop [service] ", "0 worker [program] ", "1 main.work [go] app", "2 vfs_read [kernel] [kernel]",
		"0 other [program] ", "4 main.work [go] app", "5 libz.so.1+0x2345 [no name] libz.so.1",
	}, nodes)
	require.Equal(t, [][]int64{{0, 0, 3, 2, 30_000}, {0, 0, 2, 2, 60_000}, {0, 1, 6, 5, 10_000}}, d.Samples, "samples of one stack are added up")

	d = newData(Page{Unit: "ms per request", Own: true, Sides: []Side{{Samples: shop()[:1], Scale: 10}, {Samples: shop()[1:2], Scale: 0.5}}})
	require.Equal(t, "ms per request", d.Unit)
	require.Equal(t, []string{"before", "after"}, d.Sides)
	require.Equal(t, [][]int64{{0, 0, 3, 2, 300_000, 0}, {0, 0, 2, 2, 0, 10_000}}, d.Samples)

	// With a step, samples with the same stack stay separate by time. A longer profile has longer steps.
	timed := shop()[1:2]
	for i := range 4 {
		s := timed[0]
		s.Start = s.Start.Add(time.Duration(i/2) * time.Minute)
		timed = append(timed, s)
	}
	d = newData(Page{Step: time.Minute, Sides: []Side{{Samples: timed}}})
	require.Equal(t, []int{0, 1}, d.Times)
	require.Equal(t, [][]int64{{0, 0, 2, 2, 60_000}, {0, 0, 2, 2, 40_000}}, d.Samples)
	require.Equal(t, 2, d.Steps)
	require.EqualValues(t, 60_000, d.Step)
	// A step's first sample can come later within its step than the next step's first sample does.
	from := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	late, early := timed[0], timed[0]
	late.Start, early.Start = from.Add(9*time.Second), from.Add(time.Minute+time.Second)
	d = newData(Page{Step: time.Minute, From: from, Sides: []Side{{Samples: []receiver.Sample{late, early}}}})
	require.Equal(t, []int{0, 1}, d.Times)
	require.Equal(t, from.UnixMilli(), d.Start)
	timed[0].Start = timed[0].Start.Add(24 * time.Hour)
	d = newData(Page{Step: time.Minute, Sides: []Side{{Samples: timed}}})
	require.Less(t, d.Steps, maxSteps)
	require.EqualValues(t, 8*60_000, d.Step)

	fault := receiver.Sample{Type: "page_faults", Unit: "count", Values: []int64{7}}
	d = newData(Page{Sides: []Side{{Samples: []receiver.Sample{fault}}}})
	require.Equal(t, "page faults", d.Unit)
	require.Equal(t, [][]int64{{0, 0, 0, 0, 7}}, d.Samples)

	bytes := receiver.Sample{Type: "alloc_space", Unit: "bytes", Values: []int64{5e12}}
	d = newData(Page{Sides: []Side{{Samples: []receiver.Sample{bytes}}}})
	require.Equal(t, [][]int64{{0, 0, 0, 0, 5e12}}, d.Samples)
	d = newData(Page{Sides: []Side{{Samples: []receiver.Sample{bytes}}, {Samples: []receiver.Sample{bytes}, Scale: 0.5}}})
	require.EqualValues(t, 1e3, d.Scale)
	require.Equal(t, [][]int64{{0, 0, 0, 0, 5e15, 25e14}}, d.Samples)
	d = newData(Page{Sides: []Side{{Samples: []receiver.Sample{fault}, Scale: 1.0 / 12_000}, {}}})
	require.Equal(t, [][]int64{{0, 0, 0, 0, 583, 0}}, d.Samples, "7 in 12,000, in millionths")
}

// Only a table of the program's own functions has a row for stacks without one.
func TestDataOfOwn(t *testing.T) {
	recv := receiver.Frame{Name: "recv", Type: "native", Mapping: "/usr/lib/libc.so.6"}
	for own, want := range map[bool]int64{false: 1, true: -1} {
		d := newData(Page{Own: own, Sides: []Side{{Samples: []receiver.Sample{of("s", "", 1, recv), of("s", "", 1, recv, receiver.Frame{Name: "main.ask", Type: "go"})}}}})
		require.Equal(t, want, d.Samples[0][3], "own %t", own)
	}
}

// A function has one frame, with its most frequent line.
func TestDataHasPlaces(t *testing.T) {
	work := func(line int64) receiver.Frame {
		return receiver.Frame{Name: "work", Type: "cpython", File: "/srv/shop.py", Line: line}
	}
	frozen := receiver.Frame{Name: "find", Type: "cpython", File: "<frozen importlib>"}
	d := newData(Page{Sides: []Side{{Samples: []receiver.Sample{of("s", "", 2, work(7)), of("s", "", 3, work(9)), of("s", "", 1, frozen, work(9))}}}})
	var places []string
	for _, n := range d.Nodes {
		places = append(places, d.Names[n[1]]+" "+d.Places[n[5]])
	}
	require.Equal(t, []string{"s ", "work /srv/shop.py:9", "find "}, places)
	require.InDelta(t, 0.01, d.Period, 1e-9)
}

func TestDataIsBounded(t *testing.T) {
	var samples []receiver.Sample
	for i := range maxNodes + 100 {
		samples = append(samples, of("s", fmt.Sprint("thread", i%(2*maxThreads)), 1, receiver.Frame{Name: fmt.Sprint("f", i)}))
	}
	samples = append(samples, of("s", "hot", 1000, receiver.Frame{Name: "hot"}))
	d := newData(Page{Sides: []Side{{Samples: samples}}})
	require.LessOrEqual(t, len(d.Nodes), maxNodes)
	require.LessOrEqual(t, len(d.Threads), maxThreads+1)
	require.Positive(t, d.Left)
	require.Contains(t, d.Names, "hot")
	sum := int64(0)
	for _, s := range d.Samples {
		require.Less(t, s[2], int64(len(d.Nodes)))
		require.Less(t, s[3], int64(len(d.Nodes)))
		sum += s[4]
	}
	require.EqualValues(t, 10_000*(maxNodes+100+1000), sum, "the callers get the value of omitted frames")
	for i, n := range d.Nodes {
		require.Less(t, n[0], i, "a parent comes before its children")
	}

	deep := of("s", "", 1, make([]receiver.Frame, 10*maxDepth)...)
	require.LessOrEqual(t, len(newData(Page{Sides: []Side{{Samples: []receiver.Sample{deep}}}}).Nodes), 2+maxDepth)
	long := of("s", "", 1, receiver.Frame{Name: strings.Repeat("é", 10*maxName)})
	for _, name := range newData(Page{Sides: []Side{{Samples: []receiver.Sample{long}}}}).Names {
		require.LessOrEqual(t, len([]rune(name)), maxName)
	}
	require.Empty(t, newData(Page{Sides: []Side{{Samples: []receiver.Sample{of("s", "", -1), of("s", "", 0)}}}}).Samples)
}

func TestPageTakesNamesAsText(t *testing.T) {
	const evil = `</script><script>alert(1)</script><img src=x onerror=alert(1)>`
	s := of(evil, evil, 1, receiver.Frame{Name: evil, Type: evil, Mapping: evil})
	var b bytes.Buffer
	require.NoError(t, Write(&b, Page{Title: evil, Subtitle: evil, Unit: evil, Sides: []Side{{Samples: []receiver.Sample{s}}}}))
	require.NotContains(t, b.String(), "<script>alert")
	require.NotContains(t, b.String(), "<img")
	require.Contains(t, b.String(), "<title>"+html.EscapeString(evil)+"</title>")
	require.Equal(t, 2, strings.Count(b.String(), "</script>"))
	_, rest, ok := strings.Cut(b.String(), `<script type="application/json" id="data">`)
	require.True(t, ok)
	text, _, _ := strings.Cut(rest, "</script>")
	var d data
	require.NoError(t, json.Unmarshal([]byte(text), &d))
	require.Contains(t, d.Names, evil)
}

func TestPageIsOneFileWithStrictPolicy(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Write(&b, Page{Title: "t", Sides: []Side{{Samples: shop()}}}))
	require.Contains(t, b.String(), "default-src 'none'; script-src 'sha256-")
	require.NotContains(t, b.String(), "unsafe-")
	for _, loads := range []string{`src="`, "<link rel=\"stylesheet", "@import", "url(http"} {
		require.NotContains(t, b.String(), loads)
	}
	require.Contains(t, b.String(), "d3-flame-graph 5.", "the bundle has the licences of its packages")
	require.Contains(t, b.String(), "Apache License")
	require.Contains(t, b.String(), "Mike Bostock")

	require.ErrorIs(t, Write(failing{}, Page{Sides: []Side{{}}}), errWrite)
}

var errWrite = errors.New("disk full")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errWrite }

// TestBundleIsOfTheseSources fails if web has changed since "make page". "make test-page" bundles the script again and compares
// the results.
func TestBundleIsOfTheseSources(t *testing.T) {
	files := []string{"package-lock.json", "build.mjs"}
	sources, err := os.ReadDir("web/src")
	require.NoError(t, err)
	for _, source := range sources {
		files = append(files, "src/"+source.Name())
	}
	sum := sha256.New()
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join("web", file))
		require.NoError(t, err)
		fmt.Fprintf(sum, "%s\n%s", file, text)
	}
	want, err := os.ReadFile("dist/sources.sha256")
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(want)), hex.EncodeToString(sum.Sum(nil)), "run \"make page\" and commit the result")
}
