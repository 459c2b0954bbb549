package fieldmap

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/hostproc"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/proccontext"
)

// contexts holds the contexts that processes publish in a test, by PID. It records the watched processes.
type contexts struct {
	said    map[uint32]*proccontext.Context
	watched map[uint32]string
}

func (c *contexts) Lookup(p proccontext.Process) (*proccontext.Context, bool) {
	_, watched := c.watched[p.PID]
	if !watched {
		return nil, false
	}
	return c.said[p.PID], true
}

func (c *contexts) Watch(p proccontext.Process, owner string) { c.watched[p.PID] = owner }

// TestContext checks that a process's context ranks below the settings and its pod's labels, and above derived values.
func TestContext(t *testing.T) {
	const pid = 4711
	said := &proccontext.Context{Service: "checkout", Namespace: "web", Instance: "i-1", Version: "7", Environment: "prod", Key: 42}
	root := t.TempDir()
	dir := filepath.Join(root, "proc", fmt.Sprint(pid))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.Symlink("/usr/sbin/nginx", filepath.Join(dir, "exe")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::/system.slice/nginx.service"), 0o600))

	all := map[string]any{
		"service.name": "checkout", "service.namespace": "web", "service.instance.id": "i-1", "service.version": "7",
		"deployment.environment.name": "prod",
	}
	plus := func(more map[string]any) map[string]any {
		m := maps.Clone(all)
		maps.Copy(m, more)
		return m
	}
	without := map[string]any{
		"service.name": "cart", "service.namespace": "shop", "service.instance.id": "shop.cart-7d4b9c-x2x4z.server", "service.version": "1.4.2",
		"deployment.environment.name": nil,
	}
	onHost := map[string]any{"service.name": "nginx", "service.instance.id": nil, "deployment.environment.name": nil, "process.executable.name": "nginx"}
	labels := with(map[string]any{"k8s.podLabels": "app.kubernetes.io/name=n,app.kubernetes.io/version=9"})
	for _, tc := range []struct {
		name     string
		row      map[string]any
		said     *proccontext.Context // nil means said
		settings func(e *config.Exporter, o *Options)
		want     map[string]any
		owner    string // "" means that nobody watches the process
	}{
		{name: "host", row: hostRow(), want: plus(map[string]any{"process.executable.name": "nginx", "host.name": "machine"}), owner: "host/nginx"},
		{
			name: "host, nothing of the name", row: hostRow(), said: &proccontext.Context{Version: "7", Key: 2},
			want: map[string]any{"service.name": "nginx", "service.version": "7"}, owner: "host/nginx",
		},
		{
			name: "hosts only, on the host", row: hostRow(), settings: func(e *config.Exporter, _ *Options) { e.ProcessContext = config.ContextHosts },
			want: all, owner: "host/nginx",
		},
		{name: "host_services: 0", row: hostRow(), settings: func(_ *config.Exporter, o *Options) { o.Hosts = nil }, want: map[string]any{"service.name": "host", "service.version": nil}},
		{
			name: "none", row: hostRow(), settings: func(_ *config.Exporter, o *Options) { o.Contexts = nil },
			want: onHost,
		},
		{
			name: "pod", row: podRow(), owner: "container/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
			want: plus(map[string]any{
				"k8s.namespace.name": "shop", "k8s.pod.name": "cart-7d4b9c-x2x4z", "k8s.deployment.name": "cart", "k8s.container.name": "server",
				"container.name": "k8s_server_cart", "host.name": "node-1", "k8s.node.name": "node-1", "process.executable.name": nil,
			}),
		},
		{
			name: "pod, the labels go first", row: labels, owner: "container/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
			want: plus(map[string]any{"service.name": "n", "service.version": "9"}),
		},
		{
			name: "pod, labels that do not count", row: labels, owner: "container/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
			settings: func(e *config.Exporter, _ *Options) { e.ServiceFromLabels = false }, want: all,
		},
		{name: "pod without the container's ID", row: with(map[string]any{"runtime.containerId": nil}), want: all, owner: "pod/shop/cart-7d4b9c-x2x4z/server/k8s_server_cart"},
		{name: "pod, hosts only", row: podRow(), settings: func(e *config.Exporter, _ *Options) { e.ProcessContext = config.ContextHosts }, want: without},
		{name: "pod, service_name", row: podRow(), settings: func(e *config.Exporter, _ *Options) { e.ServiceName = "all" }, want: map[string]any{"service.name": "all", "service.version": "1.4.2"}},
		{
			name: "resource of the settings", row: podRow(), owner: "container/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
			settings: func(e *config.Exporter, _ *Options) {
				e.Resource = []config.KeyValue{{Key: "deployment.environment.name", Value: "test"}, {Key: "service.namespace", Value: "team"}}
			},
			want: plus(map[string]any{"deployment.environment.name": "test", "service.namespace": "team"}),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &contexts{said: map[uint32]*proccontext.Context{pid: said}, watched: map[uint32]string{}}
			if tc.said != nil {
				c.said[pid] = tc.said
			}
			o := testOptions()
			o.Exporter.ProcessContext, o.Exporter.HostServices = config.ContextAll, 50
			o.Hosts, o.Contexts = hostproc.New(root), c
			if tc.settings != nil {
				tc.settings(&o.Exporter, &o)
			}
			s := profileCPU(t, profileCPUMetadata)
			p := compile(t, s, o)
			row := s.row(tc.row)
			before, _ := p.Keys(row)
			got := resource(t, p, row)
			require.Equal(t, tc.owner, c.watched[pid])
			for key, want := range tc.want {
				require.Equal(t, want, got[key], key)
			}
			after, _ := p.Keys(row)
			require.Equal(t, tc.owner != "", before != after, "what a process says makes its resource distinct")
			require.Zero(t, testing.AllocsPerRun(10, func() { p.Keys(row) }))
			c.said[pid] = nil // it has not published its context yet
			again, _ := p.Keys(row)
			require.Equal(t, before, again)
		})
	}
}

