package fieldmap

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// plain has no annotations, like a gadget that is not made for profiles.
const plain = ""

// ofStack makes the text field "stack" a row's stack.
const ofStack = "annotations: {profiles.stack-fields: stack}"

// TestSampleMapping checks the result of each field of a process.
func TestSampleMapping(t *testing.T) {
	setting := func(kv ...string) func(s *source, o *Options) {
		return func(_ *source, o *Options) {
			for _, s := range kv {
				key, value, _ := strings.Cut(s, "=")
				o.Exporter.Attributes = append(o.Exporter.Attributes, config.KeyValue{Key: key, Value: value})
			}
		}
	}
	annotate := func(field, annotation, value string) func(s *source, o *Options) {
		return func(s *source, _ *Options) { s.annotate(field, annotation, value) }
	}
	for _, tc := range []struct {
		name  string
		setup func(s *source, o *Options)
		want  map[string]any
	}{
		{name: "proc.comm", want: map[string]any{"thread.name": "cart-server"}},
		{name: "proc.comm left out by the image", setup: annotate("proc.comm", annSampleAttribute, "false"), want: map[string]any{}},
		{name: "proc.comm named by the image", setup: annotate("proc.comm", annSampleAttribute, "comm"), want: map[string]any{"comm": "cart-server"}},
		{name: "proc.comm dropped by the settings", setup: setting("thread.name=drop"), want: map[string]any{}},
		{name: "proc.pid asked for by the image", setup: annotate("proc.pid", annSampleAttribute, "true"), want: map[string]any{"thread.name": "cart-server", "process.pid": int64(4711)}},
		{name: "proc.pid asked for by the settings", setup: setting("process.pid=sample"), want: map[string]any{"thread.name": "cart-server", "process.pid": int64(4711)}},
		{name: "proc.pid dropped by the settings", setup: func(s *source, o *Options) {
			annotate("proc.pid", annSampleAttribute, "true")(s, o)
			setting("process.pid=drop")(s, o)
		}, want: map[string]any{"thread.name": "cart-server"}},
		{name: "proc.pid moved to the resource", setup: func(s *source, o *Options) {
			annotate("proc.pid", annSampleAttribute, "true")(s, o)
			setting("process.pid=resource")(s, o)
		}, want: map[string]any{"thread.name": "cart-server"}},
		{name: "proc.tid", setup: setting("thread.id=sample"), want: map[string]any{"thread.name": "cart-server", "thread.id": int64(4712)}},
		{name: "proc.parent.pid", setup: setting("process.parent_pid=sample"), want: map[string]any{"thread.name": "cart-server", "process.parent_pid": int64(1)}},
		{name: "proc.creds.uid", setup: setting("process.user.id=sample"), want: map[string]any{"thread.name": "cart-server", "process.user.id": int64(1000)}},
		{name: "a field without a name of its own", setup: annotate("kernel_ip", annSampleAttribute, "true"), want: map[string]any{"thread.name": "cart-server", "kernel_ip": int64(0)}},
		{name: "a field that the settings name", setup: setting("proc.creds.gid=sample"), want: map[string]any{"thread.name": "cart-server", "proc.creds.gid": int64(0)}},
		{name: "True is true", setup: annotate("proc.pid", annSampleAttribute, " True "), want: map[string]any{"thread.name": "cart-server", "process.pid": int64(4711)}},
		{name: "what the resource has is not repeated", setup: annotate("runtime.containerName", annSampleAttribute, "true"), want: map[string]any{"thread.name": "cart-server"}},
		{name: "what the resource has under another name", setup: annotate("k8s.podName", annSampleAttribute, "pod"), want: map[string]any{"thread.name": "cart-server", "pod": "cart-7d4b9c-x2x4z"}},
		{name: "what the exporter's resource has is not repeated", setup: func(s *source, o *Options) {
			annotate("proc.comm", annSampleAttribute, "team")(s, o)
			o.Exporter.Resource = []config.KeyValue{{Key: "team", Value: "a"}}
		}, want: map[string]any{}},
		{name: "on the resource and the sample", setup: func(s *source, o *Options) {
			annotate("proc.pid", annSampleAttribute, "true")(s, o)
			annotate("proc.pid", annResourceAttribute, "true")(s, o)
		}, want: map[string]any{"thread.name": "cart-server"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := profileCPU(t, plain)
			o := testOptions()
			if tc.setup != nil {
				tc.setup(s, &o)
			}
			p := compile(t, s, o)
			require.Equal(t, tc.want, sample(t, p, s.row(podRow())))
		})
	}
}

