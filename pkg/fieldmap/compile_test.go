package fieldmap

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

func TestProfileCPU(t *testing.T) {
	s := profileCPU(t, profileCPUMetadata)
	o, warned := recorded()
	p := compile(t, s, o)
	require.Equal(t, Descriptor{
		Name:       "process_cpu",
		Types:      []profile.ValueType{{Type: "samples", Unit: "count"}},
		Period:     20_408_163,
		PeriodType: profile.ValueType{Type: "cpu", Unit: "nanoseconds"},
		Scope:      profile.Scope{Name: "ghcr.io/inspektor-gadget/gadget/profile_cpu", Version: "v0.55.0"},
	}, p.Descriptor())
	require.Empty(t, warned())

	d := s.row(podRow())
	require.Equal(t, []int64{3}, p.Values(nil, d))
	sm := p.Sample(d)
	require.Equal(t, profile.Incomplete, sm.Fate, "main.main is called by another")
	require.Equal(t, []string{"do_syscall_64", "entry_SYSCALL_64_after_hwframe", "main.work", "main.main"}, frameNames(sm))
	require.Equal(t, map[string]any{"thread.name": "cart-server"}, attributes(t, sm.Attributes))
	require.Equal(t, "cart", resource(t, p, d)["service.name"])
}

// events creates a data source whose rows are single events, with every kind of stack and no annotations.
func events(t testing.TB, metadata string) *source {
	t.Helper()
	members := []*member{ //nolint:prealloc // the rest has a function of its own
		{name: "timestamp_raw", kind: api.Kind_Uint64, size: 8, tags: []string{"type:gadget_timestamp"}, parent: -1},
		{name: "kstack_raw", kind: api.Kind_Uint32, size: 4, tags: []string{kernelStackTag}, parent: -1},
		{name: "bytes", kind: api.Kind_Uint64, size: 8, parent: -1},
		{name: "objects", kind: api.Kind_Int32, size: 4, parent: -1},
		{name: "seconds", kind: api.Kind_Float64, size: 8, parent: -1},
		{name: "ratio", kind: api.Kind_Float32, size: 4, parent: -1},
	}
	members = append(members, userStackMembers("ustack", len(members))...)
	return newSource(t, "allocs", metadata, members...).formatUserStack("ustack").text("timestamp", "kstack", "fname")
}

func TestDiscovery(t *testing.T) {
	row := map[string]any{"kstack": "k; ", "ustack.symbols": "u; ", "fname": "text; "}
	for _, tc := range []struct {
		name   string
		source func() *source
		want   []string
	}{
		{"kernel before user", func() *source { return events(t, plain) }, []string{"k", "u"}},
		{"an annotation turns it around", func() *source {
			return events(t, "annotations: {profiles.stack-fields: 'ustack.symbols, kstack'}")
		}, []string{"u", "k"}},
		{"the user stack alone", func() *source { return events(t, "annotations: {profiles.stack-fields: ustack.symbols}") }, []string{"u"}},
		{"the addresses stand for all of it", func() *source { return events(t, "annotations: {profiles.stack-fields: ustack.addresses}") }, []string{"u"}},
		{"the raw field stands for all of it", func() *source { return events(t, "annotations: {profiles.stack-fields: 'kstack_raw,ustack'}") }, []string{"k", "u"}},
		{"a stack named twice", func() *source {
			return events(t, "annotations: {profiles.stack-fields: 'kstack,kstack_raw,ustack.buildid,ustack'}")
		}, []string{"k", "u"}},
		{"any text", func() *source { return events(t, "annotations: {profiles.stack-fields: fname}") }, []string{"text"}},
		{"without regard to case", func() *source { return events(t, "annotations: {profiles.stack-fields: KStack}") }, []string{"k"}},
		{"a name of its own for the kernel stack", func() *source {
			s := newSource(t, "x", plain, &member{name: "ip", kind: api.Kind_Uint32, size: 4, tags: []string{kernelStackTag}, parent: -1}).text("kstack", "ustack.symbols", "fname")
			return s.annotate("ip", kernelTargetAnnotation, "kstack")
		}, []string{"k"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.source()
			sm := compile(t, s, testOptions()).Sample(s.row(row))
			require.Equal(t, tc.want, frameNames(sm))
			fate := profile.Whole
			if slices.Contains(tc.want, "u") {
				fate = profile.Incomplete // u is not an entry point
			}
			require.Equal(t, fate, sm.Fate)
		})
	}
}

