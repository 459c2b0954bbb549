package fieldmap

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// with returns podRow with changed fields. nil removes a field.
func with(changes map[string]any) map[string]any {
	row := podRow()
	maps.Copy(row, changes)
	maps.DeleteFunc(row, func(_ string, v any) bool { return v == nil })
	return row
}

// hostRow returns a row from outside containers.
func hostRow() map[string]any {
	row := podRow()
	maps.DeleteFunc(row, func(name string, _ any) bool {
		return strings.HasPrefix(name, "k8s.") || strings.HasPrefix(name, "runtime.")
	})
	return row
}

// TestResourceMapping checks the attributes of each field of a resource. nil in want means that the attribute must not exist.
func TestResourceMapping(t *testing.T) {
	for _, tc := range []struct {
		name     string
		row      map[string]any
		settings func(o *Options)
		want     map[string]any
	}{
		{name: "k8s.namespace", want: map[string]any{"k8s.namespace.name": "shop", "service.namespace": "shop"}},
		{name: "k8s.podName", want: map[string]any{"k8s.pod.name": "cart-7d4b9c-x2x4z"}},
		{name: "k8s.containerName", want: map[string]any{"k8s.container.name": "server"}},
		{name: "k8s.node", want: map[string]any{"k8s.node.name": "node-1", "host.name": "node-1"}},
		{name: "k8s.owner Deployment", want: map[string]any{"k8s.deployment.name": "cart"}},
		{name: "k8s.owner StatefulSet", row: with(map[string]any{"k8s.owner.kind": "StatefulSet"}), want: map[string]any{"k8s.statefulset.name": "cart", "service.name": "cart"}},
		{name: "k8s.owner DaemonSet", row: with(map[string]any{"k8s.owner.kind": "DaemonSet"}), want: map[string]any{"k8s.daemonset.name": "cart", "service.name": "cart"}},
		{name: "k8s.owner ReplicaSet", row: with(map[string]any{"k8s.owner.kind": "ReplicaSet"}), want: map[string]any{"k8s.replicaset.name": "cart", "service.name": "cart"}},
		{name: "k8s.owner Job", row: with(map[string]any{"k8s.owner.kind": "Job"}), want: map[string]any{"k8s.job.name": "cart", "service.name": "cart"}},
		{name: "k8s.owner CronJob", row: with(map[string]any{"k8s.owner.kind": "CronJob"}), want: map[string]any{"k8s.cronjob.name": "cart", "service.name": "cart"}},
		{
			name: "k8s.owner of another kind", row: with(map[string]any{"k8s.owner.kind": "Node", "k8s.owner.name": "node-1"}),
			want: map[string]any{"k8s.deployment.name": nil, "k8s.node.name": "node-1", "service.name": "cart-7d4b9c-x2x4z"},
		},
		{name: "k8s.podLabels not listed", want: map[string]any{"k8s.pod.label.app": nil, "k8s.pod.label.tier": nil}},
		{
			name: "k8s.podLabels listed", settings: func(o *Options) { o.Exporter.PodLabels = []string{"tier", "app", "absent"} },
			want: map[string]any{"k8s.pod.label.app": "cart", "k8s.pod.label.tier": "web", "k8s.pod.label.absent": nil, "k8s.pod.label.pod-template-hash": nil},
		},
		{name: "runtime.containerName", want: map[string]any{"container.name": "k8s_server_cart"}},
		{name: "runtime.containerId", want: map[string]any{"container.id": strings.Repeat("0123456789abcdef", 4)}},
		{name: "runtime.containerImageName", want: map[string]any{"container.image.name": "registry.example:5000/shop/cart", "container.image.tags": []string{"1.4.2"}, "service.version": "1.4.2"}},
		{
			name: "runtime.containerImageName with a digest", row: with(map[string]any{"runtime.containerImageName": "shop/cart:1@sha256:abc"}),
			want: map[string]any{"container.image.name": "shop/cart", "container.image.tags": []string{"1"}, "service.version": "1@sha256:abc"},
		},
		{
			name: "runtime.containerImageName that is an ID", row: with(map[string]any{"runtime.containerImageName": "sha256:" + strings.Repeat("c", 64)}),
			want: map[string]any{"container.image.name": nil, "container.image.tags": nil, "container.image.id": "sha256:" + strings.Repeat("c", 64), "service.version": nil},
		},
		{name: "runtime.runtimeName", want: map[string]any{"container.runtime.name": "containerd"}},
		{name: "runtime.runtimeName unknown", row: with(map[string]any{"runtime.runtimeName": "unknown"}), want: map[string]any{"container.runtime.name": nil}},
		{name: "runtime.containerImageDigest", want: map[string]any{"container.image.repo_digests": nil}},
		{
			name: "runtime.containerImageDigest asked for", settings: func(o *Options) { o.Exporter.ImageDigest = true },
			want: map[string]any{"container.image.repo_digests": []string{"registry.example:5000/shop/cart@sha256:" + strings.Repeat("ab", 32)}},
		},
		{
			name: "runtime.containerImageDigest with its name", row: with(map[string]any{"runtime.containerImageDigest": "a/b@sha256:12"}), settings: func(o *Options) { o.Exporter.ImageDigest = true },
			want: map[string]any{"container.image.repo_digests": []string{"a/b@sha256:12"}},
		},
		{name: "the machine", row: hostRow(), want: map[string]any{"host.name": "machine", "host.arch": "amd64", "os.type": "linux", "k8s.node.name": nil}},
		{
			name: "the machine in a cluster", row: hostRow(), settings: func(o *Options) { o.Host.NodeName = "node-2" },
			want: map[string]any{"host.name": "node-2", "k8s.node.name": "node-2", "service.name": "host"},
		},

		{name: "service.name of the settings", settings: func(o *Options) { o.Exporter.ServiceName = "all" }, want: map[string]any{"service.name": "all"}},
		{name: "service.name of the settings on the host", row: hostRow(), settings: func(o *Options) { o.Exporter.ServiceName = "all" }, want: map[string]any{"service.name": "all"}},
		{name: "service.name of the instance label", row: with(map[string]any{"k8s.podLabels": "app.kubernetes.io/name=n,app.kubernetes.io/instance=i"}), want: map[string]any{"service.name": "i"}},
		{name: "service.name of the name label", row: with(map[string]any{"k8s.podLabels": "x=y,app.kubernetes.io/name=n"}), want: map[string]any{"service.name": "n"}},
		{
			name: "service.name without labels", row: with(map[string]any{"k8s.podLabels": "app.kubernetes.io/name=n,app.kubernetes.io/version=9"}), settings: func(o *Options) { o.Exporter.ServiceFromLabels = false },
			want: map[string]any{"service.name": "cart", "service.version": "1.4.2"},
		},
		{name: "service.name of the owner", want: map[string]any{"service.name": "cart"}},
		{name: "service.name of the pod", row: with(map[string]any{"k8s.owner.name": nil}), want: map[string]any{"service.name": "cart-7d4b9c-x2x4z", "k8s.deployment.name": nil}},
		{name: "service.name of the container", row: with(map[string]any{"k8s.owner.name": nil, "k8s.podName": nil}), want: map[string]any{"service.name": "server", "service.instance.id": nil}},
		{name: "service.name of a container without Kubernetes", row: map[string]any{"runtime.containerName": "redis"}, want: map[string]any{"service.name": "redis", "service.namespace": nil, "container.name": "redis"}},
		{name: "service.name of a container without a name", row: map[string]any{"runtime.containerId": "0123456789abcdef"}, want: map[string]any{"service.name": "0123456789ab"}},
		{name: "service.name of a namespace alone", row: map[string]any{"k8s.namespace": "shop"}, want: map[string]any{"service.name": "shop"}},
		{name: "service.name of the host", row: hostRow(), want: map[string]any{"service.name": "host", "service.version": nil, "service.namespace": nil, "service.instance.id": nil}},
		{name: "service.name of the host in the settings", row: hostRow(), settings: func(o *Options) { o.Exporter.HostServiceName = "nodes" }, want: map[string]any{"service.name": "nodes"}},
		{name: "service.version of the label", row: with(map[string]any{"k8s.podLabels": "app.kubernetes.io/version=9"}), want: map[string]any{"service.version": "9"}},
		{name: "service.instance.id", want: map[string]any{"service.instance.id": "shop.cart-7d4b9c-x2x4z.server"}},

		{name: "resource of the settings", settings: func(o *Options) {
			o.Exporter.Resource = []config.KeyValue{{Key: "deployment.environment.name", Value: "prod"}, {Key: "empty"}}
		}, want: map[string]any{"deployment.environment.name": "prod", "empty": nil}},
		{name: "resource of the settings is stronger", settings: func(o *Options) {
			o.Exporter.Resource = []config.KeyValue{{Key: "service.namespace", Value: "team-a"}}
		}, want: map[string]any{"service.namespace": "team-a", "k8s.namespace.name": "shop"}},
		{name: "attributes drop", settings: func(o *Options) {
			o.Exporter.Attributes = []config.KeyValue{{Key: "k8s.node.name", Value: "drop"}, {Key: "service.version", Value: "drop"}}
		}, want: map[string]any{"k8s.node.name": nil, "service.version": nil, "host.name": "node-1"}},
		{name: "attributes by the field's name", settings: func(o *Options) {
			o.Exporter.Attributes = []config.KeyValue{{Key: "k8s.podName", Value: "drop"}, {Key: "k8s.namespace", Value: "drop"}, {Key: "k8s.namespace.name", Value: "resource"}}
		}, want: map[string]any{"k8s.pod.name": nil, "k8s.namespace.name": "shop"}},
		{name: "attributes sample", settings: func(o *Options) {
			o.Exporter.Attributes = []config.KeyValue{{Key: "k8s.pod.name", Value: "sample"}, {Key: "service.instance.id", Value: "sample"}}
		}, want: map[string]any{"k8s.pod.name": nil, "service.instance.id": nil}},
		{name: "attributes resource", settings: func(o *Options) {
			o.Exporter.Attributes = []config.KeyValue{{Key: "thread.name", Value: "resource"}, {Key: "process.pid", Value: "resource"}}
		}, want: map[string]any{"thread.name": "cart-server", "process.pid": int64(4711)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := testOptions()
			if tc.settings != nil {
				tc.settings(&o)
			}
			row := tc.row
			if row == nil {
				row = podRow()
			}
			s := profileCPU(t, profileCPUMetadata)
			p := compile(t, s, o)
			got := resource(t, p, s.row(row))
			for key, want := range tc.want {
				if want == nil {
					require.NotContains(t, got, key)
				} else {
					require.Equal(t, want, got[key], key)
				}
			}
			for key, value := range got {
				require.NotEmpty(t, value, key)
			}
		})
	}
}