func TestResourceAttributeOfAField(t *testing.T) {
	s := profileCPU(t, plain).annotate("proc.pid", annResourceAttribute, "gpu/worker").annotate("k8s.podName", annResourceAttribute, "false")
	p := compile(t, s, testOptions())
	a, b := s.row(podRow()), s.row(with(map[string]any{"proc.pid": uint32(1)}))
	require.Equal(t, int64(4711), resource(t, p, a)["gpu/worker"])
	require.NotContains(t, resource(t, p, a), "k8s.pod.name")
	resA, _ := p.Keys(a)
	resB, _ := p.Keys(b)
	require.NotEqual(t, resA, resB, "another value is another resource")
}

// TestUntrustedImage checks that an image cannot write protected attributes.
func TestUntrustedImage(t *testing.T) {
	for _, key := range []string{
		"service.name", "Service.Name", "service", "service.x", "k8s.pod.name", "container.id", "host.name", "os.type",
		"cloud.region", "deployment.environment.name", "telemetry.sdk.name", "process.executable.build_id.gnu",
		"profile.frame.type", "pprof.mapping.has_functions", "__name__", "__session_id__",
		"k8s_cluster_name", "k8s_pod_label_team", "cloud-region", "deployment_environment_name", "host_ip", "process_executable_build_id_gnu",
		"service_name", "service-name", "k8s_pod_name", "k8s/pod/name", "Container_ID",
		"", "a b", "a\nb", "a=b", "ключ", "a\x00", strings.Repeat("k", maxNameBytes+1), "{x}", "\x1b[31m",
	} {
		for _, annotation := range []string{annSampleAttribute, annResourceAttribute} {
			t.Run(annotation+" "+key, func(t *testing.T) {
				s := profileCPU(t, plain).annotate("proc.pid", annotation, key)
				o, warned := recorded()
				p := compile(t, s, o)
				d := s.row(podRow())
				require.Equal(t, map[string]any{"thread.name": "cart-server"}, sample(t, p, d))
				require.Equal(t, resource(t, compile(t, profileCPU(t, plain), testOptions()), d), resource(t, p, d))
				if key != "" {
					require.Len(t, warned(), 1)
					require.Contains(t, warned()[0], `"proc.pid"`)
					require.NotContains(t, warned()[0], "\x1b")
				}
			})
		}
	}
	for _, key := range []string{"gpu.model", "my-key", "a/b", "A_1", "hostage", "services", "container_count", strings.Repeat("k", maxNameBytes)} {
		t.Run("may write "+key, func(t *testing.T) {
			s := profileCPU(t, plain).annotate("proc.pid", annSampleAttribute, key)
			p := compile(t, s, testOptions())
			require.Equal(t, int64(4711), sample(t, p, s.row(podRow()))[key])
		})
	}
	t.Run("own field called as an identity", func(t *testing.T) {
		s := newSource(t, "events", ofStack).text("stack", "service.name", "k8s.pod.name")
		s.annotate("service.name", annResourceAttribute, "true").annotate("k8s.pod.name", annSampleAttribute, "true")
		p := compile(t, s, testOptions())
		d := s.row(map[string]any{"stack": "f; ", "service.name": "bank", "k8s.pod.name": "vault"})
		require.Empty(t, sample(t, p, d))
		require.Equal(t, map[string]any{"service.name": "host", "host.name": "machine", "host.arch": "amd64", "os.type": "linux"}, resource(t, p, d))
	})
	t.Run("own fields called as those of the enrichment", func(t *testing.T) {
		// IG does not enrich a data source without a namespace field.
		s := newSource(t, "events", ofStack).enrich().text("stack")
		s.annotate("k8s.podName", annSampleAttribute, "true")
		p := compile(t, s, testOptions())
		d := s.row(map[string]any{"stack": "f; ", "k8s.podName": "vault", "k8s.namespace": "bank", "runtime.containerId": "1"})
		require.Empty(t, sample(t, p, d))
		require.Equal(t, "host", resource(t, p, d)["service.name"])
		require.NotContains(t, resource(t, p, d), "k8s.pod.name")
	})
	t.Run("members of the event called as those of the enrichment", func(t *testing.T) {
		members := append(processMembers(0),
			&member{name: "k8s", kind: api.Kind_Bytes, size: 8, tags: []string{"type:fake"}, parent: -1},
			&member{name: "podName", kind: api.Kind_String, size: 8, parent: 12})
		s := newSource(t, "events", ofStack, members...).text("stack")
		p := compile(t, s, testOptions())
		d := s.row(map[string]any{"stack": "f; ", "k8s.podName": "vault"})
		require.Equal(t, "host", resource(t, p, d)["service.name"])
	})
	t.Run("more attributes than there may be", func(t *testing.T) {
		s := newSource(t, "events", ofStack).text("stack")
		row := map[string]any{"stack": "f; "}
		for i := range 2 * maxSampleAttributes {
			name := "field_" + string(rune('a'+i/26)) + string(rune('a'+i%26))
			s.text(name).annotate(name, annSampleAttribute, "true")
			row[name] = "x"
		}
		require.Len(t, sample(t, compile(t, s, testOptions()), s.row(row)), maxSampleAttributes)
	})
	t.Run("a struct", func(t *testing.T) {
		s := profileCPU(t, plain).annotate("proc", annSampleAttribute, "true").annotate("k8s.podLabels", annSampleAttribute, "true")
		require.Equal(t, map[string]any{"thread.name": "cart-server"}, sample(t, compile(t, s, testOptions()), s.row(podRow())))
	})
	t.Run("two fields for one attribute", func(t *testing.T) {
		s := profileCPU(t, plain).annotate("proc.pid", annSampleAttribute, "id").annotate("proc.tid", annSampleAttribute, "id")
		require.Equal(t, int64(4711), sample(t, compile(t, s, testOptions()), s.row(podRow()))["id"])
	})
}

