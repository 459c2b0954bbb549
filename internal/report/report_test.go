package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// timer is the type of CPU samples at 100 samples a second.
var timer = receiver.Type{Type: "samples", Unit: "count", PeriodType: "cpu", PeriodUnit: "nanoseconds", Period: 10_000_000}

// of returns a sample of a type.
func of(t receiver.Type, service string, n int64, stack ...receiver.Frame) receiver.Sample {
	return receiver.Sample{
		Type: t.Type, Unit: t.Unit, PeriodType: t.PeriodType, PeriodUnit: t.PeriodUnit, Period: t.Period,
		Service: service, Values: []int64{n}, Stack: stack, Start: time.Unix(1_700_000_000, 0).UTC(), End: time.Unix(1_700_000_010, 0).UTC(),
	}
}

// shop returns samples of a service: main.work called vfs_read (3 samples), ran by itself twice, and
// called a function without a symbol once.
func shop() []receiver.Sample {
	work := receiver.Frame{Name: "main.work", Type: "native", File: "main.go", Line: 7, Mapping: "/usr/bin/app", Address: 0x1234}
	samples := []receiver.Sample{
		of(timer, "shop", 3, receiver.Frame{Name: "vfs_read", Type: "kernel", Mapping: "[kernel.kallsyms]"}, work),
		of(timer, "shop", 2, work),
		of(timer, "shop", 1, receiver.Frame{Type: "native", Mapping: "/usr/bin/app", Address: 0x2345}, work),
	}
	samples[0].Attributes = map[string]string{"thread.name": "worker"}
	return samples
}

func TestTop(t *testing.T) {
	rows := Top(shop(), 0, Options{})
	require.Len(t, rows, 3)
	require.Equal(t, "vfs_read", rows[0].Function)
	require.Equal(t, "shop", rows[0].Group)
	require.EqualValues(t, 3, rows[0].Self)
	require.InDelta(t, 0.5, rows[0].SelfShare, 1e-9)
	require.InDelta(t, 0.03, rows[0].Seconds, 1e-9)
	require.Equal(t, "main.work", rows[1].Function)
	require.EqualValues(t, 2, rows[1].Self)
	require.EqualValues(t, 6, rows[1].Total)
	require.InDelta(t, 1, rows[1].TotalShare, 1e-9)
	require.Equal(t, "[app]", rows[2].Function)
	require.Len(t, Top(shop(), 2, Options{}), 2)
	require.Empty(t, Top(nil, 5, Options{}))
}

func TestTopCountsRecursionOnceAndLostStacks(t *testing.T) {
	f := func(names ...string) (stack []receiver.Frame) {
		for _, n := range names {
			stack = append(stack, receiver.Frame{Name: n})
		}
		return stack
	}
	rows := Top([]receiver.Sample{
		{Service: "a", Stack: f("x", "y", "x", "y"), Unit: "count", Values: []int64{4}},
		{Service: "b", Stack: f("x"), Unit: "count", Values: []int64{2}},
		{Service: "b", Unit: "count", Values: []int64{1}},
	}, 0, Options{})
	require.Equal(t, []Row{
		{Group: "a", Function: "x", Self: 4, Total: 4, SelfShare: 4. / 7, TotalShare: 4. / 7},
		{Group: "b", Function: "x", Self: 2, Total: 2, SelfShare: 2. / 7, TotalShare: 2. / 7},
		{Group: "b", Function: "[no stack]", Self: 1, Total: 1, SelfShare: 1. / 7, TotalShare: 1. / 7},
		{Group: "a", Function: "y", Total: 4, TotalShare: 4. / 7},
	}, rows)
}

// A program must have its executable's name in all threads. The resource has that name, and settings can move it to the sample.
func TestProgram(t *testing.T) {
	s := of(timer, "system", 1)
	require.Equal(t, "system", Program(s))
	s.Attributes = map[string]string{"thread.name": "worker-7"}
	require.Equal(t, "worker-7", Program(s))
	s.Resource = map[string]string{"process.executable.name": "dockerd"}
	require.Equal(t, "dockerd", Program(s))
	s.Attributes["process.executable.name"] = "moved"
	require.Equal(t, "moved", Program(s))
	s.Resource["container.name"] = "app"
	require.Equal(t, "system", Program(s))
}

