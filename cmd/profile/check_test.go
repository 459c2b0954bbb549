package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// shopRun writes a run of 10,000 samples. main calls price, which has the given number of these samples.
func shopRun(t *testing.T, price int64) string {
	t.Helper()
	frame := func(name string) receiver.Frame {
		return receiver.Frame{Name: name, Type: "native", Mapping: "/srv/shop", Address: 1}
	}
	return inputOf(t, timed(price, frame("price"), frame("main")), timed(10_000-price, frame("a|b`c\n@d"), frame("main")))
}

func inputOf(t *testing.T, samples ...receiver.Sample) string {
	t.Helper()
	var data bytes.Buffer
	require.NoError(t, receiver.WriteJSONLine(&data, request(samples...)))
	file := filepath.Join(t.TempDir(), "profiles.json")
	require.NoError(t, os.WriteFile(file, data.Bytes(), 0o600))
	return file
}

func TestCheck(t *testing.T) {
	base, same, slower := shopRun(t, 1000), shopRun(t, 1010), shopRun(t, 1400)
	for _, tt := range []struct {
		name string
		args []string
		want error
		says string
	}{
		{"no rule", []string{base, slower}, nil, "2 changes beyond chance"},
		{"unchanged", []string{base, same, "--fail-on", "share>+0pp"}, nil, "no regression"},
		{"points", []string{base, slower, "--fail-on", "share>+3pp"}, errRegression, "price: own share 10.0% → 14.0%, +4.0 ±0.9 points (+40 %), share>+3pp"},
		{"more points than it is", []string{base, slower, "--fail-on", "share>+5pp"}, nil, "no regression"},
		{"percent", []string{base, slower, "--fail-on", "share > +30%"}, errRegression, "1 regression"},
		{"more percent than it is", []string{base, slower, "--fail-on=share>+50%"}, nil, "no regression"},
		{"total, of which main has all", []string{base, slower, "--fail-on", "total>+3pp"}, errRegression, "price: share with its callees 10.0% → 14.0%"},
		{"of the program", []string{base, slower, "--fail-on", "share>+50%,shop:self>+3pp"}, errRegression, "shop:self>+3pp"},
		{"the share of what remains, as price shrinks", []string{slower, base, "--fail-on", "share>+3pp"}, errRegression, `d": own share 86.0% → 90.0%`},
		{"runs", []string{"--fail-on", "share>+3pp", base, same, base, "--", slower, slower}, errRegression, "after:  2 runs, 20000 samples"},
		{"runs that differ by as much", []string{"--fail-on", "share>+2pp", base, slower, base, "--", slower, base, slower}, nil, "no regression"},
		{"too fine", []string{base, same, "--fail-on", "share>+0.5pp"}, nil, "requires 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			err := runCheck(tt.args, &out)
			require.ErrorIs(t, err, tt.want)
			require.NotErrorIs(t, err, errCheck)
			require.Contains(t, out.String(), tt.says)
		})
	}

	waits := inputOf(t, receiver.Sample{Type: "off_cpu", Unit: "nanoseconds", PeriodType: "off_cpu", PeriodUnit: "nanoseconds", Period: 1, Values: []int64{3e9}})
	for says, args := range map[string][]string{
		"did you mean markdown?":              {base, same, "--format", "markdow"},
		"write a rule such as 'share>+3pp'":   {base, same, "--fail-on", "share>3"},
		"takes two results":                   {base},
		"takes two results, or several":       {base, same, base},
		"did you mean --fail-on?":             {base, same, "--fail-of", "share>+3pp"},
		"no such file":                        {base, base + "x"},
		"these cannot be compared":            {base, waits},
		`have no program "shp": did you mean`: {base, same, "--fail-on", "shp:share>+3pp"},
		"--rows 0":                            {base, same, "--rows", "0"},
	} {
		err := runCheck(args, &bytes.Buffer{})
		require.ErrorIs(t, err, errCheck)
		require.ErrorContains(t, err, says)
	}
	require.ErrorIs(t, runCheck([]string{"--help"}, &bytes.Buffer{}), pflag.ErrHelp)
	require.ErrorIs(t, runCheck([]string{base, same}, failingWriter{}), errWrite)
}

