package profile_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

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

func newAggregator(t testing.TB, cfg profile.Config) *profile.Aggregator {
	a, err := profile.New(cfg)
	require.NoError(t, err)
	return a
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

// put adds a row the way an operator does.
func put(t testing.TB, a *profile.Aggregator, res, key uint64, s profile.Sample, at uint64, values ...int64) profile.Status {
	for range 3 {
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

// decode checks every rule of the protocol and returns the messages.
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

// folded renders samples as "service type: leaf;caller value".
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
	a := newAggregator(t, config())
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

	// The dictionary is known in the next window, the resource's details are asked for again.
	require.Equal(t, profile.NeedResource, a.Add(10, []int64{1}, 0))
	a.SetResource(1, service("renamed"))
	require.Equal(t, profile.Added, a.Add(10, []int64{1}, 0))
	require.Equal(t, []string{"renamed samples: leaf;main [1]"}, folded(decode(t, a.Flush(end, end+1, profile.Limits{}))))
}

func TestSeveralTypes(t *testing.T) {
	cfg := config()
	cfg.Types = []profile.ValueType{{Type: "alloc_space", Unit: "bytes"}, {Type: "alloc_objects", Unit: "count"}}
	cfg.PeriodType = profile.ValueType{}
	a := newAggregator(t, cfg)
	put(t, a, 1, 1, profile.Sample{Stack: names("f")}, 0, 4096, 1)
	put(t, a, 1, 2, profile.Sample{Stack: names("g")}, 0, 0, 2)
	reqs := decode(t, a.Flush(start, end, profile.Limits{}))
	require.Equal(t, []string{"svc-1 alloc_space: f [4096]", "svc-1 alloc_objects: f [1]", "svc-1 alloc_objects: g [2]"}, folded(reqs))
	for i, p := range reqs[0].ResourceProfiles[0].ScopeProfiles[0].Profiles {
		require.EqualValues(t, 1, p.Period)
		require.Equal(t, cfg.Types[i].Type, reqs[0].Dictionary.StringTable[p.PeriodType.TypeStrindex])
	}
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
			a := newAggregator(t, cfg)
			a.StartSnapshot()
			put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, 3)
			put(t, a, 1, 2, profile.Sample{Stack: names("b")}, 0, 5)
			a.StartSnapshot()
			put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, 1)
			put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, 2)
			f := a.Flush(start, end, profile.Limits{})
			require.Equal(t, tc.want, folded(decode(t, f)))
			require.Equal(t, tc.rows, f.Messages[0].Rows)
			require.Zero(t, f.Vanished)
		})
	}
	t.Run("empty snapshot", func(t *testing.T) {
		cfg := config()
		cfg.Aggregation = profile.AggregateSnapshot
		a := newAggregator(t, cfg)
		put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, 3)
		a.StartSnapshot()
		f := a.Flush(start, end, profile.Limits{})
		require.Empty(t, f.Messages)
		require.EqualValues(t, 1, f.Vanished)
	})
}

func TestZeroValuesVanish(t *testing.T) {
	a := newAggregator(t, config())
	put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, 3)
	put(t, a, 1, 1, profile.Sample{Stack: names("a")}, 0, -3)
	f := a.Flush(start, end, profile.Limits{})
	require.Empty(t, f.Messages)
	require.EqualValues(t, 2, f.Vanished)
}