func TestWriteTop(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, WriteTop(&b, timer, "SERVICE", []Row{
		{Group: "shop", Function: "main.work", SelfShare: 0.5, TotalShare: 1, Self: 125, Seconds: 1.25},
		{Group: "evil\x1b[2J", Function: "a\nb", SelfShare: 0.25},
		{Function: strings.Repeat("x", 100)},
	}, Options{}))
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	require.Len(t, lines, 4)
	require.Equal(t, []string{"SELF", "TOTAL", "SECONDS", "SAMPLES", "SERVICE", "FUNCTION"}, strings.Fields(lines[0]))
	require.Equal(t, []string{"50.0%", "100.0%", "1.25", "125", "shop", "main.work"}, strings.Fields(lines[1]))
	require.Contains(t, lines[2], `"evil\x1b[2J"`)
	require.Contains(t, lines[2], `"a\nb"`)
	require.Contains(t, lines[3], strings.Repeat("x", maxFunction-1)+"…")
	require.NotContains(t, b.String(), "\x1b")
	column := strings.Index(lines[0], "FUNCTION")
	require.Equal(t, column, strings.Index(lines[1], "main.work"))
	require.Equal(t, column, strings.Index(lines[2], `"a\nb"`))

	b.Reset()
	require.NoError(t, WriteTop(&b, timer, "", []Row{
		{Function: "wait", SelfShare: 0.9, TotalShare: 1, Self: 3, Seconds: 0.03, Error: 0.123}, {Function: "g", Self: 1, SelfShare: 0.0001, Seconds: 0.0004}, {Function: "main", TotalShare: 1},
	}, Options{}))
	lines = strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	require.Equal(t, []string{"90.0%", "±13", "100.0%", "0.0300", "3", "wait"}, strings.Fields(lines[1]), "less than a second in all")
	require.Equal(t, []string{"<0.1%", "0.0%", "0.0004", "1", "g"}, strings.Fields(lines[2]), "no amount above zero rounds to zero")
	require.Equal(t, []string{"-", "100.0%", "-", "-", "main"}, strings.Fields(lines[3]))

	require.ErrorIs(t, WriteTop(failingWriter{}, timer, "SERVICE", nil, Options{}), errWrite)
}

// If there is room, each function must have its file and line.
func TestWriteTopWithPlaces(t *testing.T) {
	work := receiver.Frame{Name: "main.work", File: "/src/shop/main.go", Line: 7}
	other := work
	other.Line = 9
	frozen := receiver.Frame{Name: "_find", File: "<frozen importlib>", Line: 5}
	rows := Top([]receiver.Sample{of(timer, "s", 2, work), of(timer, "s", 5, other), of(timer, "s", 3, frozen, work)}, 0, Options{})
	require.Equal(t, "/src/shop/main.go", rows[0].File)
	require.EqualValues(t, 9, rows[0].Line, "its most frequent line")
	require.Empty(t, rows[1].File)
	var b bytes.Buffer
	require.NoError(t, WriteTop(&b, timer, "", rows, Options{}))
	require.Regexp(t, `main\.work  main\.go:9\n`, b.String())
	require.Regexp(t, `FUNCTION   FILE\n`, b.String())
	b.Reset()
	require.NoError(t, WriteTop(&b, timer, "", rows, Options{Width: 40}))
	require.NotContains(t, b.String(), "main.go")
	// Long names make room for places, or end with the terminal's line.
	work.Name = strings.Repeat("ü", 63)
	rows = Top([]receiver.Sample{of(timer, "s", 5, work)}, 0, Options{})
	for width, place := range map[int]bool{0: true, 80: false, 100: true, 200: true} {
		b.Reset()
		require.NoError(t, WriteTop(&b, timer, "", rows, Options{Width: width}))
		require.Equal(t, place, strings.Contains(b.String(), "main.go:7\n"), width)
		for line := range strings.Lines(b.String()) {
			require.True(t, width == 0 || utf8.RuneCountInString(line) <= width+1, "%d: %s", width, line)
		}
	}
}

