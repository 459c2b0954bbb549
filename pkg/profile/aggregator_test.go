package profile_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	pb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

const (
	start = uint64(1_700_000_000_000_000_000)
	end   = start + 10_000_000_000
)

func config() profile.Config {
	return profile.Config{
		Scope: profile.Scope{Name: "gadget", Version: "v1"}, SchemaURL: "https://opentelemetry.io/schemas/1.41.0",
		Types:      []profile.ValueType{{Type: "samples", Unit: "count"}},
		PeriodType: profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 20_408_163,
	}
}

func names(n ...string) []profile.Frame {
	var f []profile.Frame
	for _, s := range n {
		f = append(f, profile.Frame{Name: s, Type: profile.FrameNative})
	}
	return f
}

func service(name string) profile.Resource {
	return profile.Resource{Attributes: []profile.Attribute{{Key: "service.name", Value: profile.String(name)}}}
}

// put adds a row like an operator.
func put(t testing.TB, a *profile.Aggregator, res, key uint64, s profile.Sample, at uint64, values ...int64) profile.Status {
	for range 1000 { // after a Flush in between, the resource is requested again
		st := a.Add(key, values, at)
		if st == profile.NeedSample {
			st = a.Insert(res, key, s, values, at)
		}
		if st != profile.NeedResource {
			return st
		}
		a.SetResource(res, service(fmt.Sprintf("svc-%d", res)))
	}
	t.Fatal("the row was not taken")
	return 0
}

// decode checks messages against every rule of the protocol, and returns them.
func decode(t testing.TB, f profile.Flushed) []*collectorpb.ExportProfilesServiceRequest {
	var out []*collectorpb.ExportProfilesServiceRequest
	for _, m := range f.Messages {
		require.Empty(t, otlpcheck.CheckBytes(m.Body))
		req := &collectorpb.ExportProfilesServiceRequest{}
		require.NoError(t, proto.Unmarshal(m.Body, req))
		profiles, samples := 0, int64(0)
		for _, rp := range req.ResourceProfiles {
			for _, sp := range rp.ScopeProfiles {
				profiles += len(sp.Profiles)
				for _, p := range sp.Profiles {
					samples += int64(len(p.Samples))
				}
			}
		}
		require.Equal(t, profiles, m.Profiles)
		require.Equal(t, samples, m.Samples)
		out = append(out, req)
	}
	return out
}

// folded formats samples as "service type: leaf;caller value".
func folded(reqs []*collectorpb.ExportProfilesServiceRequest) []string {
	var out []string
	for _, req := range reqs {
		d := req.Dictionary
		for _, rp := range req.ResourceProfiles {
			for _, p := range rp.ScopeProfiles[0].Profiles {
				for _, s := range p.Samples {
					var stack []string
					for _, l := range d.StackTable[s.StackIndex].LocationIndices {
						loc := d.LocationTable[l]
						if len(loc.Lines) == 0 {
							stack = append(stack, fmt.Sprintf("%#x", loc.Address))
							continue
						}
						stack = append(stack, d.StringTable[d.FunctionTable[loc.Lines[0].FunctionIndex].NameStrindex])
					}
					out = append(out, fmt.Sprintf("%s %s: %s %v", rp.Resource.Attributes[0].Value.GetStringValue(),
						d.StringTable[p.SampleType.TypeStrindex], strings.Join(stack, ";"), s.Values))
				}
			}
		}
	}
	return out
}

