package fieldmap

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource/compat"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// member is a member of an eBPF program's event struct, as IG's eBPF operator describes it.
type member struct {
	name   string
	kind   api.Kind
	size   uint32
	tags   []string
	parent int // index within the struct, -1 for none
	offset uint32
}

func (m *member) FieldName() string   { return m.name }
func (m *member) FieldSize() uint32   { return m.size }
func (m *member) FieldOffset() uint32 { return m.offset }
func (m *member) FieldType() api.Kind { return m.kind }
func (m *member) FieldTags() []string { return m.tags }
func (m *member) FieldParent() int    { return m.parent }

// layout places members one after another. A struct spans its members, which follow it.
func layout(members []*member) (uint32, []datasource.StaticField) {
	var end uint32
	fields := make([]datasource.StaticField, len(members))
	for i, m := range members {
		m.tags = append(m.tags, "name:"+m.name)
		m.offset = end
		if m.kind != api.Kind_Bytes || len(m.tags) < 2 { // a struct's members occupy its space
			end += m.size
		}
		fields[i] = m
	}
	return end, fields
}

// source is a data source under test.
type source struct {
	datasource.DataSource
	t         testing.TB
	container datasource.FieldAccessor
	size      uint32
}

// newSource creates a data source as IG does, from the event's members and the gadget's metadata (the YAML of one data
// source).
func newSource(t testing.TB, name, metadata string, members ...*member) *source {
	t.Helper()
	v := viper.New()
	v.SetConfigType("yaml")
	require.NoError(t, v.ReadConfig(strings.NewReader(metadata)))
	ds, err := datasource.New(datasource.TypeArray, name, datasource.WithConfig(v))
	require.NoError(t, err)
	s := &source{DataSource: ds, t: t}
	if len(members) > 0 {
		size, fields := layout(members)
		s.container, err = ds.AddStaticFields(size, fields)
		require.NoError(t, err)
		s.size = size
	}
	return s
}