// A share of few samples must be shown with its error. A share of many samples must not.
func TestChance(t *testing.T) {
	rows := Top([]receiver.Sample{of(timer, "s", 30, receiver.Frame{Name: "a"}), of(timer, "s", 30, receiver.Frame{Name: "b"})}, 0, Options{})
	require.InDelta(t, 0.125, rows[0].Error, 0.005, "half of 60 samples")
	rows = Top([]receiver.Sample{of(timer, "s", 1, receiver.Frame{Name: "a"})}, 0, Options{})
	require.InDelta(t, 0.833, rows[0].Error, 0.005, "one sample has a large error, and no share is above 100 %")
	rows = Top([]receiver.Sample{of(timer, "s", 30_000, receiver.Frame{Name: "a"}), of(timer, "s", 30_000, receiver.Frame{Name: "b"})}, 0, Options{})
	require.Zero(t, rows[0].Error)
	exact := receiver.Type{Type: "off_cpu", Unit: "nanoseconds"}
	rows = Top([]receiver.Sample{of(exact, "s", 30, receiver.Frame{Name: "a"}), of(exact, "s", 30, receiver.Frame{Name: "b"})}, 0, Options{})
	require.Zero(t, rows[0].Error, "all waits are counted")

	all := []receiver.Sample{of(timer, "s", 100_000, receiver.Frame{Name: "a"}), of(timer, "s", 1, receiver.Frame{Name: "b"})}
	require.Len(t, Top(all, 5, Options{}), 1, "shares that round to zero get no row")
	require.Len(t, Top(all, 0, Options{}), 2)
}

var errWrite = errors.New("disk full")

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errWrite }

// svgBoxOf is a box of a picture as a program reads it.
type svgBoxOf struct {
	Title string `xml:"title"`
	Rect  struct {
		X     float64 `xml:"x,attr"`
		Y     float64 `xml:"y,attr"`
		Width float64 `xml:"width,attr"`
	} `xml:"rect"`
	Text string `xml:"text"`
}

func TestWriteFlameSVG(t *testing.T) {
	read := func(samples []receiver.Sample) (title string, boxes []svgBoxOf) {
		var b bytes.Buffer
		require.NoError(t, WriteFlameSVG(&b, "CPU <now>", samples))
		var svg struct {
			Title string     `xml:"text"`
			Boxes []svgBoxOf `xml:"g"`
		}
		require.NoError(t, xml.Unmarshal(b.Bytes(), &svg))
		return svg.Title, svg.Boxes
	}
	title, boxes := read(shop())
	require.Equal(t, "CPU <now>", title)
	var lines []string
	for _, b := range boxes {
		lines = append(lines, fmt.Sprintf("%g %g+%g %s", (b.Rect.Y-svgHead)/svgRow, b.Rect.X, b.Rect.Width+0.5, b.Title))
	}
	require.Equal(t, []string{
		"0 0+1200 all 0.060 s, 100.0 %",
		"1 0+1200 shop 0.060 s, 100.0 %",
		"2 0+600 main.work 0.030 s, 50.0 %",
		"3 0+200 app+0x2345 0.010 s, 16.7 %",
		"2 600+600 worker 0.030 s, 50.0 %",
		"3 600+600 main.work 0.030 s, 50.0 %",
		"4 600+600 vfs_read 0.030 s, 50.0 %",
	}, lines)
	require.Equal(t, "vfs_read", boxes[6].Text)

	// In a container the service is enough.
	inside := shop()
	for i := range inside {
		inside[i].Resource = map[string]string{"container.name": "app"}
	}
	_, boxes = read(inside)
	require.Len(t, boxes, 5)

	require.ErrorIs(t, WriteFlameSVG(failingWriter{}, "demo", nil), errWrite)
}

func TestFlameSVGWithHostileNames(t *testing.T) {
	const evil = "</title><script>alert(1)</script>\x00\x1b\xff"
	deep := make([]receiver.Frame, 2*svgMaxDepth)
	for i := range deep {
		deep[i].Name = fmt.Sprint(evil, i)
	}
	var b bytes.Buffer
	require.NoError(t, WriteFlameSVG(&b, evil, []receiver.Sample{
		{Service: evil, Unit: evil, Values: []int64{1}, Stack: deep},
		{Service: evil, Unit: evil, Values: []int64{-1}},
	}))
	require.NotContains(t, b.String(), "<script")
	var any struct{}
	require.NoError(t, xml.Unmarshal(b.Bytes(), &any), "the picture is well-formed")
	require.Equal(t, svgMaxDepth, strings.Count(b.String(), "<g>"))

	b.Reset()
	require.NoError(t, WriteFlameSVG(&b, "nothing", nil))
	require.NoError(t, xml.Unmarshal(b.Bytes(), &any))
}