func TestShapes(t *testing.T) {
	for _, tc := range []struct {
		shape  profile.Shape
		values []int64
		times  []uint64
	}{
		{profile.ShapeSum, []int64{5}, nil},
		{profile.ShapeEvents, []int64{2, 3}, []uint64{start + 5, start + 9}},
		{profile.ShapeTimestamps, nil, []uint64{start + 5, start + 5, start + 9, start + 9, start + 9}},
		{profile.ShapeSingle, []int64{5}, []uint64{start + 9}},
	} {
		t.Run(fmt.Sprint(tc.shape), func(t *testing.T) {
			cfg := config()
			cfg.Shape = tc.shape
			a := newAggregator(t, cfg)
			for range 2 { // twice: nothing may be left of the first window
				put(t, a, 1, 1, profile.Sample{Stack: names("a")}, start+5, 2)
				put(t, a, 1, 1, profile.Sample{Stack: names("a")}, start+9, 3)
				s := decode(t, a.Flush(start, end, profile.Limits{}))[0].ResourceProfiles[0].ScopeProfiles[0].Profiles[0].Samples
				require.Len(t, s, 1)
				require.Equal(t, tc.values, s[0].Values)
				require.Equal(t, tc.times, s[0].TimestampsUnixNano)
			}
		})
	}
	t.Run("events of two types, outside the window", func(t *testing.T) {
		cfg := config()
		cfg.Shape = profile.ShapeEvents
		cfg.Types = []profile.ValueType{{Type: "space", Unit: "bytes"}, {Type: "objects", Unit: "count"}}
		a := newAggregator(t, cfg)
		put(t, a, 1, 1, profile.Sample{Stack: names("a")}, start-5, 20, 2)
		put(t, a, 1, 1, profile.Sample{Stack: names("a")}, end+5, 30, 3)
		p := decode(t, a.Flush(start, end, profile.Limits{}))[0].ResourceProfiles[0].ScopeProfiles[0].Profiles
		require.Equal(t, []int64{20, 30}, p[0].Samples[0].Values)
		require.Equal(t, []int64{2, 3}, p[1].Samples[0].Values)
		require.Equal(t, []uint64{start, end - 1}, p[1].Samples[0].TimestampsUnixNano)
	})
	t.Run("more timestamps than a message takes", func(t *testing.T) {
		cfg := config()
		cfg.Shape = profile.ShapeTimestamps
		a := newAggregator(t, cfg)
		put(t, a, 1, 1, profile.Sample{Stack: names("a")}, start, 1<<40)
		f := a.Flush(start, end, profile.Limits{MaxBytes: 64 << 10})
		require.Positive(t, f.ClippedEvents)
		require.Less(t, len(f.Messages[0].Body), 64<<10)
	})
}

func TestFrames(t *testing.T) {
	cfg := config()
	cfg.Demangle = func(s string) string { return strings.TrimPrefix(s, "_Z") }
	a := newAggregator(t, cfg)
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
		{Key: "b", Value: profile.Bool(false)}, {Key: "l", Value: profile.Strings([]string{"a", ""})},
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
	}
	require.Len(t, attrs, 6)
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
	require.Contains(t, d.StringTable, "bad\uFFFDname\x00")
}

// A stack of which more is known in the next window is another one there.
func TestProvisional(t *testing.T) {
	a := newAggregator(t, config())
	bare := profile.Sample{Stack: []profile.Frame{{Name: "f", Address: 0x7f01}}, Provisional: true}
	known := profile.Sample{Stack: []profile.Frame{{Name: "f", Address: 0x01, Mapping: profile.Mapping{File: "/f", HTLHash: strings.Repeat("0a", 16)}}}}
	put(t, a, 1, 1, bare, 0, 1)
	require.Equal(t, profile.Added, a.Add(1, []int64{2}, 0), "known until the window ends")
	before := a.Usage().Bytes
	require.Equal(t, []string{"svc-1 samples: f [3]"}, folded(decode(t, a.Flush(start, end, profile.Limits{}))))
	require.Less(t, a.Usage().Bytes, before)
	require.Equal(t, profile.NeedSample, a.Add(1, []int64{1}, 0))
	put(t, a, 1, 1, known, 0, 4)
	req := decode(t, a.Flush(end, end+1, profile.Limits{}))
	require.Equal(t, []string{"svc-1 samples: f [4]"}, folded(req))
	require.Len(t, req[0].Dictionary.MappingTable, 2)
	require.NotEqual(t, profile.NeedSample, a.Add(1, []int64{1}, 0), "it is known for good")
}

