package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

// intern returns the index of an entry in a table. It adds the entry if necessary.
func intern[T proto.Message](table *[]T, entry T) int32 {
	i := slices.IndexFunc(*table, func(e T) bool { return proto.Equal(e, entry) })
	if i < 0 {
		i = len(*table)
		*table = append(*table, entry)
	}
	return int32(i)
}

// dictionary builds a request's dictionary.
type dictionary struct{ *profilespb.ProfilesDictionary }

func newDictionary() dictionary {
	return dictionary{&profilespb.ProfilesDictionary{
		StringTable: []string{""}, AttributeTable: []*profilespb.KeyValueAndUnit{{}}, FunctionTable: []*profilespb.Function{{}},
		MappingTable: []*profilespb.Mapping{{}}, LocationTable: []*profilespb.Location{{}}, StackTable: []*profilespb.Stack{{}},
		LinkTable: []*profilespb.Link{{}},
	}}
}

func (d dictionary) str(s string) int32 {
	i := slices.Index(d.StringTable, s)
	if i < 0 {
		i = len(d.StringTable)
		d.StringTable = append(d.StringTable, s)
	}
	return int32(i)
}

func text(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
}

func (d dictionary) attribute(key, value string) int32 {
	return intern(&d.AttributeTable, &profilespb.KeyValueAndUnit{KeyStrindex: d.str(key), Value: text(value)})
}

func (d dictionary) stack(leafFirst []receiver.Frame) int32 {
	stack := &profilespb.Stack{}
	for _, f := range leafFirst {
		l := &profilespb.Location{Address: f.Address}
		if f.Type != "" {
			l.AttributeIndices = []int32{d.attribute("profile.frame.type", f.Type)}
		}
		if f.Mapping != "" {
			l.MappingIndex = intern(&d.MappingTable, &profilespb.Mapping{FilenameStrindex: d.str(f.Mapping), AttributeIndices: []int32{d.attribute("process.executable.build_id.gnu", "01"+hex.EncodeToString([]byte(f.Mapping)))}})
		}
		if f.Name != "" {
			i := intern(&d.FunctionTable, &profilespb.Function{NameStrindex: d.str(f.Name), FilenameStrindex: d.str(f.File)})
			l.Lines = []*profilespb.Line{{FunctionIndex: i, Line: f.Line}}
		}
		stack.LocationIndices = append(stack.LocationIndices, intern(&d.LocationTable, l))
	}
	return intern(&d.StackTable, stack)
}

// request encodes samples of one type.
func request(samples ...receiver.Sample) *collectorpb.ExportProfilesServiceRequest {
	const schema = "https://opentelemetry.io/schemas/1.37.0"
	d := newDictionary()
	first := samples[0]
	p := &profilespb.Profile{
		SampleType:   &profilespb.ValueType{TypeStrindex: d.str(first.Type), UnitStrindex: d.str(first.Unit)},
		PeriodType:   &profilespb.ValueType{TypeStrindex: d.str(first.PeriodType), UnitStrindex: d.str(first.PeriodUnit)},
		Period:       first.Period,
		TimeUnixNano: uint64(time.Unix(1_700_000_000, 0).UnixNano()), DurationNano: uint64(10 * time.Second), ProfileId: []byte(rand.Text()[:16]),
	}
	for _, s := range samples {
		sample := &profilespb.Sample{StackIndex: d.stack(s.Stack), Values: s.Values}
		for key, value := range s.Attributes {
			sample.AttributeIndices = append(sample.AttributeIndices, d.attribute(key, value))
		}
		p.Samples = append(p.Samples, sample)
	}
	return &collectorpb.ExportProfilesServiceRequest{Dictionary: d.ProfilesDictionary, ResourceProfiles: []*profilespb.ResourceProfiles{{
		Resource:      &resourcepb.Resource{Attributes: []*commonpb.KeyValue{{Key: "service.name", Value: text("shop")}}},
		SchemaUrl:     schema,
		ScopeProfiles: []*profilespb.ScopeProfiles{{SchemaUrl: schema, Scope: &commonpb.InstrumentationScope{Name: "test"}, Profiles: []*profilespb.Profile{p}}},
	}}}
}

// shown holds a function's percentages in a view.
type shown struct{ self, total string }