func TestDiscoveryTakesOneStackOfAKind(t *testing.T) {
	s := newSource(t, "wakeups", plain,
		&member{name: "wakee_raw", kind: api.Kind_Uint32, size: 4, tags: []string{kernelStackTag}, parent: -1},
		&member{name: "waker_raw", kind: api.Kind_Uint32, size: 4, tags: []string{kernelStackTag}, parent: -1},
	).text("wakee", "waker")
	o, warned := recorded()
	sm := compile(t, s, o).Sample(s.row(map[string]any{"wakee": "a; ", "waker": "b; "}))
	require.Equal(t, []string{"a"}, frameNames(sm))
	require.Len(t, warned(), 1)
	require.Contains(t, warned()[0], annStackFields)
}

func TestNoStack(t *testing.T) {
	for name, s := range map[string]*source{
		"no stack":                      newSource(t, "x", plain).text("fname"),
		"a kernel stack not formatted":  newSource(t, "x", plain, &member{name: "kstack_raw", kind: api.Kind_Uint32, size: 4, tags: []string{kernelStackTag}, parent: -1}),
		"a kernel stack without a name": newSource(t, "x", plain, &member{name: "kstack", kind: api.Kind_Uint32, size: 4, tags: []string{kernelStackTag}, parent: -1}),
		"a user stack not formatted":    newSource(t, "x", plain, userStackMembers("ustack", 0)...),
		"a value and no stack":          newSource(t, "x", "annotations: {profiles.value-field: n}", &member{name: "n", kind: api.Kind_Uint32, size: 4, parent: -1}),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(s, testOptions())
			require.ErrorIs(t, err, ErrNoStack)
			require.ErrorContains(t, err, `"x"`)
		})
	}
}