// TestContextGroups checks that the number of services outside containers is limited, counted by final name. The other services
// become the host, without any context.
func TestContextGroups(t *testing.T) {
	root := t.TempDir()
	for pid, exe := range map[uint32]string{1: "/usr/bin/python3", 2: "/usr/bin/ruby", 3: "/usr/bin/perl"} {
		dir := filepath.Join(root, "proc", fmt.Sprint(pid))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.Symlink(exe, filepath.Join(dir, "exe")))
	}
	shop := func(instance string, key uint64) *proccontext.Context {
		return &proccontext.Context{Service: "shop", Instance: instance, Key: key}
	}
	c := &contexts{said: map[uint32]*proccontext.Context{1: shop("a", 1), 2: shop("b", 2), 3: {Environment: "prod", Key: 3}}, watched: map[uint32]string{1: "", 2: "", 3: ""}}
	o := testOptions()
	o.Exporter.ProcessContext = config.ContextAll
	o.Hosts, o.Contexts = hostproc.New(root), c
	s := profileCPU(t, profileCPUMetadata)
	p := compile(t, s, o)
	row := func(pid uint32) map[string]any {
		r := hostRow()
		r["proc.pid"] = pid
		return r
	}
	first, second, other := p.Resource(s.row(row(1))), p.Resource(s.row(row(2))), p.Resource(s.row(row(3)))
	require.Equal(t, first.Group, second.Group)
	require.NotEqual(t, first.Group, other.Group)
	require.NotZero(t, other.Group, "a context without a service leaves that of the executable")
	for _, a := range first.Rest {
		require.NotEqual(t, "service.instance.id", a.Key)
		if a.Key == "service.name" {
			require.Equal(t, "host", a.Value.AsString())
		}
	}

	// An exporter with other settings has its own keys.
	o2 := o
	o2.First, o2.Exporter.ProcessContext = p, config.ContextHosts
	require.False(t, compile(t, s, o2).SameKeys(p))
	o2.Exporter.ProcessContext = config.ContextAll
	require.True(t, compile(t, s, o2).SameKeys(p))
}