// For receivers that refuse a frame without a type, or a mapping without a hash.
func TestDefaultTypeAndHashedMappings(t *testing.T) {
	cfg := config()
	cfg.DefaultFrameType, cfg.HashedMappings = profile.FrameNative, true
	a := newAggregator(t, cfg)
	put(t, a, 1, 1, profile.Sample{Stack: []profile.Frame{
		{Name: "do_syscall", Type: profile.FrameKernel, Mapping: profile.Mapping{File: "[kernel.kallsyms]", GNUBuildID: "cc", Symbolized: true}},
		{Address: 0x1234, Mapping: profile.Mapping{File: "/lib/libc.so", GNUBuildID: "aa55", HTLHash: strings.Repeat("0a", 16)}},
	}}, 0, 1)
	d := decode(t, a.Flush(start, end, profile.Limits{}))[0].Dictionary
	require.Len(t, d.MappingTable, 2)
	require.Len(t, d.MappingTable[1].AttributeIndices, 2)
	var types []string
	for _, l := range d.LocationTable[1:] {
		require.Len(t, l.AttributeIndices, 1)
		types = append(types, d.AttributeTable[l.AttributeIndices[0]].Value.GetStringValue())
	}
	require.Equal(t, []string{"kernel", "native"}, types)
	require.Zero(t, d.LocationTable[1].MappingIndex)

	// A stack that starts without a type.
	put(t, a, 1, 2, profile.Sample{Stack: names("f", "g")}, 0, 1)
	d = decode(t, a.Flush(start, end, profile.Limits{}))[0].Dictionary
	require.Len(t, d.LocationTable, 3)
	for _, l := range d.LocationTable[1:] {
		require.Len(t, l.AttributeIndices, 1)
		require.Equal(t, "native", d.AttributeTable[l.AttributeIndices[0]].Value.GetStringValue())
	}
}

func TestTextAttributes(t *testing.T) {
	cfg := config()
	cfg.TextAttributes = true
	a := newAggregator(t, cfg)
	put(t, a, 1, 1, profile.Sample{Stack: names("f"), Attributes: []profile.Attribute{{Key: "pid", Value: profile.Int(7)}}}, 0, 1)
	put(t, a, 1, 2, profile.Sample{Stack: names("f"), Attributes: []profile.Attribute{{Key: "pid", Value: profile.String("7")}}}, 0, 1)
	req := decode(t, a.Flush(start, end, profile.Limits{}))[0]
	require.Len(t, req.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].Samples, 1)
	for _, at := range req.Dictionary.AttributeTable[1:] {
		if req.Dictionary.StringTable[at.KeyStrindex] == "pid" {
			require.Equal(t, "7", at.Value.GetStringValue())
		}
	}
}

// Each message carries only what it refers to, stays under the limit, and nothing is lost.
func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		name      string
		lim       profile.Limits
		resources int
		min       int
	}{
		{"bytes", profile.Limits{MaxBytes: 20_000}, 3, 10},
		{"samples", profile.Limits{MaxSamples: 100}, 2, 10},
		{"one sample over the limit", profile.Limits{MaxBytes: 600}, 1, 2000},
		{"no split", profile.Limits{}, 3, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newAggregator(t, config())
			const n = 2000
			for i := range n {
				put(t, a, uint64(1+i%tc.resources), uint64(i), profile.Sample{
					Stack: names(fmt.Sprintf("leaf-%d", i), "shared", fmt.Sprintf("caller-%d", i%7), "main"),
				}, 0, int64(i+1))
			}
			f := a.Flush(start, end, tc.lim)
			require.GreaterOrEqual(t, len(f.Messages), tc.min)
			sum, rows := int64(0), int64(0)
			for i, req := range decode(t, f) {
				rows += f.Messages[i].Rows
				if tc.lim.MaxBytes > 1000 {
					require.LessOrEqual(t, len(f.Messages[i].Body), tc.lim.MaxBytes)
				}
				for _, rp := range req.ResourceProfiles {
					s := rp.ScopeProfiles[0].Profiles[0].Samples
					if tc.lim.MaxSamples > 0 {
						require.LessOrEqual(t, len(s), tc.lim.MaxSamples)
					}
					for _, s := range s {
						sum += s.Values[0]
					}
				}
			}
			require.EqualValues(t, n*(n+1)/2, sum)
			require.EqualValues(t, n, rows)
		})
	}
}

// A window that becomes many messages is never held as a whole, and replaced snapshots count once.
func TestEmit(t *testing.T) {
	cfg := config()
	cfg.Aggregation = profile.AggregateSnapshot
	a := newAggregator(t, cfg)
	for range 2 {
		a.StartSnapshot()
		for i := range 500 {
			put(t, a, 1, uint64(i), profile.Sample{Stack: names(fmt.Sprint("leaf-", i))}, 0, 1)
		}
	}
	var emitted profile.Flushed
	rows := int64(0)
	f := a.Flush(start, end, profile.Limits{MaxBytes: 5000, Emit: func(m profile.Message) {
		emitted.Messages = append(emitted.Messages, m)
		rows += m.Rows
	}})
	require.Empty(t, f.Messages)
	require.Greater(t, len(emitted.Messages), 5)
	require.EqualValues(t, 1000, rows)
	require.Zero(t, f.Vanished)
	require.Len(t, folded(decode(t, emitted)), 500)
}