func percent(part, all int64) string { return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(all)) }

// terminal parses a table in the terminal.
func terminal(t *testing.T, table string) map[string]shown {
	t.Helper()
	rows, name := map[string]shown{}, 3
	for line := range strings.Lines(table) {
		f := slices.DeleteFunc(strings.Fields(line), func(word string) bool { return strings.HasPrefix(word, "±") })
		if slices.Contains(f, "SAMPLES") {
			name = 4
		}
		if len(f) > name && (strings.HasSuffix(f[0], "%") || f[0] == "-") && strings.HasSuffix(f[1], "%") {
			rows[f[name]] = shown{strings.Replace(f[0], "-", "0.0%", 1), f[1]}
		}
	}
	return rows
}

// page computes a page's table by the rules of the page's script. test/page compares the results.
func page(t *testing.T, file string) (rows map[string]shown, own map[string]string) {
	t.Helper()
	html, err := os.ReadFile(file)
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(html), `<script type="application/json" id="data">`)
	data, _, _ := strings.Cut(rest, "</script>")
	var d struct {
		Names, Kinds []string
		Nodes        [][]int
		Samples      [][]int64
		Folded       bool
	}
	require.NoError(t, json.Unmarshal([]byte(data), &d))
	self, total, owns, all := map[string]int64{}, map[string]int64{}, map[string]int64{}, int64(0)
	path := func(node int) (names []string) {
		for i := node; i >= 0; i = d.Nodes[i][0] {
			kind := d.Kinds[d.Nodes[i][2]]
			if kind != "service" && kind != "program" && (!d.Folded || d.Nodes[i][4] == 0) {
				names = append(names, d.Names[d.Nodes[i][1]])
			}
		}
		return names
	}
	for _, s := range d.Samples {
		names := path(int(s[2]))
		self[names[0]] += s[4]
		of := report.NotOwn
		if s[3] >= 0 {
			of = path(int(s[3]))[0]
		} else {
			total[of] += s[4]
		}
		owns[of] += s[4]
		all += s[4]
		seen := map[string]bool{}
		for _, name := range names {
			if !seen[name] {
				total[name] += s[4]
			}
			seen[name] = true
		}
	}
	rows, own = map[string]shown{}, map[string]string{}
	for name := range total {
		rows[name] = shown{percent(self[name], all), percent(total[name], all)}
		own[name] = percent(owns[name], all)
	}
	return rows, own
}

// goTool parses the tables of go tool pprof.
func goTool(t *testing.T, file string) map[string]shown {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	p, err := pprof.Parse(f)
	require.NoError(t, err)
	column := len(p.SampleType) - 1
	self, total, all := map[string]int64{}, map[string]int64{}, int64(0)
	for _, s := range p.Sample {
		self[s.Location[0].Line[0].Function.Name] += s.Value[column]
		all += s.Value[column]
		seen := map[string]bool{}
		for _, l := range s.Location {
			if name := l.Line[0].Function.Name; !seen[name] {
				seen[name] = true
				total[name] += s.Value[column]
			}
		}
	}
	rows := map[string]shown{}
	for name := range total {
		rows[name] = shown{percent(self[name], all), percent(total[name], all)}
	}
	return rows
}

// sampled returns the result of a run with these options that received these requests.
func sampled(t *testing.T, opts options, requests ...*collectorpb.ExportProfilesServiceRequest) *result {
	t.Helper()
	opts.dir, opts.rows = t.TempDir(), 100
	if opts.time == 0 {
		opts.time = 10 * time.Second
	}
	rcv, err := receiver.Start(receiver.Options{Dir: opts.dir, Fold: opts.fold()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rcv.Close()) })
	conn, err := grpc.NewClient(rcv.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	for _, req := range requests {
		_, err := collectorpb.NewProfilesServiceClient(conn).Export(t.Context(), req)
		require.NoError(t, err)
	}
	require.NoError(t, rcv.Close())
	return &result{opts: opts, rcv: rcv, run: runInfo{Target: "process 7 (shop)", Seconds: opts.time.Seconds(), Started: time.Unix(1_700_000_000, 0)}}
}