func TestAttributesMovedToTheSample(t *testing.T) {
	o := testOptions()
	o.Exporter.Attributes = []config.KeyValue{{Key: "k8s.pod.name", Value: "sample"}, {Key: "service.instance.id", Value: "sample"}}
	s := profileCPU(t, profileCPUMetadata)
	p := compile(t, s, o)
	require.Equal(t, map[string]any{
		"thread.name":         "cart-server",
		"k8s.pod.name":        "cart-7d4b9c-x2x4z",
		"service.instance.id": "shop.cart-7d4b9c-x2x4z.server",
	}, sample(t, p, s.row(podRow())))
}

func TestResourceHasALimit(t *testing.T) {
	o := testOptions()
	labels := make([]string, 0, 40)
	for i := range 40 {
		name := fmt.Sprintf("label-%02d", i)
		o.Exporter.PodLabels = append(o.Exporter.PodLabels, name)
		labels = append(labels, name+"=x")
	}
	s := profileCPU(t, profileCPUMetadata)
	p := compile(t, s, o)
	got := resource(t, p, s.row(with(map[string]any{"k8s.podLabels": strings.Join(labels, ",")})))
	require.Len(t, got, maxResourceAttributes)
	for _, key := range []string{"service.name", "k8s.namespace.name", "k8s.pod.name", "container.id", "host.name", "k8s.pod.label.label-00"} {
		require.Contains(t, got, key)
	}
	require.NotContains(t, got, "os.type")
	require.Positive(t, p.Stats().CutResourceAttributes)
}