// TestAttributeTypes checks every field type of IG.
func TestAttributeTypes(t *testing.T) {
	for _, tc := range []struct {
		name  string
		kind  api.Kind
		value any
		want  any // nil means no attribute
	}{
		{"bool", api.Kind_Bool, uint8(1), true},
		{"bool that is neither", api.Kind_Bool, uint8(7), true},
		{"int8", api.Kind_Int8, int8(-8), int64(-8)},
		{"int16", api.Kind_Int16, int16(-16), int64(-16)},
		{"int32", api.Kind_Int32, int32(-32), int64(-32)},
		{"int64", api.Kind_Int64, int64(math.MinInt64), int64(math.MinInt64)},
		{"uint8", api.Kind_Uint8, uint8(255), int64(255)},
		{"uint16", api.Kind_Uint16, uint16(65535), int64(65535)},
		{"uint32", api.Kind_Uint32, uint32(math.MaxUint32), int64(math.MaxUint32)},
		{"uint64", api.Kind_Uint64, uint64(math.MaxInt64), int64(math.MaxInt64)},
		{"uint64 above the largest int64", api.Kind_Uint64, uint64(math.MaxInt64) + 1, "9223372036854775808"},
		{"uint64 largest", api.Kind_Uint64, uint64(math.MaxUint64), "18446744073709551615"},
		{"zero", api.Kind_Uint32, uint32(0), int64(0)},
		{"float32", api.Kind_Float32, float32(0.5), 0.5},
		{"float64", api.Kind_Float64, -1e300, -1e300},
		{"float64 infinite", api.Kind_Float64, math.Inf(1), math.Inf(1)},
		{"string", api.Kind_String, "text", "text"},
		{"string empty", api.Kind_String, "", nil},
		{"string that is not UTF-8", api.Kind_String, "a\xff\xfeb", "a\uFFFDb"},
		{"string too long", api.Kind_String, strings.Repeat("é", 2000), strings.Repeat("é", 1024)},
		{"string too long, odd", api.Kind_String, "x" + strings.Repeat("é", 2000), "x" + strings.Repeat("é", 1023)},
		{"cstring", api.Kind_CString, "comm\x00rubbish", "comm"},
		{"cstring empty", api.Kind_CString, "\x00\x00", nil},
		{"bytes", api.Kind_Bytes, []byte{0, 1, 0xff}, []byte{0, 1, 0xff}},
		{"bytes empty", api.Kind_Bytes, []byte{}, nil},
		{"bytes too long", api.Kind_Bytes, make([]byte, 5000), make([]byte, maxValueBytes)},
		{"array", api.ArrayOf(api.Kind_Uint32), make([]byte, 8), nil},
		{"unknown", api.Kind_Invalid, []byte{1}, nil},
		{"number too short", api.Kind_Uint64, []byte{1, 2}, nil},
		{"number too long", api.Kind_Int16, []byte{1, 2, 3}, nil},
		{"number missing", api.Kind_Float64, []byte{}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSource(t, "events", ofStack).text("stack")
			_, err := s.AddField("x", tc.kind)
			require.NoError(t, err)
			s.annotate("x", annSampleAttribute, "true")
			p := compile(t, s, testOptions())
			got := sample(t, p, s.row(map[string]any{"x": tc.value}))
			if tc.want == nil {
				require.Empty(t, got)
				return
			}
			require.Equal(t, map[string]any{"x": tc.want}, got)
			if text, ok := got["x"].(string); ok {
				require.True(t, utf8.ValidString(text))
				require.LessOrEqual(t, len(text), maxValueBytes)
			}
		})
	}
}