// A workload with short symbols that stand for long names cannot make the encoder hold them all.
func TestDemangledNamesAreBounded(t *testing.T) {
	cfg := config()
	cfg.MaxBytes = 1 << 20
	cfg.Demangle = func(s string) string { return s + strings.Repeat("<", 4000) }
	a := newAggregator(t, cfg)
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

// A resource with many samples has messages of its own, so that a queue can drop it alone.
func TestBigResourceAlone(t *testing.T) {
	a := newAggregator(t, config())
	for r := range 3 {
		put(t, a, uint64(1+r), uint64(1e6+r), profile.Sample{Stack: names("small")}, 0, 1)
	}
	for i := range 5000 {
		put(t, a, 9, uint64(i), profile.Sample{Stack: names(fmt.Sprint("f", i))}, 0, 1)
	}
	put(t, a, 10, 1e7, profile.Sample{Stack: names("small")}, 0, 1)
	var owners []uint64
	f := a.Flush(start, end, profile.Limits{})
	decode(t, f)
	for _, m := range f.Messages {
		owners = append(owners, m.Resource)
	}
	require.Equal(t, []uint64{0, 9, 10}, owners)
}

// TestState says what is in use: profiles of an instant, without a duration.
func TestState(t *testing.T) {
	for _, state := range []bool{false, true} {
		cfg := config()
		cfg.State, cfg.Types = state, []profile.ValueType{{Type: "inuse_space", Unit: "bytes"}}
		a := newAggregator(t, cfg)
		put(t, a, 1, 1, profile.Sample{Stack: names("f")}, 0, 1)
		for _, p := range decode(t, a.Flush(start, end, profile.Limits{}))[0].ResourceProfiles[0].ScopeProfiles[0].Profiles {
			if state {
				require.Equal(t, []uint64{end, 0}, []uint64{p.TimeUnixNano, p.DurationNano})
			} else {
				require.Equal(t, []uint64{start, end - start}, []uint64{p.TimeUnixNano, p.DurationNano})
			}
		}
	}
}

// TestNameLabel sends the profile's name on every sample, also on one without attributes of its own.
func TestNameLabel(t *testing.T) {
	cfg := config()
	cfg.NameLabel = "memory"
	a := newAggregator(t, cfg)
	put(t, a, 1, 1, profile.Sample{Stack: names("f")}, 0, 1)
	put(t, a, 1, 2, profile.Sample{Stack: names("f"), Attributes: []profile.Attribute{{Key: "a", Value: profile.String("b")}}}, 0, 1)
	body := a.Flush(start, end, profile.Limits{}).Messages[0].Body
	require.Empty(t, otlpcheck.CheckNamed(body))
	req := &collectorpb.ExportProfilesServiceRequest{}
	require.NoError(t, proto.Unmarshal(body, req))
	all := req.ResourceProfiles[0].ScopeProfiles[0].Profiles
	require.NotEmpty(t, all)
	for _, p := range all {
		require.Zero(t, p.Period)
		require.Len(t, p.Samples, 2)
		for _, s := range p.Samples {
			names := map[string]string{}
			for _, i := range s.AttributeIndices {
				at := req.Dictionary.AttributeTable[i]
				names[req.Dictionary.StringTable[at.KeyStrindex]] = at.Value.GetStringValue()
			}
			require.Equal(t, "memory", names["__name__"])
		}
	}
}

func TestDoubleFunctions(t *testing.T) {
	cfg := config()
	cfg.DoubleFunctions = true
	a := newAggregator(t, cfg)
	put(t, a, 1, 1, profile.Sample{Stack: names("f", "g", "f")}, 0, 1)
	put(t, a, 1, 2, profile.Sample{Stack: names("h", "g")}, 0, 2)
	m := a.Flush(start, end, profile.Limits{}).Messages[0]
	require.Empty(t, otlpcheck.CheckDoubled(m.Body))
	req := &collectorpb.ExportProfilesServiceRequest{}
	require.NoError(t, proto.Unmarshal(m.Body, req))
	d := req.Dictionary
	require.Len(t, d.FunctionTable, 7)
	for _, stack := range []struct {
		index int
		names []string
	}{{1, []string{"f", "g", "f"}}, {2, []string{"h", "g"}}} {
		for i, l := range d.StackTable[stack.index].LocationIndices {
			f := d.LocationTable[l].Lines[0].FunctionIndex
			for _, read := range []int32{f, f - 1} { // as it should be, and as Parca does
				require.Equal(t, stack.names[i], d.StringTable[d.FunctionTable[read].NameStrindex])
			}
		}
	}
}

func TestDroppedAttributes(t *testing.T) {
	cfg := config()
	for layout, read := range map[profile.Layout]otlpcheck.Layout{profile.Layout111: otlpcheck.Layout110, profile.Layout18: otlpcheck.Layout18} {
		cfg.Layout = layout
		a := newAggregator(t, cfg)
		a.SetResource(1, profile.Resource{Attributes: []profile.Attribute{{Key: "k", Value: profile.Int(1)}}, Dropped: 3})
		for key, dropped := range map[uint64]int{1: 2, 2: 0, 3: 4} {
			require.Equal(t, profile.Added, a.Insert(1, key, profile.Sample{Stack: names(fmt.Sprint(key)), Dropped: dropped}, []int64{1}, 0))
		}
		a.SetResource(2, profile.Resource{})
		require.Equal(t, profile.Added, a.Insert(2, 4, profile.Sample{Stack: names("f")}, []int64{1}, 0))
		body := a.Flush(start, end, profile.Limits{}).Messages[0].Body
		require.Empty(t, otlpcheck.CheckBytesAs(body, read))
		req, err := otlpcheck.Decode(body, read)
		require.NoError(t, err)
		require.EqualValues(t, 3, req.ResourceProfiles[0].Resource.DroppedAttributesCount)
		require.EqualValues(t, 6, req.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].DroppedAttributesCount)
		require.Zero(t, req.ResourceProfiles[1].Resource.DroppedAttributesCount)
		require.Zero(t, req.ResourceProfiles[1].ScopeProfiles[0].Profiles[0].DroppedAttributesCount)
	}
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
		a := newAggregator(t, cfg)
		put(t, a, 1, 1, profile.Sample{Stack: stack}, 0, 1)
		require.Equal(t, before, stack, "the frames are the caller's")
		m := a.Flush(start, end, profile.Limits{}).Messages[0]
		require.Empty(t, otlpcheck.CheckBytes(m.Body))
		req := &collectorpb.ExportProfilesServiceRequest{}
		require.NoError(t, proto.Unmarshal(m.Body, req))
		d := req.Dictionary
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
	a := newAggregator(t, config())
	for key, fate := range map[uint64]profile.Fate{1: profile.Whole, 2: profile.Lost, 3: profile.Incomplete, 4: profile.CutOff, 5: profile.NoStack} {
		put(t, a, 1, key, profile.Sample{Stack: names(fmt.Sprint(key)), Fate: fate}, 0, 1)
	}
	require.Equal(t, profile.Added, a.Add(3, []int64{1}, 0))
	require.Equal(t, profile.Fates{profile.Whole: 1, profile.NoStack: 1, profile.Lost: 1, profile.CutOff: 1, profile.Incomplete: 2}, a.Flush(start, end, profile.Limits{}).Fates)
	require.Zero(t, a.Flush(start, end, profile.Limits{}).Fates)
}