func TestPodLabelsInAnyOrder(t *testing.T) {
	o := testOptions()
	o.Exporter.PodLabels = []string{"tier", "app"}
	s := profileCPU(t, profileCPUMetadata)
	p := compile(t, s, o)
	a := s.row(with(map[string]any{"k8s.podLabels": "tier=web,app=cart"}))
	b := s.row(with(map[string]any{"k8s.podLabels": "app=cart,tier=web"}))
	require.Equal(t, p.Resource(a), p.Resource(b))
	resA, rowA := p.Keys(a)
	resB, rowB := p.Keys(b)
	require.Equal(t, resA, resB)
	require.Equal(t, rowA, rowB)
}

func TestPodLabelsOfAHostileForm(t *testing.T) {
	for _, joined := range []string{"", ",", "=", "=x", "app", "app=", ",,,", "app=\xff\x00", strings.Repeat("app=x,", 10000)} {
		o := testOptions()
		o.Exporter.PodLabels = []string{"app"}
		s := profileCPU(t, profileCPUMetadata)
		got := resource(t, compile(t, s, o), s.row(with(map[string]any{"k8s.podLabels": joined})))
		require.NotContains(t, got, "k8s.pod.label.")
		require.Equal(t, "cart", got["service.name"])
	}
}

func TestParseImage(t *testing.T) {
	for ref, want := range map[string]imageRef{
		"":                         {},
		"redis":                    {name: "redis"},
		"redis:7":                  {name: "redis", tag: "7"},
		"localhost:5000/redis":     {name: "localhost:5000/redis"},
		"localhost:5000/redis:7":   {name: "localhost:5000/redis", tag: "7"},
		"redis@sha256:ab":          {name: "redis", digest: "sha256:ab"},
		"r:5000/a/b:1.0@sha256:ab": {name: "r:5000/a/b", tag: "1.0", digest: "sha256:ab"},
		"sha256:ab":                {id: "sha256:ab"},
		strings.Repeat("0a", 32):   {id: strings.Repeat("0a", 32)},
		"6e38f40d628d":             {id: "6e38f40d628d"},
		"6e38f40d628dd":            {name: "6e38f40d628dd"},
		"sha256:":                  {name: "sha256"},
		"ghcr.io/x/sha256:latest":  {name: "ghcr.io/x/sha256", tag: "latest"},
	} {
		require.Equal(t, want, parseImage(ref), ref)
	}
}