func TestMerge(t *testing.T) {
	a := profile.New(config())
	s1, s2 := profile.Sample{Stack: names("leaf", "main")}, profile.Sample{Stack: names("main")}
	require.Equal(t, profile.Added, put(t, a, 1, 10, s1, 0, 2))
	require.Equal(t, profile.Added, put(t, a, 1, 10, s1, 0, 3))
	require.Equal(t, profile.Added, put(t, a, 1, 11, s2, 0, 1))
	require.Equal(t, profile.Added, put(t, a, 1, 12, s1, 0, 10), "another key of the same sample")
	require.Equal(t, profile.Added, put(t, a, 2, 20, s1, 0, 7))
	f := a.Flush(start, end, profile.Limits{})
	require.Len(t, f.Messages, 1)
	require.EqualValues(t, 5, f.Messages[0].Rows)
	require.Zero(t, f.Messages[0].Resource)
	reqs := decode(t, f)
	require.Equal(t, []string{
		"svc-1 samples: leaf;main [15]", "svc-1 samples: main [1]", "svc-2 samples: leaf;main [7]",
	}, folded(reqs))
	p := reqs[0].ResourceProfiles[0].ScopeProfiles[0].Profiles[0]
	require.Equal(t, start, p.TimeUnixNano)
	require.Equal(t, end-start, p.DurationNano)
	require.EqualValues(t, 20_408_163, p.Period)

	require.Empty(t, a.Flush(end, end+1, profile.Limits{}).Messages, "an idle window says nothing")

	// The next window still has the dictionary, but requests the resource's attributes again.
	require.Equal(t, profile.NeedResource, a.Add(10, []int64{1}, 0))
	a.SetResource(1, service("renamed"))
	require.Equal(t, profile.Added, a.Add(10, []int64{1}, 0))
	require.Equal(t, []string{"renamed samples: leaf;main [1]"}, folded(decode(t, a.Flush(end, end+1, profile.Limits{}))))
}

func TestSeveralTypes(t *testing.T) {
	cfg := config()
	cfg.Types = []profile.ValueType{{Type: "alloc_space", Unit: "bytes"}, {Type: "alloc_objects", Unit: "count"}}
	cfg.PeriodType = profile.ValueType{}
	a := profile.New(cfg)
	put(t, a, 1, 1, profile.Sample{Stack: names("f")}, 0, 4096, 1)
	put(t, a, 1, 2, profile.Sample{Stack: names("g")}, 0, 0, 2)
	reqs := decode(t, a.Flush(start, end, profile.Limits{}))
	require.Equal(t, []string{"svc-1 alloc_space: f [4096]", "svc-1 alloc_objects: f [1]", "svc-1 alloc_objects: g [2]"}, folded(reqs))
	for i, p := range reqs[0].ResourceProfiles[0].ScopeProfiles[0].Profiles {
		require.EqualValues(t, 1, p.Period)
		require.Equal(t, cfg.Types[i].Type, reqs[0].Dictionary.StringTable[p.PeriodType.TypeStrindex])
	}

	cfg.Aggregation = profile.AggregateLast
	a = profile.New(cfg)
	twice := profile.Attribute{Key: "k", Value: profile.Int(1)}
	for _, n := range []int64{4096, 64} {
		put(t, a, 1, 1, profile.Sample{Stack: names("f"), Attributes: []profile.Attribute{twice, twice}}, 0, n, n/32)
	}
	f := a.Flush(start, end, profile.Limits{})
	reqs = decode(t, f)
	require.Equal(t, []string{"svc-1 alloc_space: f [64]", "svc-1 alloc_objects: f [2]"}, folded(reqs))
	require.EqualValues(t, 2, f.Messages[0].Rows)
	require.Len(t, reqs[0].ResourceProfiles[0].ScopeProfiles[0].Profiles[0].Samples[0].AttributeIndices, 1)
}

