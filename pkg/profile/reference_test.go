package profile_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// describe returns a text with everything that a message must contain for a sample.
func describe(service string, s profile.Sample) string {
	valid := func(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", service)
	for _, f := range s.Stack {
		if f.Name == "" && f.Address == 0 {
			continue
		}
		var build []string
		for key, id := range map[string]string{"gnu": f.Mapping.GNUBuildID, "go": f.Mapping.GoBuildID, "htlhash": f.Mapping.HTLHash} {
			if id != "" {
				build = append(build, fmt.Sprintf("process.executable.build_id.%s=%q", key, id))
			}
		}
		if f.Mapping.Symbolized {
			build = append(build, "pprof.mapping.has_functions=true")
		}
		slices.Sort(build)
		fmt.Fprintf(&b, "%q %q %d from %d %#x %q in %q %v\n", valid(f.Name), valid(f.File), f.Line, f.StartLine, f.Address, f.Type,
			f.Mapping.File, build)
	}
	var attrs []string
	for _, a := range s.Attributes {
		v := fmt.Sprintf("%q", valid(a.Value.AsString()))
		if a.Value.Kind() == profile.KindInt {
			v = fmt.Sprint(a.Value.AsInt())
		}
		attrs = append(attrs, fmt.Sprintf("%s=%s", a.Key, v))
	}
	slices.Sort(attrs)
	fmt.Fprintf(&b, "%v %x %x", attrs, s.Link.TraceID, s.Link.SpanID)
	return b.String()
}

// described returns the same description of the samples in messages, each with its value.
func described(t *testing.T, reqs []*collectorpb.ExportProfilesServiceRequest) map[string]int64 {
	sums := map[string]int64{}
	for _, req := range reqs {
		d := req.Dictionary
		attribute := func(i int32) string {
			a := d.AttributeTable[i]
			v := ""
			switch x := a.Value.Value.(type) {
			case *commonpb.AnyValue_StringValue:
				v = fmt.Sprintf("%q", x.StringValue)
			case *commonpb.AnyValue_IntValue:
				v = fmt.Sprint(x.IntValue)
			case *commonpb.AnyValue_BoolValue:
				v = fmt.Sprint(x.BoolValue)
			}
			return fmt.Sprintf("%s=%s", d.StringTable[a.KeyStrindex], v)
		}
		attributes := func(indices []int32) []string {
			var list []string
			for _, i := range indices {
				list = append(list, attribute(i))
			}
			slices.Sort(list)
			return list
		}
		for _, rp := range req.ResourceProfiles {
			for _, s := range rp.ScopeProfiles[0].Profiles[0].Samples {
				var b strings.Builder
				fmt.Fprintf(&b, "%s\n", rp.Resource.Attributes[0].Value.GetStringValue())
				for _, i := range d.StackTable[s.StackIndex].LocationIndices {
					l := d.LocationTable[i]
					name, file, line, begins, frameType := "", "", int64(0), int64(0), ""
					if len(l.Lines) > 0 {
						fn := d.FunctionTable[l.Lines[0].FunctionIndex]
						name, file, line, begins = d.StringTable[fn.NameStrindex], d.StringTable[fn.FilenameStrindex], l.Lines[0].Line, fn.StartLine
					}
					for _, i := range l.AttributeIndices {
						require.Equal(t, "profile.frame.type", d.StringTable[d.AttributeTable[i].KeyStrindex])
						frameType = d.AttributeTable[i].Value.GetStringValue()
					}
					m := d.MappingTable[l.MappingIndex]
					fmt.Fprintf(&b, "%q %q %d from %d %#x %q in %q %v\n", name, file, line, begins, l.Address, frameType,
						d.StringTable[m.FilenameStrindex], attributes(m.AttributeIndices))
				}
				link := d.LinkTable[s.LinkIndex]
				trace, span := [16]byte{}, [8]byte{}
				copy(trace[:], link.TraceId)
				copy(span[:], link.SpanId)
				fmt.Fprintf(&b, "%v %x %x", attributes(s.AttributeIndices), trace, span)
				require.NotContains(t, sums, b.String(), "one sample twice")
				sums[b.String()] = s.Values[0]
			}
		}
	}
	return sums
}

// TestReference checks that messages have the same sums as the rows' descriptions, for any rows. So tables only merge equal
// entries.
func TestReference(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		pick := func(list ...string) string { return list[r.IntN(len(list))] }
		a := profile.New(config())
		known := map[uint64]profile.Sample{}
		resources := map[uint64]uint64{}
		for w := range uint64(4) {
			want := map[string]int64{}
			for range 300 {
				key := r.Uint64N(400)
				if _, ok := known[key]; !ok {
					var s profile.Sample
					for range r.IntN(6) {
						f := profile.Frame{
							Name:    pick("", "main", "work", "bad\xffname", "bad\xfename", "bad\uFFFDname", "a name that is longer than one block of a hash"),
							Address: r.Uint64N(3), Type: profile.FrameType(pick("", "kernel", "native")),
						}
						if f.Name != "" {
							f.File, f.Line, f.StartLine = pick("", "", "main.go", "bad\xff.go", "work"), r.Int64N(2), r.Int64N(2)
						}
						if r.IntN(3) > 0 {
							f.Mapping = profile.Mapping{
								File: pick("/bin/a", "/bin/b"), GNUBuildID: pick("aa", "bb"), GoBuildID: pick("", "aa"), HTLHash: pick("", strings.Repeat("b", 32)),
								Symbolized: r.IntN(2) == 0,
							}
						}
						s.Stack = append(s.Stack, f)
					}
					for _, name := range []string{"thread.name", "n", "x"} {
						switch r.IntN(4) {
						case 0:
							s.Attributes = append(s.Attributes, profile.Attribute{Key: name, Value: profile.Int(r.Int64N(2))})
						case 1:
							s.Attributes = append(s.Attributes, profile.Attribute{Key: name, Value: profile.String(pick("a", "main", "bad\xff", "bad\xfe"))})
						}
					}
					if r.IntN(4) == 0 {
						s.Link.TraceID[0], s.Link.SpanID[0] = byte(1+r.IntN(2)), byte(1+r.IntN(2))
					}
					r.Shuffle(len(s.Attributes), func(i, j int) { s.Attributes[i], s.Attributes[j] = s.Attributes[j], s.Attributes[i] })
					known[key], resources[key] = s, 1+r.Uint64N(3)
				}
				res, value := resources[key], 1+r.Int64N(5)
				require.Equal(t, profile.Added, put(t, a, res, key, known[key], 0, value))
				want[describe(fmt.Sprintf("svc-%d", res), known[key])] += value
			}
			require.Equal(t, want, described(t, decode(t, a.Flush(start+w, end+w, profile.Limits{}))), "seed %d, window %d", seed, w)
			if w == 2 {
				a.Renew()
			}
		}
	}
}