func TestHostName(t *testing.T) {
	own := func() (string, error) { return "own", nil }
	failing := func() (string, error) { return "", os.ErrInvalid }
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc", "hostname"), []byte("metal-1\n"), 0o600))

	require.Equal(t, "node-1", hostName("node-1", root, true, own), "the node's name first")
	require.Equal(t, "metal-1", hostName("", root, true, own), "the host's own, not the pod's")
	require.Empty(t, hostName("", t.TempDir(), false, own), "the container's name is not the host's")
	require.Empty(t, hostName("", "", true, own), "the pod's name is not the host's")
	require.Equal(t, "own", hostName("", "", false, own))
	require.Equal(t, "own", hostName("", "/", false, own))
	require.Empty(t, hostName("", "", false, failing))
}

func TestDetectHost(t *testing.T) {
	t.Setenv("NODE_NAME", "node-9")
	h := DetectHost()
	require.Equal(t, "node-9", h.Name)
	require.Equal(t, "node-9", h.NodeName)
	require.Equal(t, "linux", h.OS)
	require.NotEmpty(t, h.Arch)
}

func TestArchName(t *testing.T) {
	for goarch, want := range map[string]string{"amd64": "amd64", "arm64": "arm64", "386": "x86", "arm": "arm32", "ppc64le": "ppc64", "s390x": "s390x"} {
		require.Equal(t, want, archName(goarch))
	}
}

func TestMachineID(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	root := t.TempDir()
	write := func(path, text string) {
		require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o600))
	}
	require.Empty(t, machineID(root, true))
	write("var/lib/dbus/machine-id", id+"\n")
	require.Equal(t, id, machineID(root, true))
	write("etc/machine-id", "uninitialized\n")
	require.Equal(t, id, machineID(root, false))
	require.Empty(t, machineID("", true), "the pod's own")
}