// processMembers returns the members of struct gadget_process. first is the index of the struct itself.
func processMembers(first int) []*member {
	return []*member{
		{name: "proc", kind: api.Kind_Bytes, size: 64, tags: []string{"type:gadget_process"}, parent: -1},
		{name: "comm", kind: api.Kind_CString, size: 16, tags: []string{"type:gadget_comm"}, parent: first},
		{name: "pid", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_pid"}, parent: first},
		{name: "tid", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_tid"}, parent: first},
		{name: "mntns_id", kind: api.Kind_Uint64, size: 8, tags: []string{"type:gadget_mntns_id"}, parent: first},
		{name: "creds", kind: api.Kind_Bytes, size: 8, tags: []string{"type:gadget_creds"}, parent: first},
		{name: "uid", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_uid"}, parent: first + 5},
		{name: "gid", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_gid"}, parent: first + 5},
		{name: "parent", kind: api.Kind_Bytes, size: 24, tags: []string{"type:gadget_parent"}, parent: first},
		{name: "comm", kind: api.Kind_CString, size: 16, tags: []string{"type:gadget_pcomm"}, parent: first + 8},
		{name: "pid", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_ppid"}, parent: first + 8},
		{name: "tid", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_ptid"}, parent: first + 8},
	}
}

func userStackMembers(name string, first int) []*member {
	return []*member{
		{name: name, kind: api.Kind_Bytes, size: 28, tags: []string{userStackTag}, parent: -1},
		{name: "inode", kind: api.Kind_Uint64, size: 8, parent: first},
		{name: "boot_timestamp", kind: api.Kind_Uint64, size: 8, parent: first},
		{name: "stack_id", kind: api.Kind_Uint32, size: 4, parent: first},
		{name: "tgid_level0", kind: api.Kind_Uint32, size: 4, parent: first},
		{name: "base_addr_hash", kind: api.Kind_Uint32, size: 4, parent: first},
	}
}

// enrich adds the fields of IG's container enrichment by calling IG's own code.
func (s *source) enrich() *source {
	s.t.Helper()
	_, err := compat.WrapAccessors(s.DataSource, nil, nil)
	require.NoError(s.t, err)
	return s
}

func (s *source) sub(parent datasource.FieldAccessor, names ...string) {
	s.t.Helper()
	for _, name := range names {
		_, err := parent.AddSubField(name, api.Kind_String)
		require.NoError(s.t, err)
	}
}

// formatUserStack adds the fields of IG's ustack operator.
func (s *source) formatUserStack(name string) *source {
	s.t.Helper()
	s.sub(s.GetField(name), "addresses", "buildid", "symbols")
	return s
}

func (s *source) text(names ...string) *source {
	s.t.Helper()
	for _, name := range names {
		_, err := s.AddField(name, api.Kind_String)
		require.NoError(s.t, err)
	}
	return s
}

func (s *source) annotate(field, annotation, value string) *source {
	s.t.Helper()
	acc := s.GetField(field)
	require.NotNil(s.t, acc, field)
	acc.AddAnnotation(annotation, value)
	return s
}

// row creates a row. The field's type decides how a value is written: as text, bytes or a number.
func (s *source) row(values map[string]any) datasource.Data {
	s.t.Helper()
	array, err := s.NewPacketArray()
	require.NoError(s.t, err)
	d := array.New()
	if s.container != nil {
		require.NoError(s.t, s.container.Set(d, make([]byte, s.size)))
	}
	for name, value := range values {
		acc := s.GetField(name)
		require.NotNil(s.t, acc, name)
		require.NoError(s.t, acc.Set(d, encode(acc, s.ByteOrder(), value)), name)
	}
	return d
}

func encode(acc datasource.FieldAccessor, order binary.ByteOrder, value any) []byte {
	switch v := value.(type) {
	case string:
		return []byte(v)
	case []byte:
		return v
	}
	b, err := binary.Append(nil, order, value)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", acc.FullName(), err))
	}
	return b
}

// profileCPUMetadata and profileCPU describe IG's gadget profile_cpu: its data source's metadata, and the fields that IG's
// eBPF, ustack and enrichment operators add.
const profileCPUMetadata = `
annotations:
  profiles.stack-fields: kern_stack,user_stack_raw.symbols
  profiles.value-field: samples
  profiles.name: process_cpu
  profiles.type: samples
  profiles.unit: count
fields:
  runtime.containerName:
    annotations:
      profiles.sample-attribute: "true"
  proc.comm:
    annotations:
      profiles.sample-attribute: "true"
`

func profileCPU(t testing.TB, metadata string) *source {
	t.Helper()
	members := []*member{ //nolint:prealloc // the rest has a function of its own
		{name: "kernel_ip", kind: api.Kind_Uint64, size: 8, parent: -1},
		{name: "kern_stack_raw", kind: api.Kind_Uint32, size: 4, tags: []string{kernelStackTag}, parent: -1},
	}
	members = append(members, processMembers(len(members))...)
	members = append(members, &member{name: "samples", kind: api.Kind_Uint64, size: 8, parent: -1})
	members = append(members, userStackMembers("user_stack_raw", len(members))...)
	return newSource(t, "samples", metadata, members...).enrich().formatUserStack("user_stack_raw").text("kern_stack")
}

// podRow returns a row of profileCPU from a container in a pod.
func podRow() map[string]any {
	return map[string]any{
		"k8s.node":                     "node-1",
		"k8s.namespace":                "shop",
		"k8s.podName":                  "cart-7d4b9c-x2x4z",
		"k8s.containerName":            "server",
		"k8s.owner.kind":               "Deployment",
		"k8s.owner.name":               "cart",
		"k8s.podLabels":                "tier=web,app=cart,pod-template-hash=7d4b9c",
		"runtime.containerName":        "k8s_server_cart",
		"runtime.containerId":          strings.Repeat("0123456789abcdef", 4),
		"runtime.containerImageName":   "registry.example:5000/shop/cart:1.4.2",
		"runtime.containerImageDigest": "sha256:" + strings.Repeat("ab", 32),
		"runtime.runtimeName":          "containerd",
		"proc.comm":                    "cart-server",
		"proc.pid":                     uint32(4711),
		"proc.tid":                     uint32(4712),
		"proc.creds.uid":               uint32(1000),
		"proc.parent.pid":              uint32(1),
		"samples":                      uint64(3),
		"kern_stack_raw":               uint32(17),
		"kern_stack":                   "do_syscall_64; entry_SYSCALL_64_after_hwframe; ",
		"user_stack_raw.inode":         uint64(99),
		"user_stack_raw.stack_id":      uint32(18),
		"user_stack_raw.symbols":       "main.work; main.main; ",
		"user_stack_raw.addresses":     "0x0000000000401000; 0x0000000000402000; ",
	}
}

var testHost = Host{Name: "machine", Arch: "amd64", OS: "linux"}

func testOptions() Options {
	return Options{
		Gadget:        GadgetInfo{ImageName: "ghcr.io/inspektor-gadget/gadget/profile_cpu:v0.55.0", Config: gadgetConfig("49")},
		Exporter:      config.Exporter{HostServiceName: "host", ServiceFromLabels: true},
		Host:          testHost,
		KernelSymbols: &stack.KernelSymbols{},
	}
}

func gadgetConfig(hz string) *viper.Viper {
	v := viper.New()
	v.SetConfigType("yaml")
	metadata := "programs: {profiler: {perf: {type: software}, sampler: {frequency: " + hz + "}}}"
	if err := v.ReadConfig(strings.NewReader(metadata)); err != nil {
		panic(err)
	}
	return v
}

func compile(t testing.TB, s *source, o Options) *Plan {
	t.Helper()
	p, err := Compile(s, o)
	require.NoError(t, err)
	return p
}

// recorder returns a logger and a function that returns its warnings.
func recorder() (logger.Logger, func() []string) {
	var lines warnings
	return logger.NewFromGenericLogger(&lines), func() []string { return lines }
}

// recorded returns options with a recorder's logger, and a function that returns its warnings.
func recorded() (Options, func() []string) {
	o := testOptions()
	var warned func() []string
	o.Logger, warned = recorder()
	return o, warned
}

type warnings []string

func (w *warnings) Log(level logger.Level, params ...any) {
	if level <= logger.WarnLevel {
		*w = append(*w, fmt.Sprint(params...))
	}
}

func (w *warnings) Logf(level logger.Level, format string, params ...any) {
	w.Log(level, fmt.Sprintf(format, params...))
}

func (w *warnings) SetLevel(logger.Level)  {}
func (w *warnings) GetLevel() logger.Level { return logger.WarnLevel }

// attributes returns a list of attributes as a map, and checks that no key occurs twice.
func attributes(t testing.TB, attrs []profile.Attribute) map[string]any {
	t.Helper()
	m := make(map[string]any, len(attrs))
	for _, a := range attrs {
		require.NotContains(t, m, a.Key, "twice in one list")
		switch a.Value.Kind() {
		case profile.KindString:
			m[a.Key] = a.Value.AsString()
		case profile.KindBytes:
			m[a.Key] = []byte(a.Value.AsString())
		case profile.KindInt:
			m[a.Key] = a.Value.AsInt()
		case profile.KindBool:
			m[a.Key] = a.Value.AsInt() != 0
		case profile.KindDouble:
			m[a.Key] = a.Value.AsDouble()
		case profile.KindTexts:
			m[a.Key] = []string{a.Value.AsString()}
		}
	}
	return m
}

func resource(t testing.TB, p *Plan, d datasource.Data) map[string]any {
	t.Helper()
	return attributes(t, p.Resource(d).Attributes)
}

func sample(t testing.TB, p *Plan, d datasource.Data) map[string]any {
	t.Helper()
	s := p.Sample(d)
	return attributes(t, s.Attributes)
}

func frameNames(s profile.Sample) []string {
	var names []string //nolint:prealloc // nil where there are none
	for _, f := range s.Stack {
		names = append(names, f.Name)
	}
	return names
}
