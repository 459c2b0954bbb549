package profile_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

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
			a := profile.New(cfg)
			for range 2 { // the first window must not affect the second
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
		a := profile.New(cfg)
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
		a := profile.New(cfg)
		put(t, a, 1, 1, profile.Sample{Stack: names("a")}, start, 1<<40)
		f := a.Flush(start, end, profile.Limits{MaxBytes: 64 << 10})
		require.Positive(t, f.ClippedEvents)
		require.Less(t, len(f.Messages[0].Body), 64<<10)
	})
}

// TestDefaultTypeAndHashedMappings checks messages for receivers that refuse a frame without a type, or a mapping without a
// hash.
func TestDefaultTypeAndHashedMappings(t *testing.T) {
	cfg := config()
	cfg.DefaultFrameType, cfg.HashedMappings = profile.FrameNative, true
	a := profile.New(cfg)
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

	// The first frame of this stack has no type.
	put(t, a, 1, 2, profile.Sample{Stack: names("f", "g")}, 0, 1)
	d = decode(t, a.Flush(start, end, profile.Limits{}))[0].Dictionary
	require.Len(t, d.LocationTable, 3)
	for _, l := range d.LocationTable[1:] {
		require.Len(t, l.AttributeIndices, 1)
		require.Equal(t, "native", d.AttributeTable[l.AttributeIndices[0]].Value.GetStringValue())
	}
}

// TestSplitOfSeveralTypes checks that the sample limit applies to each profile. Each type must have its own profile.
func TestSplitOfSeveralTypes(t *testing.T) {
	cfg := config()
	cfg.Types = []profile.ValueType{{Type: "space", Unit: "bytes"}, {Type: "objects", Unit: "count"}}
	a := profile.New(cfg)
	for i := range uint64(20) {
		put(t, a, 1, i, profile.Sample{Stack: names(fmt.Sprint("f", i))}, 0, 100, 1)
	}
	reqs := decode(t, a.Flush(start, end, profile.Limits{MaxSamples: 10}))
	require.Len(t, reqs, 2)
	for _, req := range reqs {
		for _, p := range req.ResourceProfiles[0].ScopeProfiles[0].Profiles {
			require.Len(t, p.Samples, 10)
		}
	}
}

// TestSplit checks that each message stays below the limit and only contains entries that it refers to, and that nothing is
// lost.
func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		name      string
		lim       profile.Limits
		resources int
		min       int
		padding   int // bytes in the name of each function's file, 0: no file
	}{
		{"bytes", profile.Limits{MaxBytes: 20_000}, 3, 10, 0},
		// The callers are in each message again, although the last message contained them, too.
		{"bytes of shared callers", profile.Limits{MaxBytes: 20_000}, 1, 100, 2000},
		{"samples", profile.Limits{MaxSamples: 100}, 2, 10, 0},
		{"one sample over the limit", profile.Limits{MaxBytes: 600}, 1, 2000, 0},
		{"no split", profile.Limits{}, 3, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := profile.New(config())
			const n = 2000
			for i := range n {
				stack := names(fmt.Sprintf("leaf-%d", i), "shared", fmt.Sprintf("caller-%d", i%7), "main")
				for j := range stack {
					if tc.padding > 0 {
						stack[j].File = stack[j].Name + strings.Repeat("x", tc.padding)
					}
				}
				put(t, a, uint64(1+i%tc.resources), uint64(i), profile.Sample{Stack: stack}, 0, int64(i+1))
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

// TestEmit checks that the messages of a window are never all in memory, and that replaced snapshots count once.
func TestEmit(t *testing.T) {
	cfg := config()
	cfg.Aggregation = profile.AggregateSnapshot
	a := profile.New(cfg)
	for range 2 {
		done := a.Snapshot()
		for i := range 500 {
			put(t, a, 1, uint64(i), profile.Sample{Stack: names(fmt.Sprint("leaf-", i))}, 0, 1)
		}
		done()
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

// TestBigResourceAlone checks that a resource with many samples gets its own messages, which a queue can drop.
func TestBigResourceAlone(t *testing.T) {
	a := profile.New(config())
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

// TestState checks that profiles of a state have a time and no duration.
func TestState(t *testing.T) {
	for _, state := range []bool{false, true} {
		cfg := config()
		cfg.State, cfg.Types = state, []profile.ValueType{{Type: "inuse_space", Unit: "bytes"}}
		a := profile.New(cfg)
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

// TestNameLabel checks that every sample has the profile's name, even without attributes of its own.
func TestNameLabel(t *testing.T) {
	cfg := config()
	cfg.NameLabel = "memory"
	a := profile.New(cfg)
	put(t, a, 1, 1, profile.Sample{Stack: names("f")}, 0, 1)
	put(t, a, 1, 2, profile.Sample{Stack: names("f"), Attributes: []profile.Attribute{{Key: "a", Value: profile.String("b")}}}, 0, 1)
	body := a.Flush(start, end, profile.Limits{}).Messages[0].Body
	for _, err := range otlpcheck.CheckBytes(body) { // the form breaks no other rule
		require.ErrorContains(t, err, ".period: ")
	}
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
	a := profile.New(cfg)
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
			for _, read := range []int32{f, f - 1} { // the right entry, and the one that Parca reads
				require.Equal(t, stack.names[i], d.StringTable[d.FunctionTable[read].NameStrindex])
			}
		}
	}
}

// TestLayoutPinned pins the layout of OTLP 1.10 and 1.11. Package export converts it to other layouts.
func TestLayoutPinned(t *testing.T) {
	a := profile.New(config())
	put(t, a, 1, 1, profile.Sample{
		Stack: []profile.Frame{{Name: "f"}}, Attributes: []profile.Attribute{{Key: "k", Value: profile.Int(1)}},
	}, 0, 7)
	f := a.Flush(start, end, profile.Limits{})
	body, id := f.Messages[0].Body, decode(t, f)[0].ResourceProfiles[0].ScopeProfiles[0].Profiles[0].ProfileId
	require.Len(t, id, 16)
	// The first sequence is a sample. The second is a period, followed by an ID.
	for _, want := range []string{"1208" + "0801" + "120101" + "220107", "30" + "e3cedd09" + "3a10" + hex.EncodeToString(id)} {
		b, err := hex.DecodeString(want)
		require.NoError(t, err)
		require.True(t, bytes.Contains(body, b), "%s in %x", want, body)
	}
}