func TestAggregations(t *testing.T) {
	for _, tc := range []struct {
		name string
		agg  profile.Aggregation
		want []string
		rows int64
	}{
		{"sum", profile.AggregateSum, []string{"svc-1 samples: a [6]", "svc-1 samples: b [5]"}, 4},
		{"last", profile.AggregateLast, []string{"svc-1 samples: a [2]", "svc-1 samples: b [5]"}, 4},
		{"snapshot", profile.AggregateSnapshot, []string{"svc-1 samples: a [3]"}, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := config()
			cfg.Aggregation = tc.agg
			a := profile.New(cfg)
			done := a.Snapshot()
			put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, 3)
			put(t, a, 1, 2, profile.Sample{Stack: names("b")}, 0, 5)
			done()
			done = a.Snapshot()
			put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, 1)
			put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, 2)
			done()
			f := a.Flush(start, end, profile.Limits{})
			require.Equal(t, tc.want, folded(decode(t, f)))
			require.Equal(t, tc.rows, f.Messages[0].Rows)
			require.Zero(t, f.Vanished)
		})
	}
	t.Run("empty snapshot", func(t *testing.T) {
		cfg := config()
		cfg.Aggregation = profile.AggregateSnapshot
		a := profile.New(cfg)
		put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, 3)
		a.Snapshot()()
		f := a.Flush(start, end, profile.Limits{})
		require.Empty(t, f.Messages)
		require.EqualValues(t, 1, f.Vanished)
	})
	t.Run("a flush during a snapshot", func(t *testing.T) {
		cfg := config()
		cfg.Aggregation = profile.AggregateSnapshot
		a := profile.New(cfg)
		done := a.Snapshot()
		put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, 3)
		flushed := make(chan profile.Flushed)
		go func() { flushed <- a.Flush(start, end, profile.Limits{}) }()
		time.Sleep(20 * time.Millisecond) // for a Flush that does not wait
		put(t, a, 1, 2, profile.Sample{Stack: names("b")}, 0, 5)
		done()
		require.Len(t, folded(decode(t, <-flushed)), 2)
	})
}

func TestZeroValuesVanish(t *testing.T) {
	a := profile.New(config())
	put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, 3)
	put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, -3)
	f := a.Flush(start, end, profile.Limits{})
	require.Empty(t, f.Messages)
	require.EqualValues(t, 2, f.Vanished)
}

func TestFrames(t *testing.T) {
	cfg := config()
	cfg.Demangle = func(s string) string { return strings.TrimPrefix(s, "_Z") }
	a := profile.New(cfg)
	lib := profile.Mapping{File: "/lib/libc.so", GNUBuildID: "aa55"}
	sym := lib
	sym.Symbolized = true
	put(t, a, 1, 1, profile.Sample{Stack: []profile.Frame{
		{Name: "do_syscall", Type: profile.FrameKernel, Mapping: profile.Mapping{File: "[kernel.kallsyms]", GNUBuildID: "cc", Symbolized: true}},
		{},
		{Address: 0x1234, Mapping: lib, Type: profile.FrameNative},
		{Name: "_Zread", Address: 0x99, Mapping: sym, Type: profile.FrameNative, File: "read.c", Line: 12},
		{Name: "bad\xffname\x00"},
	}, Attributes: []profile.Attribute{
		{Key: "thread.name", Value: profile.String("worker\xfe")}, {Key: "n", Value: profile.Int(-3)},
		{Key: "x", Value: profile.Bytes([]byte{0, 255})}, {Key: "d", Value: profile.Double(1.5)},
		{Key: "b", Value: profile.Bool(false)}, {Key: "l", Value: profile.Texts(strings.Repeat("a", 300))},
	}, Link: profile.Link{TraceID: [16]byte{1}, SpanID: [8]byte{2}}}, 0, 1)
	req := decode(t, a.Flush(start, end, profile.Limits{}))[0]
	d := req.Dictionary
	s := req.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].Samples[0]
	require.Len(t, d.StackTable[s.StackIndex].LocationIndices, 4, "a frame that says nothing is left out")
	require.Len(t, d.MappingTable, 4)
	attrs := map[string]string{}
	for _, i := range s.AttributeIndices {
		at := d.AttributeTable[i]
		attrs[d.StringTable[at.KeyStrindex]] = at.Value.String()
		if list := at.Value.GetArrayValue(); list != nil {
			require.Len(t, list.Values, 1)
			attrs["list"] = list.Values[0].GetStringValue()
		}
	}
	require.Len(t, attrs, 7)
	require.Equal(t, strings.Repeat("a", 300), attrs["list"])
	require.Contains(t, attrs["thread.name"], "worker\uFFFD")
	require.Contains(t, attrs["b"], "false")
	require.Equal(t, byte(1), d.LinkTable[s.LinkIndex].TraceId[0])
	var fn *pb.Function
	for _, f := range d.FunctionTable {
		if d.StringTable[f.NameStrindex] == "read" {
			fn = f
		}
	}
	require.NotNil(t, fn, "the name to read")
	require.Equal(t, "_Zread", d.StringTable[fn.SystemNameStrindex])
	require.Equal(t, "read.c", d.StringTable[fn.FilenameStrindex])
	require.Contains(t, d.StringTable, "bad\uFFFDname\uFFFD")
}