// TestCheckExample requires that the page's example is what the command prints.
func TestCheckExample(t *testing.T) {
	page, err := os.ReadFile("../../docs/guides/check.md")
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	args := []string{"--fail-on", "share>+3pp"}
	for _, run := range []struct {
		name  string
		price int64
	}{{"base-1", 1000}, {"base-2", 1030}, {"base-3", 960}, {"--", 0}, {"new-1", 1410}, {"new-2", 1370}, {"new-3", 1440}} {
		if args = append(args, run.name); run.name == "--" {
			continue
		}
		frame := func(name string) receiver.Frame { return receiver.Frame{Name: name, Type: "go", Mapping: "/srv/shop"} }
		rest := 10_000 - run.price
		require.NoError(t, os.Rename(inputOf(t, timed(run.price, frame("main.price")), timed(rest/3, frame("main.render")), timed(rest-rest/3, frame("main.find"))), run.name))
	}
	var out bytes.Buffer
	require.ErrorIs(t, runCheck(args, &out), errRegression)
	require.Contains(t, string(page), "```text\n"+out.String()+"```\n")
}

var errWrite = errors.New("disk full")

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errWrite }

// TestCheckFormats requires that JSON contains all numbers, and that Markdown shows a workload's names only as code.
func TestCheckFormats(t *testing.T) {
	base, slower := shopRun(t, 1000), shopRun(t, 1400)
	var out bytes.Buffer
	require.ErrorIs(t, runCheck([]string{base, slower, "--fail-on", "share>+3pp", "--format", "json"}, &out), errRegression)
	var got struct {
		Regression bool
		Tested     int
		Before     sideJSON
		Shares     []judgedJSON
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	require.True(t, got.Regression)
	require.Equal(t, sideJSON{[]string{base}, 1, 10_000}, got.Before)
	require.Equal(t, 2, got.Tested)
	require.Len(t, got.Shares, 2)
	for _, s := range got.Shares {
		require.True(t, s.Significant)
		require.Less(t, s.Low, s.After-s.Before)
		require.Greater(t, s.High, s.After-s.Before)
		require.Less(t, s.P, 1e-6)
		require.InDelta(t, 0.02, s.Detectable, 0.01)
		if s.Function == "price" {
			require.Equal(t, []string{"share>+3pp"}, s.Broken)
		} else {
			require.Empty(t, s.Broken)
		}
	}

	out.Reset()
	require.ErrorIs(t, runCheck([]string{base, slower, "--fail-on", "share>+3pp", "--format", "markdown"}, &out), errRegression)
	require.Contains(t, out.String(), "### Profile check: 1 regression\n")
	require.Contains(t, out.String(), "| `price` | 10.0% | 14.0% | +4.0 ±0.9 |")
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "@d") {
			require.Regexp(t, "^\\| `\"a\\\\\\|b'c\\\\n@d\"` \\| 90\\.0% ", line)
		}
	}
}

// TestCheckOfServices requires that, with several services, a function's share refers to its service, and a service's share to
// the total.
func TestCheckOfServices(t *testing.T) {
	side := func(shop, billing int64) string {
		var samples []receiver.Sample
		for name, n := range map[string]int64{"shop": shop, "billing": billing} {
			s := timed(n/4, receiver.Frame{Name: "price"})
			rest := timed(n-n/4, receiver.Frame{Name: "store"})
			s.Attributes, rest.Attributes = map[string]string{"process.executable.name": name}, map[string]string{"process.executable.name": name}
			samples = append(samples, s, rest)
		}
		return inputOf(t, samples...)
	}
	var out bytes.Buffer
	require.ErrorIs(t, runCheck([]string{side(8000, 2000), side(8000, 4000), "--fail-on", "share>+1pp,service>+5pp"}, &out), errRegression)
	require.Contains(t, out.String(), "1 regression\n  billing: share of all samples 20.0% → 33.3%")
	require.Contains(t, out.String(), "price in billing")
}