// TestHostServices: a build's many programs do not push out the database, nor the containers.
func TestHostServices(t *testing.T) {
	for _, shape := range []profile.Shape{profile.ShapeSum, profile.ShapeTimestamps} {
		cfg := config()
		cfg.HostServices, cfg.Shape = 2, shape
		a := newAggregator(t, cfg)
		key := uint64(0)
		add := func(service string, group uint64, value int64) {
			text := func(s string) []profile.Attribute {
				return []profile.Attribute{{Key: "service.name", Value: profile.String(s)}}
			}
			r := profile.Resource{Attributes: text(service), Host: group != 0 || service == "host", Group: group}
			if group != 0 {
				r.Rest = text("host")
			}
			res := group + 1000
			if !r.Host {
				res = 1
			}
			a.SetResource(res, r)
			key++
			require.Equal(t, profile.Added, a.Insert(res, key, profile.Sample{Stack: names("f")}, []int64{value}, start+1))
		}
		window := func(n uint64) (map[string]int64, map[string]bool) {
			services, owners := map[string]int64{}, map[string]bool{}
			from := start + n*10_000_000_000
			f := a.Flush(from, from+10_000_000_000, profile.Limits{})
			for _, m := range f.Messages {
				require.Empty(t, otlpcheck.CheckBytes(m.Body))
				req := &collectorpb.ExportProfilesServiceRequest{}
				require.NoError(t, proto.Unmarshal(m.Body, req))
				for _, rp := range req.ResourceProfiles {
					name := rp.Resource.Attributes[0].Value.GetStringValue()
					require.NotContains(t, services, name, "one resource each")
					for _, s := range rp.ScopeProfiles[0].Profiles[0].Samples {
						services[name] += int64(len(s.TimestampsUnixNano))
						for _, v := range s.Values {
							services[name] += v
						}
					}
				}
				owners[fmt.Sprint(m.Resource == profile.HostOwner)] = true
			}
			require.Zero(t, f.Vanished)
			return services, owners
		}
		add("db", 10, 70)
		add("sed", 11, 3)
		add("cc1", 12, 40)
		add("make", 13, 2)
		add("cart", 0, 5) // a container
		add("host", 0, 1)
		services, _ := window(0)
		require.Equal(t, map[string]int64{"db": 70, "cc1": 40, "host": 6, "cart": 5}, services)

		// The database is nearly idle, and keeps its name.
		add("db", 10, 1)
		add("cc1", 12, 30)
		add("ld", 14, 90)
		services, owners := window(1)
		require.Equal(t, map[string]int64{"db": 1, "cc1": 30, "host": 90}, services)
		require.Equal(t, map[string]bool{"true": true}, owners, "one owner")

		// The build is over, so that there is room for a newcomer; when it is back, all three keep their names.
		add("db", 10, 1)
		add("web", 15, 9)
		add("sed", 11, 2)
		services, _ = window(2)
		require.Equal(t, map[string]int64{"db": 1, "web": 9, "host": 2}, services)
		add("db", 10, 1)
		add("web", 15, 1)
		add("cc1", 12, 40)
		add("sed", 11, 50)
		services, _ = window(3)
		require.Equal(t, map[string]int64{"db": 1, "web": 1, "cc1": 40, "host": 50}, services)

		// However they come and go, no more than that have names within an hour: eight here.
		for i := range uint64(10) {
			add(fmt.Sprint("new-", i), 20+i, 5)
			services, _ = window(4 + i)
			require.Len(t, services, 1)
			require.Equal(t, i >= 5, services["host"] == 5, "%d: %v", i, services)
		}

		// Nobody has seen the compiler and others for an hour.
		add("db", 10, 1)
		window(359)
		add("db", 10, 1)
		add("ld", 14, 90)
		add("cc1", 12, 40)
		services, _ = window(374)
		require.Equal(t, map[string]int64{"db": 1, "ld": 90, "host": 40}, services)
	}
}