func TestSampleDoesNotAliasTheRow(t *testing.T) {
	s := profileCPU(t, plain).annotate("runtime.runtimeName", annSampleAttribute, "engine")
	p := compile(t, s, testOptions())
	text := map[string][]byte{}
	row := podRow()
	for name, v := range row {
		if str, ok := v.(string); ok {
			text[name] = []byte(str)
			row[name] = text[name]
		}
	}
	d := s.row(row)
	sm := p.Sample(d)
	res := p.Resource(d)
	for _, b := range text {
		for i := range b {
			b[i] = '?'
		}
	}
	require.Equal(t, []string{"do_syscall_64", "entry_SYSCALL_64_after_hwframe", "main.work", "main.main"}, frameNames(sm))
	require.Equal(t, "containerd", attributes(t, sm.Attributes)["engine"])
	require.Equal(t, "cart", attributes(t, res.Attributes)["service.name"])
}

func TestCompatNames(t *testing.T) {
	s := profileCPU(t, profileCPUMetadata)
	o := testOptions()
	o.Exporter.CompatNames = true
	p := compile(t, s, o)
	require.Equal(t, map[string]any{"proc.comm": "cart-server", "runtime.containerName": "k8s_server_cart"}, sample(t, p, s.row(podRow())))
	require.Equal(t, profile.ValueType{Type: "process_cpu", Unit: "count"}, p.Descriptor().PeriodType)
	require.Equal(t, int64(1), p.Descriptor().Period)
	require.Equal(t, "k8s_server_cart", resource(t, p, s.row(podRow()))["container.name"])

	t.Run("the settings know both names", func(t *testing.T) {
		o.Exporter.Attributes = []config.KeyValue{{Key: "thread.name", Value: "drop"}, {Key: "process.pid", Value: "sample"}}
		p := compile(t, s, o)
		require.Equal(t, map[string]any{"proc.pid": int64(4711), "runtime.containerName": "k8s_server_cart"}, sample(t, p, s.row(podRow())))
	})
}

