//go:build e2e

package backends

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

const parcaCPU = "process_cpu:samples:count:cpu:nanoseconds:delta"

type parca struct {
	*process
	address string
	types   string // the profile type to query; parcaCPU if empty
}

// of returns the same server for queries about another profile type.
func (p *parca) of(types string) server { return &parca{p.process, p.address, types} }

func (p *parca) picked(selector string) string { return cmp.Or(p.types, parcaCPU) + selector }

// profileTypes returns the types that have arrived, in the form in which a query begins.
func (p *parca) profileTypes(t *testing.T, _ span) []string {
	t.Helper()
	var answer struct {
		Types []struct {
			Name, SampleType, SampleUnit, PeriodType, PeriodUnit string
			Delta                                                bool
		}
	}
	call(t, p.url("types"), url.Values{}, nil, &answer)
	var types []string
	for _, a := range answer.Types {
		one := strings.Join([]string{a.Name, a.SampleType, a.SampleUnit, a.PeriodType, a.PeriodUnit}, ":")
		if a.Delta {
			one += ":delta"
		}
		types = append(types, one)
	}
	return types
}

// startParca starts Parca on loopback, with its data in memory.
func startParca(t *testing.T, flags ...string) *parca {
	t.Helper()
	p := &parca{address: collectortest.FreeAddr(t)}
	p.process = run(t, "http://"+p.address+"/api/profiles/types", nil, igtest.Built(t, igtest.Bin, "parca"),
		append([]string{"--config-path=" + writeFile(t, "parca.yaml", "object_storage:\n  bucket:\n    type: FILESYSTEM\n    config: {directory: "+t.TempDir()+"}\n"),
			"--http-address=" + p.address, "--log-level=warn",
			"--debuginfod-upstream-servers=127.0.0.1:1"}, flags...)...)
	return p
}

func (p *parca) name() string    { return "parca" }
func (p *parca) addr() string    { return p.address }
func (p *parca) version() string { return moduleVersion("parca", "github.com/parca-dev/parca") }

func (p *parca) url(path string) string { return "http://" + p.address + "/api/profiles/" + path }

func (p *parca) merge(prefix, selector string, in span, report string) url.Values {
	return url.Values{
		prefix + "merge.query": {p.picked(selector)},
		prefix + "merge.start": {in.from.UTC().Format(time.RFC3339Nano)},
		prefix + "merge.end":   {in.until.UTC().Format(time.RFC3339Nano)},
		"mode":                 {"MODE_MERGE"},
		"report_type":          {report},
	}
}

func (p *parca) query(t *testing.T, selector string, in span) []stack {
	t.Helper()
	var answer struct{ Pprof string }
	call(t, p.url("query"), p.merge("", selector, in, "REPORT_TYPE_PPROF"), nil, &answer)
	body, err := base64.StdEncoding.DecodeString(answer.Pprof)
	require.NoError(t, err)
	prof, err := profile.Parse(bytes.NewReader(body))
	require.NoError(t, err)
	return pprofStacks(prof)
}

// pprofStacks returns the stacks of a profile in pprof's format.
func pprofStacks(prof *profile.Profile) []stack {
	var stacks []stack
	for _, s := range prof.Sample {
		one := stack{value: s.Value[0]}
		for _, l := range s.Location {
			if len(l.Line) == 0 {
				one.functions = append(one.functions, "")
			}
			for _, line := range l.Line {
				one.functions = append(one.functions, line.Function.Name)
			}
		}
		stacks = append(stacks, one)
	}
	return stacks
}

func (p *parca) flame(t *testing.T, selector string, in span) int64 {
	t.Helper()
	var answer struct {
		Total           number
		FlamegraphArrow struct{ Total number }
	}
	call(t, p.url("query"), p.merge("", selector, in, "REPORT_TYPE_FLAMEGRAPH_ARROW"), nil, &answer)
	return int64(answer.Total)
}

func (p *parca) stored(t *testing.T, selector string, in span) int64 {
	t.Helper()
	var answer struct {
		Series []struct {
			Samples []struct{ Value number }
		}
	}
	step := "1s"
	if !strings.HasSuffix(p.picked(""), ":delta") {
		step = "1ms" // for states, Parca returns one profile per step: queryRangeNonDelta in pkg/parcacol/querier.go
	}
	call(t, p.url("query_range"), url.Values{
		"query": {p.picked(selector)}, "start": {in.from.UTC().Format(time.RFC3339Nano)},
		"end": {in.until.UTC().Format(time.RFC3339Nano)}, "step": {step},
	}, nil, &answer)
	sum := int64(0)
	for _, s := range answer.Series {
		for _, point := range s.Samples {
			sum += int64(point.Value)
		}
	}
	return sum
}

func (p *parca) diff(t *testing.T, selector string, left, right span) (int64, int64) {
	t.Helper()
	q := p.merge("diff.a.", selector, left, "REPORT_TYPE_TOP")
	for k, v := range p.merge("diff.b.", selector, right, "REPORT_TYPE_TOP") {
		q[k] = v
	}
	q.Set("mode", "MODE_DIFF")
	q.Set("diff.absolute", "true") // otherwise, Parca scales the left side to the right side
	q.Set("diff.a.mode", "MODE_MERGE")
	q.Set("diff.b.mode", "MODE_MERGE")
	var answer struct {
		Top struct {
			List []struct {
				Meta struct {
					Function struct{ Name string }
				}
				Cumulative, Diff number
			}
		}
	}
	call(t, p.url("query"), q, nil, &answer)
	for _, n := range answer.Top.List {
		if n.Meta.Function.Name == entry {
			return int64(n.Cumulative - n.Diff), int64(n.Cumulative)
		}
	}
	return 0, 0
}

// seconds: Parca multiplies samples by their period.
func (p *parca) seconds(value int64, _ int) float64 { return time.Duration(value).Seconds() }

func (p *parca) labels(t *testing.T, _ string, in span) []string {
	t.Helper()
	var answer struct{ LabelNames []string }
	call(t, p.url("labels"), url.Values{
		"start": {in.from.UTC().Format(time.RFC3339Nano)}, "end": {in.until.UTC().Format(time.RFC3339Nano)},
	}, nil, &answer)
	return answer.LabelNames
}