func TestLayoutsPinned(t *testing.T) {
	for layout, want := range map[profile.Layout]struct{ sample, id string }{
		profile.Layout111: {"0801" + "120101" + "220107", "3a10"},
		profile.Layout19:  {"0801" + "120107" + "1a0101", "3a10"},
		profile.Layout18:  {"0801" + "120107" + "1a0101", "4210"},
	} {
		cfg := config()
		cfg.Layout = layout
		cfg.NewID = func() [16]byte { return [16]byte([]byte("\xaaabcdefghijklmno")) }
		a := newAggregator(t, cfg)
		put(t, a, 1, 1, profile.Sample{
			Stack: []profile.Frame{{Name: "f"}}, Attributes: []profile.Attribute{{Key: "k", Value: profile.Int(1)}},
		}, 0, 7)
		b, err := hex.DecodeString(want.sample)
		require.NoError(t, err)
		body := a.Flush(start, end, profile.Limits{}).Messages[0].Body
		require.True(t, bytes.Contains(body, append([]byte{0x12, byte(len(b))}, b...)), "layout %d: %x", layout, body)
		// The period, and the ID behind it.
		id, err := hex.DecodeString("30" + "e3cedd09" + want.id + hex.EncodeToString([]byte("\xaaabcdefghijklmno")))
		require.NoError(t, err)
		require.True(t, bytes.Contains(body, id), "layout %d: %x", layout, body)
	}
}