func TestLinks(t *testing.T) {
	trace := [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0}
	span := [8]byte{1, 2, 3, 4, 5, 6, 7, 0}
	want := profile.Link{TraceID: trace, SpanID: span}
	for _, tc := range []struct {
		name            string
		traceKind       api.Kind
		spanKind        api.Kind
		traceID, spanID any
		want            profile.Link
	}{
		{"bytes", api.Kind_Bytes, api.Kind_Bytes, trace[:], span[:], want},
		{"arrays", api.ArrayOf(api.Kind_Uint8), api.ArrayOf(api.Kind_Uint8), trace[:], span[:], want},
		{"hexadecimal", api.Kind_String, api.Kind_String, "0102030405060708090a0b0c0d0e0f00", "0102030405060700", want},
		{"upper case", api.Kind_String, api.Kind_String, "0102030405060708090A0B0C0D0E0F00", "0102030405060700", want},
		{"C strings of hexadecimal", api.Kind_CString, api.Kind_CString, "0102030405060708090a0b0c0d0e0f00\x00", "0102030405060700\x00\x00", want},
		{"C strings of bytes", api.Kind_CString, api.Kind_CString, trace[:], span[:], want},
		{"a number", api.Kind_Bytes, api.Kind_Uint64, trace[:], binary.BigEndian.Uint64(span[:]), want},
		{"no span", api.Kind_String, api.Kind_String, "0102030405060708090a0b0c0d0e0f00", "", profile.Link{}},
		{"a span of zeros", api.Kind_String, api.Kind_String, "0102030405060708090a0b0c0d0e0f00", "0000000000000000", profile.Link{}},
		{"no trace", api.Kind_Bytes, api.Kind_Bytes, make([]byte, 16), span[:], profile.Link{}},
		{"not hexadecimal", api.Kind_String, api.Kind_String, "0102030405060708090a0b0c0d0e0fxx", "0102030405060700", profile.Link{}},
		{"of another length", api.Kind_Bytes, api.Kind_Bytes, trace[:15], span[:], profile.Link{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSource(t, "events", ofStack).text("stack")
			for name, kind := range map[string]api.Kind{"trace": tc.traceKind, "span": tc.spanKind} {
				_, err := s.AddField(name, kind)
				require.NoError(t, err)
			}
			s.annotate("trace", annTraceID, "true").annotate("span", annSpanID, "true")
			p := compile(t, s, testOptions())
			d := s.row(map[string]any{"stack": "f; ", "trace": tc.traceID, "span": tc.spanID})
			sm := p.Sample(d)
			require.Equal(t, tc.want, sm.Link)
			_, a := p.Keys(d)
			_, b := p.Keys(s.row(map[string]any{"stack": "f; "}))
			require.NotEqual(t, a, b, "another span is another sample")
		})
	}
	t.Run("a trace without a field for the span", func(t *testing.T) {
		s := newSource(t, "events", ofStack).text("stack", "trace")
		s.annotate("trace", annTraceID, "true")
		o, warned := recorded()
		sm := compile(t, s, o).Sample(s.row(map[string]any{"trace": "0102030405060708090a0b0c0d0e0f00"}))
		require.Zero(t, sm.Link)
		require.Len(t, warned(), 1)
	})
}

// TestStackFates checks which stacks count as lost.
func TestStackFates(t *testing.T) {
	id := func(n int32) uint32 { return uint32(n) }
	for _, tc := range []struct {
		name   string
		change map[string]any
		want   profile.Fate
		frames []string
		kernel int32
		user   int32
	}{
		{"both", nil, profile.Incomplete, []string{"do_syscall_64", "entry_SYSCALL_64_after_hwframe", "main.work", "main.main"}, 17, 18},
		{"in user mode", map[string]any{"kern_stack": nil, "kern_stack_raw": id(-14)}, profile.Incomplete, []string{"main.work", "main.main"}, -14, 18},
		{
			"user stacks not collected",
			map[string]any{"user_stack_raw.inode": nil, "user_stack_raw.stack_id": nil, "user_stack_raw.symbols": nil, "user_stack_raw.addresses": nil},
			profile.Whole,
			[]string{"do_syscall_64", "entry_SYSCALL_64_after_hwframe"},
			17, -1,
		},
		{"kernel stack lost", map[string]any{"kern_stack": nil, "kern_stack_raw": id(-17)}, profile.Lost, []string{"main.work", "main.main"}, -17, 18},
		{"kernel stack gone from the map", map[string]any{"kern_stack": nil}, profile.Lost, []string{"main.work", "main.main"}, 17, 18},
		{
			"user stack lost",
			map[string]any{"user_stack_raw.stack_id": id(-17), "user_stack_raw.symbols": nil, "user_stack_raw.addresses": nil},
			profile.Lost,
			[]string{"do_syscall_64", "entry_SYSCALL_64_after_hwframe", "[lost user stack]"},
			17, -17,
		},
		{
			"neither asked for",
			map[string]any{"kern_stack": nil, "kern_stack_raw": id(-1), "user_stack_raw.inode": nil, "user_stack_raw.symbols": nil, "user_stack_raw.addresses": nil},
			profile.NoStack, []string{"[no stack]"}, -1, -1,
		},
		{"too long", map[string]any{"kern_stack": strings.Repeat("f; ", stack.MaxFrames+1)}, profile.Truncated, nil, 17, 18},
		{
			"one too long, one lost",
			map[string]any{"kern_stack": strings.Repeat("f; ", stack.MaxFrames+1), "user_stack_raw.stack_id": id(-17), "user_stack_raw.symbols": nil, "user_stack_raw.addresses": nil},
			profile.Truncated, nil, 17, -17,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := profileCPU(t, profileCPUMetadata)
			p := compile(t, s, testOptions())
			d := s.row(with(tc.change))
			sm := p.Sample(d)
			require.Equal(t, tc.want, sm.Fate)
			if tc.frames != nil {
				require.Equal(t, tc.frames, frameNames(sm))
			}
			kernel, user := p.StackIDs(d)
			require.Equal(t, tc.kernel, kernel)
			require.Equal(t, tc.user, user)
		})
	}
}