// TestAskAgain checks that a stack whose names are only known in the next window is a distinct stack there.
func TestAskAgain(t *testing.T) {
	a := profile.New(config())
	bare := profile.Sample{Stack: []profile.Frame{{Name: "f", Address: 0x7f01}}, Later: profile.AskAgain}
	known := profile.Sample{Stack: []profile.Frame{{Name: "f", Address: 0x01, Mapping: profile.Mapping{File: "/f", HTLHash: strings.Repeat("0a", 16)}}}}
	put(t, a, 1, 1, bare, 0, 1)
	require.Equal(t, profile.Added, a.Add(1, []int64{2}, 0), "known until the window ends")
	before := a.Usage()
	require.Equal(t, []string{"svc-1 samples: f [3]"}, folded(decode(t, a.Flush(start, end, profile.Limits{}))))
	require.Less(t, a.Usage(), before)
	require.Equal(t, profile.NeedSample, a.Add(1, []int64{1}, 0))
	put(t, a, 1, 1, known, 0, 4)
	req := decode(t, a.Flush(end, end+1, profile.Limits{}))
	require.Equal(t, []string{"svc-1 samples: f [4]"}, folded(req))
	require.Len(t, req[0].Dictionary.MappingTable, 2)
	require.NotEqual(t, profile.NeedSample, a.Add(1, []int64{1}, 0), "it is known for good")
}

func TestTextAttributes(t *testing.T) {
	cfg := config()
	cfg.TextAttributes = true
	a := profile.New(cfg)
	for i, value := range []profile.Value{profile.Int(7), profile.String("7"), profile.Bool(true), profile.Double(0.5), profile.Bytes([]byte{1, 255}), profile.Texts("a")} {
		put(t, a, 1, uint64(i), profile.Sample{Stack: names("f"), Attributes: []profile.Attribute{{Key: "k", Value: value}}}, 0, 1)
	}
	req := decode(t, a.Flush(start, end, profile.Limits{}))[0]
	var got []string
	for _, at := range req.Dictionary.AttributeTable[1:] {
		if req.Dictionary.StringTable[at.KeyStrindex] == "k" {
			got = append(got, at.Value.GetStringValue())
		}
	}
	require.ElementsMatch(t, []string{"7", "true", "0.5", "01ff", "a"}, got)
	require.Equal(t, "v1", req.ResourceProfiles[0].ScopeProfiles[0].Scope.Version)
	require.Equal(t, "gadget", req.ResourceProfiles[0].ScopeProfiles[0].Scope.Name)
}