func TestBounds(t *testing.T) {
	cfg := config()
	cfg.MaxBytes = 1 << 20
	a := newAggregator(t, cfg)
	statuses := map[profile.Status]int{}
	taken := int64(0)
	for i := range 20_000 {
		st := put(t, a, 1+uint64(i%2), uint64(i), profile.Sample{Stack: names(fmt.Sprint("function-", i))}, 0, 1)
		statuses[st]++
		if st == profile.Added {
			taken++
		}
	}
	require.True(t, a.NearFull())
	require.Positive(t, statuses[profile.Full]+statuses[profile.ResourceFull])
	require.LessOrEqual(t, a.Usage().Bytes, cfg.MaxBytes+4096)
	rows := int64(0)
	f := a.Flush(start, end, profile.Limits{})
	for _, m := range f.Messages {
		rows += m.Rows
	}
	require.Equal(t, taken, rows)
	require.False(t, a.NearFull())
	require.Less(t, a.Usage().Bytes, cfg.MaxBytes/10, "the dictionary starts anew")

	t.Run("one resource cannot take it all", func(t *testing.T) {
		a := newAggregator(t, cfg)
		for i := range 20_000 {
			put(t, a, 1, uint64(i), profile.Sample{Stack: names(fmt.Sprint("flood-", i))}, 0, 1)
		}
		require.Equal(t, profile.ResourceFull, put(t, a, 1, 1e6, profile.Sample{Stack: names("x")}, 0, 1))
		require.Equal(t, profile.Added, put(t, a, 2, 1e6+1, profile.Sample{Stack: names("y")}, 0, 1))
	})
	t.Run("events are bounded", func(t *testing.T) {
		cfg.Shape = profile.ShapeEvents
		a := newAggregator(t, cfg)
		full := 0
		for range 1_000_000 {
			if put(t, a, 1, 1, profile.Sample{Stack: names("x")}, start, 1) == profile.Full {
				full++
			}
		}
		require.Positive(t, full)
		require.LessOrEqual(t, a.Usage().Bytes, cfg.MaxBytes+4096)
	})
}

// Nothing grows: after hours of windows with ever new stacks and containers the dictionary is no
// larger than after the first minutes.
func TestNothingGrows(t *testing.T) {
	a := newAggregator(t, config())
	key, worst := uint64(0), int64(0)
	for w := range 1000 {
		for i := range 50 {
			key++
			put(t, a, uint64(w*2+i%2), key, profile.Sample{Stack: names(fmt.Sprint("f", key), "main")}, 0, 1)
		}
		decode(t, a.Flush(start+uint64(w), end+uint64(w), profile.Limits{}))
		if w == 120 {
			worst = a.Usage().Bytes + 3_000_000
		}
		if w > 120 {
			require.Less(t, a.Usage().Bytes, worst)
		}
	}
}

// The bound on memory rests on an estimate: what the heap holds must not be more, also after an
// encoder has added its own tables.
func TestUsageCoversTheHeap(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	a := newAggregator(t, config())
	const n = 20_000
	for i := range n {
		put(t, a, 1, uint64(i), profile.Sample{Stack: deep(i, 28)}, 0, 1)
	}
	added := heap() - before
	f := a.Flush(start, end, profile.Limits{})
	messages := int64(0)
	for _, m := range f.Messages {
		messages += int64(cap(m.Body))
	}
	encoded := heap() - before - messages
	usage := a.Usage().Bytes
	t.Logf("%d stacks: %d bytes each by estimate, %d in the heap, %d after encoding", n, usage/n, added/n, encoded/n)
	require.LessOrEqual(t, added, usage)
	require.LessOrEqual(t, encoded, usage+usage/2)
	runtime.KeepAlive(a)
	runtime.KeepAlive(f)
}