// TestReceiverSettings checks the settings that presets use.
func TestReceiverSettings(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	s := profileCPU(t, profileCPUMetadata)
	for _, tc := range []struct {
		name     string
		settings func(o *Options)
		check    func(t *testing.T, p *Plan)
	}{
		{"no host.id", func(o *Options) { o.Host.ID = id }, func(t *testing.T, p *Plan) {
			require.NotContains(t, resource(t, p, s.row(podRow())), "host.id")
		}},
		{"host.id", func(o *Options) { o.Host.ID, o.Exporter.HostID = id, true }, func(t *testing.T, p *Plan) {
			require.Equal(t, id, resource(t, p, s.row(podRow()))["host.id"])
		}},
		{"host.id without a machine ID", func(o *Options) { o.Exporter.HostID = true }, func(t *testing.T, p *Plan) {
			require.Equal(t, "node-1", resource(t, p, s.row(podRow()))["host.id"])
			require.Equal(t, testHost.Name, resource(t, p, s.row(hostRow()))["host.id"])
		}},
		{"scope", func(o *Options) { o.Exporter.ProfileScope, o.Name = true, "process_cpu" }, func(t *testing.T, p *Plan) {
			require.Equal(t, profile.Scope{Name: "process_cpu", Version: "v0.55.0"}, p.Descriptor().Scope)
		}},
		{"limits", func(o *Options) {
			o.Exporter.MaxResourceAttributes, o.Exporter.MaxSampleAttributes = 5, 1
			o.Exporter.Attributes = []config.KeyValue{{Key: "service.name", Value: "sample"}, {Key: "process.pid", Value: "sample"}}
		}, func(t *testing.T, p *Plan) {
			require.Len(t, resource(t, p, s.row(podRow())), 5)
			require.Len(t, sample(t, p, s.row(podRow())), 1)
			require.Positive(t, p.Stats().CutResourceAttributes)
		}},
		{"both", func(o *Options) {
			o.Exporter.Attributes = []config.KeyValue{{Key: "service.name", Value: "both"}, {Key: "process.pid", Value: "both"}}
		}, func(t *testing.T, p *Plan) {
			want := map[string]any{"service.name": "cart", "process.pid": int64(4711)}
			require.Subset(t, resource(t, p, s.row(podRow())), want)
			require.Subset(t, sample(t, p, s.row(podRow())), want)
		}},
		{"label keys", func(o *Options) {
			o.Exporter.LabelKeys = true
			o.Exporter.Resource = []config.KeyValue{{Key: "thread_name", Value: "x"}, {Key: "7z-ü", Value: "y"}}
			o.Exporter.PodLabels = []string{"a/b", "a-b", "app"}
			o.Exporter.Attributes = []config.KeyValue{{Key: "k8s.pod.label.a/b", Value: "sample"}}
		}, func(t *testing.T, p *Plan) {
			row := s.row(with(map[string]any{"k8s.podLabels": "a/b=1,a-b=2,app=cart"}))
			r := resource(t, p, row)
			require.Subset(t, r, map[string]any{
				"service.name": "cart", "thread_name": "x", "_7z___": "y", "k8s_pod_label_app": "cart", "k8s_pod_label_a_b": "2",
				"k8s_pod_name": "cart-7d4b9c-x2x4z", "host_name": "node-1",
			})
			for key := range r {
				require.True(t, key == "service.name" || !strings.Contains(key, "."), key)
			}
			// The setting replaces the thread's name, because both would be the same label.
			require.Equal(t, map[string]any{"k8s_pod_label_a_b_2": "1"}, sample(t, p, row))
			// Names do not depend on the content of a row.
			require.Equal(t, "1", sample(t, p, s.row(with(map[string]any{"k8s.podLabels": "a/b=1"})))["k8s_pod_label_a_b_2"])
		}},
		{"label keys in settings", func(o *Options) {
			o.Exporter.LabelKeys = true
			o.Exporter.Resource = []config.KeyValue{{Key: "k8s_pod_name", Value: "x"}, {Key: "service_name", Value: "s"}, {Key: "host.name", Value: "h"}}
			o.Exporter.Attributes = []config.KeyValue{{Key: "thread_name", Value: "drop"}, {Key: "process_pid", Value: "sample"}, {Key: "container_name", Value: "drop"}}
		}, func(t *testing.T, p *Plan) {
			r := resource(t, p, s.row(podRow()))
			require.Subset(t, r, map[string]any{"k8s_pod_name": "x", "service.name": "s", "host_name": "h"})
			for _, key := range []string{"service_name", "k8s.pod.name", "container_name", "container.name"} {
				require.NotContains(t, r, key)
			}
			require.Equal(t, map[string]any{"process_pid": int64(4711)}, sample(t, p, s.row(podRow())))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := testOptions()
			tc.settings(&o)
			tc.check(t, compile(t, s, o))
		})
	}
}
