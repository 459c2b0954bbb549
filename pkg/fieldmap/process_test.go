package fieldmap

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/hostproc"
)

func endpointMembers(name string, first int) []*member {
	return []*member{
		{name: name, kind: api.Kind_Bytes, size: 28, tags: []string{"type:gadget_l4endpoint_t"}, parent: -1},
		{name: "addr_raw", kind: api.Kind_Bytes, size: 16, tags: []string{"type:gadget_ip_addr_t"}, parent: first},
		{name: "v6", kind: api.ArrayOf(api.Kind_Uint8), size: 16, tags: []string{"type:__u8"}, parent: first + 1},
		{name: "v4", kind: api.Kind_Uint32, size: 4, tags: []string{"type:__u32"}, parent: first + 1},
		{name: "port", kind: api.Kind_Uint16, size: 2, tags: []string{"type:__u16"}, parent: first},
		{name: "proto_raw", kind: api.Kind_Uint16, size: 2, tags: []string{"type:__u16"}, parent: first},
		{name: "version", kind: api.Kind_Uint8, size: 1, tags: []string{"type:__u8"}, parent: first},
	}
}

// tcpDrop is IG's gadget trace_tcpdrop, whose rows hold the process at their top level.
func tcpDrop(t testing.TB) *source {
	t.Helper()
	members := []*member{ //nolint:prealloc // the rest has a function of its own
		{name: "timestamp_raw", kind: api.Kind_Uint64, size: 8, tags: []string{"type:gadget_timestamp", "type:__u64"}, parent: -1},
		{name: "netns_id", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_netns_id", "type:__u32"}, parent: -1},
	}
	members = append(members, endpointMembers("src", len(members))...)
	members = append(members, endpointMembers("dst", len(members))...)
	members = append(members,
		&member{name: "mount_ns_id", kind: api.Kind_Uint64, size: 8, tags: []string{"type:gadget_mntns_id", "type:__u64"}, parent: -1},
		&member{name: "comm", kind: api.Kind_CString, size: 16, tags: []string{"type:gadget_comm", "type:char"}, parent: -1},
		&member{name: "pid", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_pid", "type:__u32"}, parent: -1},
		&member{name: "tid", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_tid", "type:__u32"}, parent: -1},
		&member{name: "uid", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_uid", "type:__u32"}, parent: -1},
		&member{name: "gid", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_gid", "type:__u32"}, parent: -1},
		&member{name: "state_raw", kind: api.Kind_Uint32, size: 4, tags: []string{"type:tcp_state"}, parent: -1},
		&member{name: "tcpflags_raw", kind: api.Kind_Uint8, size: 1, tags: []string{"type:tcp_flags_set"}, parent: -1},
		&member{name: "reason_raw", kind: api.Kind_Uint32, size: 4, tags: []string{"type:skb_drop_reason"}, parent: -1},
		&member{name: "kernel_stack_raw", kind: api.Kind_Uint32, size: 4, tags: []string{kernelStackTag, "type:__u32"}, parent: -1},
	)
	return newSource(t, "tcpdrop", "", members...).enrich().text("kernel_stack", "state", "tcpflags", "reason", "user", "group")
}

func dropRow(pid uint32) map[string]any {
	return map[string]any{
		"comm": "curl", "pid": pid, "tid": pid + 1, "uid": uint32(1000), "kernel_stack_raw": uint32(17),
		"kernel_stack": "kfree_skb_reason; ip_finish_output; tcp_connect; ", "runtime.runtimeName": "", "reason": "SKB_DROP_REASON_NETFILTER_DROP",
	}
}

// TestProcessAtTheTopLevel checks that IG's process fields mean the same with and without the struct around them.
func TestProcessAtTheTopLevel(t *testing.T) {
	settings := func(values ...string) Options {
		o := testOptions()
		for i := 0; i < len(values); i += 2 {
			o.Exporter.Attributes = append(o.Exporter.Attributes, config.KeyValue{Key: values[i], Value: values[i+1]})
		}
		return o
	}
	all := settings("process.pid", "sample", "thread.id", "sample", "process.user.id", "sample")
	compat := testOptions()
	compat.Exporter.CompatNames = true
	for _, tc := range []struct {
		name string
		o    Options
		edit func(s *source)
		want map[string]any
	}{
		{name: "by default", o: testOptions(), want: map[string]any{"thread.name": "curl"}},
		{name: "asked for", o: all, want: map[string]any{"thread.name": "curl", "process.pid": int64(4711), "thread.id": int64(4712), "process.user.id": int64(1000)}},
		{name: "by the field's name", o: settings("pid", "sample"), want: map[string]any{"thread.name": "curl", "pid": int64(4711)}},
		{name: "by the name in other rows", o: settings("proc.pid", "sample", "proc.comm", "drop"), want: map[string]any{"proc.pid": int64(4711)}},
		{name: "dropped", o: settings("thread.name", "drop"), want: map[string]any{}},
		{name: "left out by the image", o: testOptions(), edit: func(s *source) { s.annotate("comm", annSampleAttribute, "false") }, want: map[string]any{}},
		{name: "compat_names", o: compat, want: map[string]any{"comm": "curl"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tcpDrop(t)
			if tc.edit != nil {
				tc.edit(s)
			}
			require.Equal(t, tc.want, sample(t, compile(t, s, tc.o), s.row(dropRow(4711))))
		})
	}

	t.Run("resource", func(t *testing.T) {
		s := tcpDrop(t)
		p := compile(t, s, settings("process.pid", "resource"))
		a, b := s.row(dropRow(4711)), s.row(dropRow(4713))
		require.Equal(t, int64(4711), resource(t, p, a)["process.pid"])
		keyA, _ := p.Keys(a)
		keyB, _ := p.Keys(b)
		require.NotEqual(t, keyA, keyB)
	})

	stack := func() []*member {
		return []*member{{name: "kernel_stack_raw", kind: api.Kind_Uint32, size: 4, tags: []string{kernelStackTag}, parent: -1}}
	}
	comm := func(name, tag string, parent int) *member {
		return &member{name: name, kind: api.Kind_CString, size: 16, tags: []string{tag}, parent: parent}
	}
	number := func(name, tag string) *member {
		return &member{name: name, kind: api.Kind_Uint32, size: 4, tags: []string{tag}, parent: -1}
	}
	for _, tc := range []struct {
		name    string
		members []*member
		row     map[string]any
		want    map[string]any
	}{
		{
			// as trace_fsslower has its tid
			"beside the struct", append(append(stack(), processMembers(1)...), comm("comm", "type:gadget_comm", -1), number("pid", "type:gadget_pid"), number("tid", "type:gadget_tid")),
			map[string]any{"comm": "other", "pid": uint32(1), "tid": uint32(2), "proc.comm": "curl", "proc.pid": uint32(4711), "proc.tid": uint32(4712), "proc.creds.uid": uint32(3)},
			map[string]any{"thread.name": "curl", "process.pid": int64(4711), "thread.id": int64(4712), "process.user.id": int64(3)},
		},
		{
			// as trace_oomkill
			"of another process", append(stack(), number("tpid", "type:gadget_pid"), comm("tcomm", "type:gadget_comm", -1)),
			map[string]any{"tcomm": "victim", "tpid": uint32(4711)}, map[string]any{},
		},
		{
			"beside a struct of another name", append(stack(),
				&member{name: "killer", kind: api.Kind_Bytes, size: 16, tags: []string{"type:gadget_process"}, parent: -1}, comm("comm", "type:gadget_comm", 1),
				number("pid", "type:gadget_pid"), comm("comm", "type:gadget_comm", -1)),
			map[string]any{"comm": "victim", "pid": uint32(4711)}, map[string]any{},
		},
		{
			"of another type", append(stack(), comm("comm", "type:char", -1), number("pid", "type:__u32")),
			map[string]any{"comm": "file", "pid": uint32(4711)}, map[string]any{},
		},
		{
			"in another struct", append(stack(),
				&member{name: "peer", kind: api.Kind_Bytes, size: 16, tags: []string{"type:peer"}, parent: -1}, comm("comm", "type:gadget_comm", 1)),
			map[string]any{"peer.comm": "server"}, map[string]any{},
		},
		{
			"one letter", append(stack(), &member{name: "comm", kind: api.Kind_Int8, size: 1, tags: []string{"type:gadget_comm"}, parent: -1}),
			map[string]any{"comm": int8('c')}, map[string]any{},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSource(t, "events", "", tc.members...).text("kernel_stack")
			tc.row["kernel_stack"] = "kfree_skb_reason; tcp_connect; "
			require.Equal(t, tc.want, sample(t, compile(t, s, all), s.row(tc.row)))
		})
	}
}

// TestHostServiceOfTheTopLevel checks that a process at a row's top level gets its own service, like one in the struct.
func TestHostServiceOfTheTopLevel(t *testing.T) {
	root := t.TempDir()
	for pid, p := range map[uint32][2]string{
		4711: {"/usr/sbin/nginx", "0::/system.slice/nginx.service"}, 4712: {"/usr/bin/curl", "0::/user.slice/session-1.scope"},
	} {
		dir := filepath.Join(root, "proc", fmt.Sprint(pid))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.Symlink(p[0], filepath.Join(dir, "exe")))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte(p[1]), 0o600))
	}
	o := testOptions()
	o.Hosts = hostproc.New(root)
	s := tcpDrop(t)
	p := compile(t, s, o)
	rows := []datasource.Data{s.row(dropRow(4711)), s.row(dropRow(4712)), s.row(dropRow(0))}
	for i, want := range []string{"nginx", "curl", "host"} {
		require.Equal(t, want, resource(t, p, rows[i])["service.name"])
	}
	require.Equal(t, "/usr/sbin/nginx", resource(t, p, rows[0])["process.executable.path"])
	unit, _ := p.Keys(rows[0])
	other, _ := p.Keys(rows[1])
	require.NotEqual(t, unit, other)

	contained := dropRow(4711)
	contained["runtime.containerName"] = "web"
	require.Equal(t, "web", resource(t, p, s.row(contained))["service.name"])
}

// TestUserOfThisProjectsRows checks both names of the user's ID: proc.uid in struct profiles_process, and proc.creds.uid in
// IG's struct.
func TestUserOfThisProjectsRows(t *testing.T) {
	s := newSource(t, "samples", "",
		&member{name: "kernel_stack_raw", kind: api.Kind_Uint32, size: 4, tags: []string{kernelStackTag, "type:__u32"}, parent: -1},
		&member{name: "proc", kind: api.Kind_Bytes, size: 24, tags: []string{processTag}, parent: -1},
		&member{name: "comm", kind: api.Kind_CString, size: 16, tags: []string{"type:gadget_comm", "type:char"}, parent: 1},
		&member{name: "pid", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_pid", "type:__u32"}, parent: 1},
		&member{name: "uid", kind: api.Kind_Uint32, size: 4, tags: []string{"type:gadget_uid", "type:__u32"}, parent: 1},
	).text("kernel_stack")
	o := testOptions()
	o.Exporter.Attributes = []config.KeyValue{{Key: "process.user.id", Value: "sample"}}
	row := s.row(map[string]any{"proc.comm": "cart", "proc.uid": uint32(1000), "kernel_stack": "do_syscall_64; "})
	require.Equal(t, map[string]any{"thread.name": "cart", "process.user.id": int64(1000)}, sample(t, compile(t, s, o), row))
}