// TestTableOfMany requires that a busy machine's table says which share the largest functions have, and explains a file's name
// in brackets.
func TestTableOfMany(t *testing.T) {
	stripped := receiver.Frame{Type: "native", Mapping: "/usr/libexec/cc1", Address: 7}
	samples := []receiver.Sample{timed(4, stripped)}
	for i := range 12 {
		samples = append(samples, timed(3, receiver.Frame{Name: fmt.Sprintf("compile%d", i), Type: "native"}))
	}
	for rows, want := range map[int]bool{3: true, 12: false} { // 10 and 37 of 40 samples
		r := sampled(t, options{}, request(samples...))
		r.opts.rows = rows
		var out bytes.Buffer
		require.NoError(t, r.report(&out))
		require.Equal(t, want, strings.Contains(out.String(), "\n  these rows cover 25 % of the sum: --rows lists more, and the flame graph shows all\n"), out.String())
		require.Equal(t, want, strings.Contains(out.String(), "these rows cover"))
		require.Contains(t, out.String(), "\n  [cc1]: functions in a file with this name; no symbols were found")
	}
	r := sampled(t, options{}, request(timed(9, receiver.Frame{Name: "[cc1]", Type: "native"})))
	var out bytes.Buffer
	require.NoError(t, r.report(&out))
	require.NotContains(t, out.String(), "[cc1]: functions in a file", "a workload can call a function so")
}

// TestFewSamples requires that, with few samples, the output says so and suggests a gadget that shows more.
func TestFewSamples(t *testing.T) {
	for n, few := range map[int64]bool{1: true, 9: true, 10: false} {
		r := sampled(t, options{target: target{list: []int{os.Getpid()}}}, request(timed(n, receiver.Frame{Name: "work", Type: "native"})))
		r.gadget.name = "profile_cpu"
		r.log = "unwind: stacks are whole"
		var out bytes.Buffer
		require.NoError(t, r.report(&out))
		note := fmt.Sprintf("note: %s: too few to compare functions. Sample for longer, or more often with --frequency; --gadget offcpu shows what threads wait for\n", plural(n, "sample"))
		require.Equal(t, few, strings.Contains(out.String(), note), out.String())
		require.Contains(t, out.String(), "A TOTAL has the same interval as an equal SELF")
		require.Contains(t, out.String(), fmt.Sprintf(" seconds (%s) in all", plural(n, "sample")))
	}
}

// timed returns a sample of n hits of a 10 ms timer.
func timed(n int64, leafFirst ...receiver.Frame) receiver.Sample {
	return receiver.Sample{Type: "samples", Unit: "count", PeriodType: "cpu", PeriodUnit: "nanoseconds", Period: 10_000_000, Values: []int64{n}, Stack: leafFirst}
}

// pythonLoad returns samples of a Python program for 10 s. CPython's own functions are the leaves of most samples.
func pythonLoad() []receiver.Sample {
	eval := receiver.Frame{Name: "_PyEval_EvalFrameDefault", Type: "native", Mapping: "/usr/bin/python3.11"}
	add := receiver.Frame{Name: "long_add", Type: "native", Mapping: "/usr/bin/python3.11"}
	memset := receiver.Frame{Name: "memset", Type: "native", Mapping: "/usr/lib/libc.so.6"}
	start := receiver.Frame{Name: "_start", Type: "native", Mapping: "/usr/bin/python3.11"}
	score := receiver.Frame{Name: "score_items", Type: "cpython", File: "/srv/shop.py", Line: 12}
	sort := receiver.Frame{Name: "sort_items", Type: "cpython", File: "/srv/shop.py", Line: 30}
	module := receiver.Frame{Name: "<module>", Type: "cpython", File: "/srv/shop.py", Line: 50}
	return []receiver.Sample{
		timed(260, score, module, start), timed(310, eval, score, module, start), timed(100, add, score, module, start),
		timed(200, sort, module, start), timed(80, eval, sort, module, start), timed(50, memset, eval, sort, module, start),
	}
}