func TestErrorsNameTheFieldAndTheRemedy(t *testing.T) {
	for _, tc := range []struct {
		name, annotations string
		want              []string
	}{
		{"stack field missing", "profiles.stack-fields: 'kstack,gone'", []string{`"allocs"`, "profiles.stack-fields", `"gone"`, "kstack_raw", "ustack.symbols", "fname"}},
		{"value field missing", "profiles.value-field: gone", []string{`"allocs"`, "profiles.value-field", `"gone"`, "bytes", "objects"}},
		{"stack field of numbers", "profiles.stack-fields: bytes", []string{`"allocs"`, `"bytes"`, "is not a stack"}},
		{"value field of text", "profiles.value-field: fname", []string{`"allocs"`, `"fname"`, "is not a number"}},
		{"value field of fractions", "profiles.value-field: ratio", []string{`"allocs"`, `"ratio"`, "fraction", "profiles.unit"}},
		{"value field of fractions of a unit without parts", "profiles.value-field: ratio, profiles.unit: bytes", []string{`"ratio"`, `"bytes"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := events(t, "annotations: {"+tc.annotations+"}")
			_, err := Compile(s, testOptions())
			require.Error(t, err)
			require.NotErrorIs(t, err, ErrNoStack)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestErrorsAreOfBoundedLength(t *testing.T) {
	s := newSource(t, "x", plain)
	for i := range 500 {
		s.text("field_with_a_name_" + string(rune('a'+i/26)) + string(rune('a'+i%26)))
	}
	s.AddAnnotation(annStackFields, string(make([]byte, 1<<16)))
	_, err := Compile(s, testOptions())
	require.Error(t, err)
	require.Less(t, len(err.Error()), 4096)
}

// shown formats a Descriptor in one line: its name, value types, period, and differences from the test gadget's defaults.
func shown(d Descriptor) string {
	pair := func(v profile.ValueType) string { return v.Type + "/" + v.Unit }
	text := d.Name + ":"
	for _, v := range d.Types {
		text += " " + pair(v)
	}
	text += fmt.Sprintf(", %d %s", d.Period, pair(d.PeriodType))
	if d.Last {
		text += ", last"
	}
	if d.Timestamps {
		text += ", timestamps"
	}
	if d.Counted {
		text += ", counted"
	}
	if d.Scope != (profile.Scope{Name: "ghcr.io/inspektor-gadget/gadget/profile_cpu", Version: "v0.55.0"}) {
		text += ", scope " + d.Scope.Name + " " + d.Scope.Version
	}
	return text
}

func TestDescriptor(t *testing.T) {
	type annotations = map[string]string
	type options = func(o *Options)
	bytes := annotations{annValueField: "bytes"}
	sampling := func(key string, value any) options {
		return func(o *Options) { o.Gadget.Config = viper.New(); o.Gadget.Config.Set(key, value) }
	}
	frequency := func(value string) options { return func(o *Options) { o.Gadget.Config = gadgetConfig(value) } }
	image := func(name string) options { return func(o *Options) { o.Gadget.ImageName = name } }
	name := func(name string) options { return func(o *Options) { o.Name = name } }
	other := func(hz string) options {
		return func(o *Options) { o.Gadget.Config.Set("programs.other.sampler.frequency", hz) }
	}
	for _, tc := range []struct {
		name        string
		annotations annotations
		options     options
		want        string
		warnings    int
	}{
		{"no value field", nil, nil, "allocs: events/count, 1 allocs/count, counted", 0},
		{"a value field", bytes, nil, "allocs: samples/count, 20408163 cpu/nanoseconds", 0},
		{"no sampler", bytes, func(o *Options) { o.Gadget.Config = nil }, "allocs: samples/count, 1 allocs/count", 0},
		{"several value fields", annotations{annValueField: "objects, bytes", annType: "alloc_objects,alloc_space", annUnit: "count,bytes", annName: "memory"}, nil, "memory: alloc_objects/count alloc_space/bytes, 1 memory/count", 0},
		{"several value fields without types", annotations{annValueField: "objects,bytes", annUnit: ",bytes"}, nil, "allocs: objects/count bytes/bytes, 1 allocs/count", 0},
		{"one type twice", annotations{annValueField: "objects,bytes", annType: "n,n"}, nil, "allocs: n/count n_2/count, 1 allocs/count", 1},
		{"more types than values", annotations{annValueField: "bytes", annType: "a,b", annUnit: "bytes,bytes"}, nil, "allocs: a/bytes, 1 allocs/bytes", 2},
		{"a dash in the type", annotations{annType: "off-cpu-time"}, nil, "allocs: off_cpu_time/count, 1 allocs/count, counted", 1},
		{"a bad type, unit and name", annotations{annType: "a b", annUnit: "\x1b", annName: "n\nm"}, nil, "allocs: events/count, 1 allocs/count, counted", 3},
		{"the flag's name is stronger", annotations{annName: "n"}, name("mine"), "mine: events/count, 1 mine/count, counted", 0},
		{"a name that no receiver takes", nil, name("my profile\x1b"), "my_profile_: events/count, 1 my_profile_/count, counted", 1},
		{"fractions of time", annotations{annValueField: "seconds", annType: "wait", annUnit: "seconds"}, nil, "allocs: wait/nanoseconds, 1 allocs/nanoseconds", 0},
		{"a period of the image", annotations{annPeriod: "524288", annPeriodType: "space", annPeriodUnit: "bytes"}, nil, "allocs: events/count, 524288 space/bytes, counted", 0},
		{"a period is stronger than the sampler's", annotations{annValueField: "bytes", annPeriod: "1000"}, nil, "allocs: samples/count, 1000 cpu/nanoseconds", 0},
		{"a bad period", annotations{annPeriod: "0", annPeriodType: "a b", annPeriodUnit: "c d"}, nil, "allocs: events/count, 1 allocs/count, counted", 3},
		{"a frequency that is a number", bytes, sampling("programs", map[string]any{"p": map[string]any{"sampler": map[string]any{"frequency": 100}}}), "allocs: samples/count, 10000000 cpu/nanoseconds", 0},
		{"a frequency that is none", bytes, frequency("often"), "allocs: samples/count, 1 allocs/count", 0},
		{"a frequency of zero", bytes, frequency("0"), "allocs: samples/count, 1 allocs/count", 0},
		{"programs of another form", bytes, sampling("programs", []string{"p"}), "allocs: samples/count, 1 allocs/count", 0},
		{"two samplers of one frequency", bytes, other("49"), "allocs: samples/count, 20408163 cpu/nanoseconds", 0},
		{"two samplers that differ", bytes, other("99"), "allocs: samples/count, 1 allocs/count", 1},
		{"a frequency that a parameter has set", bytes, func(o *Options) {
			require.NoError(t, o.Gadget.Config.MergeConfigMap(map[string]any{"programs": map[string]any{"profiler": map[string]any{"sampler": map[string]any{"frequency": "200"}}}}))
		}, "allocs: samples/count, 5000000 cpu/nanoseconds", 0},
		{"units in other words", annotations{annValueField: "bytes,objects", annUnit: "By,ns", annPeriodUnit: "byte"}, nil, "allocs: bytes/bytes objects/nanoseconds, 1 allocs/bytes", 0},
		{"last", annotations{annAggregation: "last", annTimestamps: "true"}, nil, "allocs: events/count, 1 allocs/count, last, timestamps, counted", 0},
		{"another aggregation", annotations{annAggregation: "mean"}, nil, "allocs: events/count, 1 allocs/count, counted", 1},
		{"no image", nil, image(""), "allocs: events/count, 1 allocs/count, counted, scope " + defaultScope + " ", 0},
		{"an image by digest", nil, image("r:5000/g@sha256:ab"), "allocs: events/count, 1 allocs/count, counted, scope r:5000/g sha256:ab", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := events(t, plain)
			for key, value := range tc.annotations {
				s.AddAnnotation(key, value)
			}
			o, warned := recorded()
			if tc.options != nil {
				tc.options(&o)
			}
			require.Equal(t, tc.want, shown(compile(t, s, o).Descriptor()))
			require.Len(t, warned(), tc.warnings, "%q", warned())
			for _, w := range warned() {
				require.NotContains(t, w, "\x1b")
				require.NotContains(t, w, "\n")
			}
		})
	}
}

func TestValues(t *testing.T) {
	for _, tc := range []struct {
		name  string
		kind  api.Kind
		unit  string
		value any
		want  int64
	}{
		{"int8", api.Kind_Int8, "", int8(-3), -3},
		{"int16", api.Kind_Int16, "", int16(-300), -300},
		{"int32", api.Kind_Int32, "", int32(math.MinInt32), math.MinInt32},
		{"int64", api.Kind_Int64, "", int64(math.MinInt64), math.MinInt64},
		{"uint8", api.Kind_Uint8, "", uint8(200), 200},
		{"uint16", api.Kind_Uint16, "", uint16(60000), 60000},
		{"uint32", api.Kind_Uint32, "", uint32(math.MaxUint32), math.MaxUint32},
		{"uint64", api.Kind_Uint64, "", uint64(1 << 40), 1 << 40},
		{"uint64 too large", api.Kind_Uint64, "", uint64(math.MaxUint64), math.MaxInt64},
		{"seconds", api.Kind_Float64, "seconds", 1.5, 1_500_000_000},
		{"milliseconds", api.Kind_Float32, "milliseconds", float32(0.25), 250_000},
		{"microseconds", api.Kind_Float64, "microseconds", 2.5, 2500},
		{"nanoseconds are rounded", api.Kind_Float64, "nanoseconds", 2.6, 3},
		{"not a number", api.Kind_Float64, "seconds", math.NaN(), 0},
		{"infinite", api.Kind_Float64, "seconds", math.Inf(1), math.MaxInt64},
		{"negative infinite", api.Kind_Float64, "seconds", math.Inf(-1), math.MinInt64},
		{"short", api.Kind_Uint64, "", []byte{1}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSource(t, "x", ofStack).text("stack")
			_, err := s.AddField("n", tc.kind)
			require.NoError(t, err)
			s.AddAnnotation(annValueField, "n")
			s.AddAnnotation(annUnit, tc.unit)
			p := compile(t, s, testOptions())
			require.Equal(t, []int64{7, tc.want}, p.Values([]int64{7}, s.row(map[string]any{"n": tc.value})))
		})
	}
	t.Run("none", func(t *testing.T) {
		s := events(t, plain)
		require.Equal(t, []int64{1}, compile(t, s, testOptions()).Values(nil, s.row(nil)))
	})
	t.Run("several", func(t *testing.T) {
		s := events(t, plain)
		s.AddAnnotation(annValueField, "objects,bytes")
		require.Equal(t, []int64{2, 64}, compile(t, s, testOptions()).Values(nil, s.row(map[string]any{"objects": int32(2), "bytes": uint64(64)})))
	})
}

func TestTimestamp(t *testing.T) {
	wall := uint64(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC).UnixNano())
	for _, tc := range []struct {
		name  string
		setup func(s *source)
		value uint64
		want  uint64
	}{
		{"none", func(*source) {}, wall, 0},
		{"annotated", func(s *source) { s.annotate("timestamp_raw", annTimestamp, "true") }, wall, wall},
		{"the formatted field stands for the raw one", func(s *source) { s.annotate("timestamp", annTimestamp, "true") }, wall, wall},
		{"by its type where timestamps are wanted", func(s *source) { s.AddAnnotation(annTimestamps, "true") }, wall, wall},
		{"zero", func(s *source) { s.annotate("timestamp_raw", annTimestamp, "true") }, 0, 0},
		{"of no use", func(s *source) { s.annotate("fname", annTimestamp, "true") }, wall, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := events(t, plain)
			tc.setup(s)
			require.Equal(t, tc.want, compile(t, s, testOptions()).Timestamp(s.row(map[string]any{"timestamp_raw": tc.value})))
		})
	}
	t.Run("missing", func(t *testing.T) {
		o, warned := recorded()
		s := newSource(t, "x", ofStack).text("stack")
		s.AddAnnotation(annTimestamps, "true")
		require.Zero(t, compile(t, s, o).Timestamp(s.row(nil)))
		require.Len(t, warned(), 1)
		require.Contains(t, warned()[0], "profiles.timestamps is set, but no field contains a time")
	})
	t.Run("since boot", func(t *testing.T) {
		s := events(t, plain).annotate("timestamp_raw", annTimestamp, "true")
		now := uint64(time.Now().UnixNano())
		p := compile(t, s, testOptions())
		got := p.Timestamp(s.row(map[string]any{"timestamp_raw": procfs.SinceBoot()}))
		require.InDelta(t, float64(now), float64(got), float64(time.Minute))
	})
	t.Run("negative", func(t *testing.T) {
		s := newSource(t, "x", ofStack).text("stack")
		_, err := s.AddField("at", api.Kind_Int64)
		require.NoError(t, err)
		s.annotate("at", annTimestamp, "true")
		require.Zero(t, compile(t, s, testOptions()).Timestamp(s.row(map[string]any{"at": int64(-5)})))
	})
}

func TestFieldsThatGaveUpTheirName(t *testing.T) {
	s := profileCPU(t, plain)
	s.GetField("proc.comm").RemoveReference(false)
	require.Empty(t, sample(t, compile(t, s, testOptions()), s.row(map[string]any{"kern_stack": "f; "})))
}

func TestNamesOfADataSource(t *testing.T) {
	for name, want := range map[string]string{"page-faults": "page-faults", "a b\n": "a_b_", "": "unnamed", "é": "_"} {
		s := newSource(t, name, ofStack).text("stack", "strange\x1b[0m")
		require.Equal(t, want, compile(t, s, testOptions()).Descriptor().Name)
		s.AddAnnotation(annValueField, "gone")
		_, err := Compile(s, testOptions())
		require.ErrorContains(t, err, `stack, "strange\x1b[0m"`)
	}
}

func TestSingleEvents(t *testing.T) {
	ds, err := datasource.New(datasource.TypeSingle, "faults")
	require.NoError(t, err)
	stackField, err := ds.AddField("stack", api.Kind_String)
	require.NoError(t, err)
	ds.AddAnnotation(annStackFields, "stack")
	p, err := Compile(ds, testOptions())
	require.NoError(t, err)
	packet, err := ds.NewPacketSingle()
	require.NoError(t, err)
	require.NoError(t, stackField.PutString(packet, "f; "))
	sm := p.Sample(packet)
	require.Equal(t, []string{"f"}, frameNames(sm))
}