// TestDemangledNamesAreBounded checks that short symbols with long names cannot fill the encoder's memory.
func TestDemangledNamesAreBounded(t *testing.T) {
	cfg := config()
	cfg.MaxBytes = 1 << 20
	cfg.Demangle = func(s string) string { return s + strings.Repeat("<", 4000) }
	a := profile.New(cfg)
	for i := range 500 {
		put(t, a, 1, uint64(i), profile.Sample{Stack: names(fmt.Sprint("f", i))}, 0, 1)
	}
	f := a.Flush(start, end, profile.Limits{})
	size, long := 0, 0
	for _, m := range f.Messages {
		size += len(m.Body)
	}
	for _, line := range folded(decode(t, f)) {
		if strings.Contains(line, "<") {
			long++
		}
	}
	require.InDelta(t, cfg.MaxBytes/4/4200, long, 5, "a quarter of the memory goes to names")
	require.Less(t, int64(size), cfg.MaxBytes/2)
}

func TestDroppedAttributes(t *testing.T) {
	a := profile.New(config())
	a.SetResource(1, profile.Resource{Attributes: []profile.Attribute{{Key: "k", Value: profile.Int(1)}}, Dropped: 3})
	for key, dropped := range map[uint64]int{1: 2, 2: 0, 3: 4} {
		require.Equal(t, profile.Added, a.Insert(1, key, profile.Sample{Stack: names(fmt.Sprint(key)), Dropped: dropped}, []int64{1}, 0))
	}
	a.SetResource(2, profile.Resource{})
	require.Equal(t, profile.Added, a.Insert(2, 4, profile.Sample{Stack: names("f")}, []int64{1}, 0))
	req := decode(t, a.Flush(start, end, profile.Limits{}))[0]
	require.EqualValues(t, 3, req.ResourceProfiles[0].Resource.DroppedAttributesCount)
	require.EqualValues(t, 6, req.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].DroppedAttributesCount)
	require.Zero(t, req.ResourceProfiles[1].Resource.DroppedAttributesCount)
	require.Zero(t, req.ResourceProfiles[1].ScopeProfiles[0].Profiles[0].DroppedAttributesCount)
}

func TestUnnamedFunctions(t *testing.T) {
	libc := profile.Mapping{File: "/usr/lib/libc.so.6", GNUBuildID: "aa55"}
	named := libc
	named.Symbolized = true
	stack := []profile.Frame{
		{Address: 1, Mapping: libc}, {Address: 2, Mapping: libc}, {Name: "main", Address: 3, Mapping: named},
		{Address: 4}, {Address: 5, Mapping: profile.Mapping{File: "[vdso]", GNUBuildID: "cc"}},
	}
	before := slices.Clone(stack)
	for _, on := range []bool{true, false} {
		cfg := config()
		cfg.NameUnnamed = on
		a := profile.New(cfg)
		put(t, a, 1, 1, profile.Sample{Stack: stack}, 0, 1)
		require.Equal(t, before, stack, "the frames are the caller's")
		d := decode(t, a.Flush(start, end, profile.Limits{}))[0].Dictionary
		var got []string
		for _, l := range d.StackTable[1].LocationIndices {
			name := ""
			if lines := d.LocationTable[l].Lines; len(lines) > 0 {
				name = d.StringTable[d.FunctionTable[lines[0].FunctionIndex].NameStrindex]
			}
			got = append(got, name)
		}
		if !on {
			require.Equal(t, []string{"", "", "main", "", ""}, got)
			continue
		}
		require.Equal(t, []string{"[libc.so.6]", "[libc.so.6]", "main", "[unknown]", "[vdso]"}, got)
		require.Len(t, d.MappingTable, 3, "none without functions")
		require.Len(t, d.FunctionTable, 5)
	}
}

func TestFates(t *testing.T) {
	a := profile.New(config())
	for key, fate := range map[uint64]profile.Fate{1: profile.Whole, 2: profile.Lost, 3: profile.Incomplete, 4: profile.Truncated, 5: profile.NoStack} {
		put(t, a, 1, key, profile.Sample{Stack: names(fmt.Sprint(key)), Fate: fate}, 0, 1)
	}
	require.Equal(t, profile.Added, a.Add(3, []int64{1}, 0))
	require.Equal(t, profile.Fates{profile.Whole: 1, profile.NoStack: 1, profile.Lost: 1, profile.Truncated: 1, profile.Incomplete: 2}, a.Flush(start, end, profile.Limits{}).Fates)
	require.Zero(t, a.Flush(start, end, profile.Limits{}).Fates)
}