// TestViewsAgree requires that the tables of the terminal, the page and pprof have the same self and total values.
func TestViewsAgree(t *testing.T) {
	want := map[string]shown{
		"score_items": {"67.0%", "67.0%"}, "sort_items": {"28.0%", "33.0%"}, "memset": {"5.0%", "5.0%"}, "<module>": {"0.0%", "100.0%"},
	}
	for name, tt := range map[string]struct {
		opts options
		want map[string]shown
	}{
		"folded": {options{}, want},
		"interpreters": {options{interpreters: true}, map[string]shown{
			"score_items": {"26.0%", "67.0%"}, "sort_items": {"20.0%", "33.0%"}, "memset": {"5.0%", "5.0%"}, "<module>": {"0.0%", "100.0%"},
			"_PyEval_EvalFrameDefault": {"39.0%", "44.0%"}, "long_add": {"10.0%", "10.0%"}, "_start": {"0.0%", "100.0%"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.opts.target.list = []int{os.Getpid()}
			r := sampled(t, tt.opts, request(pythonLoad()...))
			var out bytes.Buffer
			require.NoError(t, r.report(&out))
			require.Equal(t, tt.want, terminal(t, out.String()), "%s", &out)
			rows, _ := page(t, filepath.Join(r.opts.dir, pageFile))
			require.Equal(t, tt.want, rows)
			require.Equal(t, tt.want, goTool(t, filepath.Join(r.opts.dir, receiver.PprofFile)))
		})
	}
}

// TestViewsAgreeOnOwn requires that, for waits, the tables are sorted by the program's own functions.
func TestViewsAgreeOnOwn(t *testing.T) {
	libc := receiver.Frame{Name: "recv", Type: "native", Mapping: "/usr/lib/libc.so.6"}
	ask := receiver.Frame{Name: "ask_stock", Type: "native", Mapping: "/srv/shop"}
	idle := receiver.Frame{Name: "take_order", Type: "native", Mapping: "/srv/shop"}
	wait := func(n int64, stack ...receiver.Frame) receiver.Sample {
		return receiver.Sample{Type: "off_cpu", Unit: "nanoseconds", PeriodType: "off_cpu", PeriodUnit: "nanoseconds", Period: 1, Values: []int64{n}, Stack: stack}
	}
	r := sampled(t, options{target: target{list: []int{os.Getpid()}}}, request(wait(3e9, receiver.Frame{Name: "schedule", Type: "kernel"}, libc, ask), wait(1e9, libc, idle), wait(6e9, libc)))
	var out bytes.Buffer
	require.NoError(t, r.report(&out))
	require.Contains(t, out.String(), "OWN")
	require.Regexp(t, `(?s)ask_stock.*take_order.*\[no function of its own\]`, out.String(), "the program's own functions come first")
	table := terminal(t, out.String())
	require.Equal(t, map[string]shown{"ask_stock": {"30.0%", "30.0%"}, "take_order": {"10.0%", "10.0%"}, "[no": {"60.0%", "60.0%"}}, table)
	rows, own := page(t, filepath.Join(r.opts.dir, pageFile))
	pprofs := goTool(t, filepath.Join(r.opts.dir, receiver.PprofFile))
	table[report.NotOwn] = table["[no"]
	delete(table, "[no")
	for name, row := range table {
		require.Equal(t, row.self, own[name], name)
		require.Equal(t, row.total, rows[name].total, name)
	}
	delete(rows, report.NotOwn)
	require.Equal(t, rows, pprofs)
}

// The output must say if the stacks contain no function of the program itself.
func TestNoFunctionOfItsOwn(t *testing.T) {
	recv := receiver.Frame{Name: "recv", Type: "native", Mapping: "/usr/lib/libc.so.6"}
	lost := receiver.Sample{Type: "off_cpu", Unit: "nanoseconds", PeriodType: "off_cpu", PeriodUnit: "nanoseconds", Period: 1, Values: []int64{3e9}, Stack: []receiver.Frame{recv}}
	kept := lost
	kept.Stack = []receiver.Frame{recv, {Name: "ask_stock", Type: "native", Mapping: "/srv/shop"}}
	r := sampled(t, options{target: target{list: []int{os.Getpid()}}}, request(lost, kept))
	var out bytes.Buffer
	require.NoError(t, r.report(&out))
	require.Contains(t, out.String(), "[no function of its own]: these stacks end in recv. ")
	rows := []report.Row{{Group: "shop", Function: report.NotOwn, Ends: []string{"recv", "poll"}}, {Group: "node", Function: report.NotOwn, Ends: []string{"epoll_wait"}}}
	require.Contains(t, explained(rows)[0], "end in recv, poll (shop), epoll_wait (node). ")
}