func TestConcurrent(t *testing.T) {
	a := newAggregator(t, config())
	var wg sync.WaitGroup
	const goroutines, n = 4, 20_000
	for g := range goroutines {
		wg.Go(func() {
			for i := range n {
				put(t, a, uint64(1+i%3), uint64(3*(i%300)+i%3+1000*(g%2)), profile.Sample{Stack: names(fmt.Sprint("f", i%300), fmt.Sprint(g%2))}, 0, 1)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	sum := int64(0)
	for last := false; !last; {
		select {
		case <-done:
			last = true
		default:
		}
		for _, req := range decode(t, a.Flush(start, end, profile.Limits{MaxBytes: 30_000})) {
			for _, rp := range req.ResourceProfiles {
				for _, s := range rp.ScopeProfiles[0].Profiles[0].Samples {
					sum += s.Values[0]
				}
			}
		}
	}
	require.EqualValues(t, goroutines*n, sum)
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	a := newAggregator(t, config())
	for i := range 100 {
		put(t, a, 1, uint64(i), profile.Sample{Stack: names(fmt.Sprint("f", i))}, 0, 1)
	}
	i, values := uint64(0), []int64{1}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if a.Add(i%100, values, 0) != profile.Added {
			t.Fatal("not added")
		}
		i++
	}))
}

func TestStringsValue(t *testing.T) {
	for _, list := range [][]string{nil, {""}, {"a", "", strings.Repeat("x", 300)}} {
		require.True(t, slices.Equal(list, profile.Strings(list).AsStrings()))
	}
}

func deep(i, depth int) []profile.Frame {
	f := make([]profile.Frame, 0, depth)
	for d := range depth {
		f = append(f, profile.Frame{Name: fmt.Sprintf("package.function_%d_%d", d, i%(1+d*37)), Type: profile.FrameNative})
	}
	f[0].Name = fmt.Sprint("leaf_", i)
	return f
}

func BenchmarkAdd(b *testing.B) {
	for _, n := range []int{100, 2000, 50_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a := newAggregator(b, config())
			for i := range n {
				put(b, a, 1, uint64(i)*0x9e3779b97f4a7c15, profile.Sample{Stack: deep(i, 28)}, 0, 1)
			}
			b.ReportAllocs()
			i, values := uint64(0), []int64{1}
			for b.Loop() {
				a.Add((i%uint64(n))*0x9e3779b97f4a7c15, values, 0)
				i++
			}
			b.ReportMetric(float64(a.Usage().Bytes)/float64(n), "B/stack")
		})
	}
}

func BenchmarkInsert(b *testing.B) {
	stacks := make([][]profile.Frame, 2000)
	for i := range stacks {
		stacks[i] = deep(i, 28)
	}
	b.ReportAllocs()
	var a *profile.Aggregator
	i := 0
	for b.Loop() {
		if i%len(stacks) == 0 {
			a = newAggregator(b, config())
		}
		put(b, a, 1, uint64(i), profile.Sample{Stack: stacks[i%len(stacks)]}, 0, 1)
		i++
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, n := range []int{100, 2000, 50_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a := newAggregator(b, config())
			stacks := make([]profile.Sample, n)
			for i := range stacks {
				stacks[i].Stack = deep(i, 28)
			}
			b.ReportAllocs()
			bytes := 0
			for b.Loop() {
				b.StopTimer()
				for i := range stacks {
					put(b, a, 1, uint64(i), stacks[i], 0, 1)
				}
				b.StartTimer()
				bytes = 0
				for _, m := range a.Flush(start, end, profile.Limits{}).Messages {
					bytes += len(m.Body)
				}
			}
			b.ReportMetric(float64(bytes)/float64(n), "B/sample")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/sample")
		})
	}
}

// BenchmarkEncodeProto is what marshalling the generated structs costs, without building them.
func BenchmarkEncodeProto(b *testing.B) {
	a := newAggregator(b, config())
	const n = 2000
	for i := range n {
		put(b, a, 1, uint64(i), profile.Sample{Stack: deep(i, 28)}, 0, 1)
	}
	req := decode(b, a.Flush(start, end, profile.Limits{}))[0]
	b.ReportAllocs()
	var buf []byte
	for b.Loop() {
		var err error
		buf, err = proto.MarshalOptions{}.MarshalAppend(buf[:0], req)
		require.NoError(b, err)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/sample")
}

// TestProvisionalKeysGiveBackTheirRoom has stacks that are forgotten and met again in each window.
func TestProvisionalKeysGiveBackTheirRoom(t *testing.T) {
	cfg := config()
	cfg.MaxBytes = 1 << 20
	a := newAggregator(t, cfg)
	for w := range uint64(50) {
		for key := range uint64(1000) {
			st := put(t, a, 1, 1+key, profile.Sample{Stack: names("x"), Provisional: true}, 0, 1)
			require.Equal(t, profile.Added, st, "window %d", w)
		}
		require.False(t, a.Flush(start+w, end+w, profile.Limits{}).Renewed)
	}
}