func TestUserFramesHaveAddressesAndBuildIDs(t *testing.T) {
	buildID := strings.Repeat("ab", 20)
	s := profileCPU(t, profileCPUMetadata)
	p := compile(t, s, testOptions())
	sm := p.Sample(s.row(with(map[string]any{
		"kern_stack": nil, "kern_stack_raw": uint32(math.MaxUint32),
		"user_stack_raw.symbols": "main.work; 0x0000000000402000; ",
		"user_stack_raw.buildid": buildID + " +1000; ",
	})))
	require.Equal(t, []profile.Frame{
		{Name: "main.work", Address: 0x1000, Type: profile.FrameNative, Mapping: profile.Mapping{GNUBuildID: buildID, Symbolized: true}},
		{Name: stack.Unknown, Type: profile.FrameNative},
	}, sm.Stack)
}

func TestShortRows(t *testing.T) {
	s := profileCPU(t, profileCPUMetadata).annotate("proc.pid", annSampleAttribute, "true")
	whole := s.row(podRow())
	array, err := s.NewPacketArray()
	require.NoError(t, err)
	short := array.New() // the container of the event has no memory
	for name, value := range map[string]string{"kern_stack": "f; ", "runtime.containerId": "1"} {
		require.NoError(t, s.GetField(name).PutString(short, value))
	}
	p := compile(t, s, testOptions())
	for _, d := range []datasource.Data{short, nil} {
		before := p.Stats().ShortRows
		res, row := p.Keys(d)
		again, rowAgain := p.Keys(d)
		require.Equal(t, res, again)
		require.Equal(t, row, rowAgain)
		_, other := p.Keys(whole)
		require.NotEqual(t, row, other)
		require.Equal(t, []int64{5, 0}, p.Values([]int64{5}, d))
		require.Zero(t, p.Timestamp(d))
		require.Greater(t, p.Stats().ShortRows, before)
		p.Resource(d)
		p.Sample(d)
		p.StackIDs(d)
	}
	require.Equal(t, "1", resource(t, p, short)["container.id"])
	sm := p.Sample(short)
	require.Equal(t, []string{"f"}, frameNames(sm))
	require.Empty(t, sm.Attributes)
}

func TestValueCap(t *testing.T) {
	c := NewValueCap(2)
	take := func(key string, v profile.Value) bool {
		return len(c.Filter([]profile.Attribute{{Key: key, Value: v}})) == 1
	}
	require.True(t, take("x", profile.String("1")))
	require.True(t, take("x", profile.Int(1)), "another type is another value")
	require.False(t, take("x", profile.Int(2)))
	require.True(t, take("x", profile.String("1")), "one that is known")
	require.True(t, take("y", profile.Int(2)), "another attribute")
	for i := range int64(10) {
		require.True(t, take("k8s.pod.name", profile.Int(i)), "identity")
		require.True(t, take("k8s_pod_name", profile.Int(i)), "identity, as a receiver of labels writes it")
		require.True(t, take("container_id", profile.Int(i)))
	}
	require.Equal(t, uint64(1), c.Dropped())
	c.Reset()
	require.True(t, take("x", profile.Int(2)), "all forgotten")

	unlimited := NewValueCap(0)
	for i := range int64(10) {
		require.Len(t, unlimited.Filter([]profile.Attribute{{Key: "x", Value: profile.Int(i)}}), 1)
	}
	attrs := []profile.Attribute{{Key: "x", Value: profile.Int(3)}, {Key: "x", Value: profile.Int(4)}, {Key: "z", Value: profile.Int(4)}}
	require.Len(t, c.Filter(attrs), 2)
}