func deep(i, depth int) []profile.Frame {
	f := make([]profile.Frame, 0, depth)
	for d := range depth {
		f = append(f, profile.Frame{Name: fmt.Sprintf("package.function_%d_%d", d, i%(1+d*37)), Type: profile.FrameNative})
	}
	f[0].Name = fmt.Sprint("leaf_", i)
	return f
}

// TestControlCharacters checks that characters that control terminals or change the text direction are replaced everywhere and
// counted.
func TestControlCharacters(t *testing.T) {
	const evil = "a\x1b[2J\n\u009b\u202e\u2066"
	cfg := config()
	cfg.Demangle = func(s string) string {
		if s == "_ZN4$u1b$E" { // Rust's escaped form
			return "\x1b"
		}
		return ""
	}
	a := profile.New(cfg)
	text := func(what string) profile.Attribute {
		return profile.Attribute{Key: what + evil, Value: profile.String(what + evil)}
	}
	a.SetResource(1, profile.Resource{Attributes: []profile.Attribute{text("resource")}, Rest: []profile.Attribute{text("rest")}})
	a.Insert(1, 1, profile.Sample{
		Stack: []profile.Frame{
			{Name: "function" + evil, File: "source" + evil, Mapping: profile.Mapping{File: "mapping" + evil, GNUBuildID: "aa"}},
			{Name: "_ZN4$u1b$E"},
		},
		Attributes: []profile.Attribute{text("sample"), {Key: "list", Value: profile.Texts("list" + evil)}},
	}, []int64{1, 1}[:len(cfg.Types)], 1)
	f := a.Flush(start, end, profile.Limits{})
	require.GreaterOrEqual(t, f.Replaced, int64(10))
	require.Len(t, f.Messages, 1)
	for _, what := range []string{"resource", "function", "source", "mapping", "sample", "list"} {
		require.Contains(t, string(f.Messages[0].Body), what+"a\uFFFD[2J\uFFFD\uFFFD\uFFFD\uFFFD")
	}
	for _, bad := range []string{"\x1b[", "\x1b", "J\n", "\u009b", "\u202e", "\u2066"} {
		for _, s := range decode(t, f)[0].Dictionary.StringTable {
			require.NotContains(t, s, bad)
		}
	}
	require.NotContains(t, string(f.Messages[0].Body), "\u202e")
	require.NotContains(t, string(f.Messages[0].Body), "\u009b")
	require.Zero(t, a.Flush(end, end+1, profile.Limits{}).Replaced)
}

// TestResourceIsSetAgain checks that a resource that is set in each window only takes memory once.
func TestResourceIsSetAgain(t *testing.T) {
	a := profile.New(config())
	attribute := []profile.Attribute{{Key: "k", Value: profile.String("v")}}
	var before int64
	for n := range 5 {
		a.SetResource(1, profile.Resource{Attributes: attribute, Rest: attribute})
		if bytes := a.Usage(); n > 0 {
			require.Equal(t, before, bytes)
		} else {
			before = bytes
		}
		a.Flush(start, end, profile.Limits{})
	}
}

// TestSumsStop checks that sums saturate at the largest and the smallest number.
func TestSumsStop(t *testing.T) {
	for _, most := range []int64{math.MaxInt64, math.MinInt64} {
		a := profile.New(config())
		for range 2 {
			put(t, a, 1, 1, profile.Sample{Stack: names("f")}, 0, most/2-most%2)
			put(t, a, 1, 1, profile.Sample{Stack: names("f")}, 0, most/2)
		}
		req := decode(t, a.Flush(start, end, profile.Limits{}))[0]
		require.Equal(t, []int64{most}, req.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].Samples[0].Values)
	}
}
