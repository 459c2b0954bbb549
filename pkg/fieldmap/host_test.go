package fieldmap

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/hostproc"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// TestHostServices checks that processes outside containers are services of their own.
func TestHostServices(t *testing.T) {
	root := t.TempDir()
	for pid, p := range map[uint32][2]string{
		4711: {"/usr/sbin/nginx", "0::/system.slice/nginx.service"}, 4712: {"/usr/bin/cc1", "0::/user.slice/session-1.scope"},
		4713: {"/usr/sbin/nginx", "0::/system.slice/nginx.service"}, 4714: {"/usr/libexec/helper", "0::/system.slice/nginx.service"},
	} {
		dir := filepath.Join(root, "proc", fmt.Sprint(pid))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.Symlink(p[0], filepath.Join(dir, "exe")))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte(p[1]), 0o600))
	}
	s := profileCPU(t, profileCPUMetadata)
	o := testOptions()
	o.Hosts = hostproc.New(root)
	p := compile(t, s, o)
	row := func(pid uint32) map[string]any {
		r := hostRow()
		r["proc.pid"] = pid
		return r
	}
	nginx, cc1, other, gone, helper := s.row(row(4711)), s.row(row(4712)), s.row(row(4713)), s.row(row(1)), s.row(row(4714))

	got := p.Resource(nginx)
	name := func(r profile.Resource, key string) any { return attributes(t, r.Attributes)[key] }
	require.Equal(t, "nginx", name(got, "service.name"))
	require.Equal(t, "nginx", name(got, "process.executable.name"))
	require.Equal(t, "/usr/sbin/nginx", name(got, "process.executable.path"))
	require.True(t, got.Host)
	require.NotZero(t, got.Group)
	rest := profile.Resource{Attributes: got.Rest}
	require.Equal(t, "host", name(rest, "service.name"))
	require.Empty(t, name(rest, "process.executable.path"))
	require.Equal(t, "cc1", name(p.Resource(cc1), "service.name"))
	unknown := p.Resource(gone)
	require.Equal(t, "host", name(unknown, "service.name"))
	require.True(t, unknown.Host)
	require.Zero(t, unknown.Group)

	resource := func(i int) uint64 {
		res, _ := p.Keys([]datasource.Data{nginx, cc1, other, gone, helper}[i])
		return res
	}
	require.Equal(t, resource(0), resource(2), "two processes of a service")
	require.NotEqual(t, resource(0), resource(1))
	require.NotEqual(t, resource(0), resource(3))
	require.Equal(t, "nginx", name(p.Resource(helper), "service.name"))
	require.NotEqual(t, resource(0), resource(4), "two executables of a service")
	require.Zero(t, testing.AllocsPerRun(10, func() { p.Keys(nginx) }))

	pod := p.Resource(s.row(podRow()))
	require.False(t, pod.Host)
	require.Equal(t, "cart", name(pod, "service.name"))

	o.Hosts = nil // host_services: 0
	one := compile(t, s, o)
	require.Equal(t, "host", name(one.Resource(nginx), "service.name"))
	require.False(t, one.Resource(nginx).Host)
}

// TestHostServiceByControlGroup checks that a row's cgroup reveals the unit of an exited process. Rows from containers do not
// change.
func TestHostServiceByControlGroup(t *testing.T) {
	mount := "/sys/fs/cgroup"
	if _, err := os.Stat(mount + "/cgroup.procs"); err != nil {
		mount += "/unified" // the mount next to version 1
	}
	unit := filepath.Join(mount, "fieldmap-test.service")
	if err := os.Mkdir(unit, 0o755); err != nil {
		t.Skipf("no control group can be made here: %v", err)
	}
	defer func() { require.NoError(t, os.Remove(unit)) }()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(unit, &st))

	gadget := func(kind api.Kind, size uint32) *source {
		members := append(idMembers(), &member{name: "own_cgroup", kind: kind, size: size, tags: []string{cgroupTag}, parent: -1})
		return newSource(t, "samples", idMetadata, append(members, processMembers(len(members))...)...).enrich()
	}
	o := idOptions(t, &functions{})
	o.Hosts = hostproc.New("")
	name := func(s *source, p *Plan, more map[string]any) any {
		row := map[string]any{"proc.pid": uint32(1 << 30), "own_cgroup": st.Ino} // this process does not exist
		maps.Copy(row, more)
		return attributes(t, p.Resource(s.row(row)).Attributes)["service.name"]
	}
	s := gadget(api.Kind_Uint64, 8)
	p := compile(t, s, o)
	require.Equal(t, "fieldmap-test", name(s, p, nil))
	require.Equal(t, "host", name(s, p, map[string]any{"own_cgroup": uint64(0)}))
	require.Equal(t, "web", name(s, p, map[string]any{"runtime.containerName": "web"}))
	unitRow, other := s.row(map[string]any{"proc.pid": uint32(1 << 30), "own_cgroup": st.Ino}), s.row(map[string]any{"proc.pid": uint32(1 << 30)})
	unitKey, _ := p.Keys(unitRow)
	otherKey, _ := p.Keys(other)
	require.NotEqual(t, unitKey, otherKey)
	require.Zero(t, testing.AllocsPerRun(10, func() { p.Keys(unitRow) }))

	var warned func() []string
	o.Logger, warned = recorder()
	s = gadget(api.Kind_Uint32, 4)
	require.Equal(t, "host", name(s, compile(t, s, o), map[string]any{"own_cgroup": uint32(st.Ino)}))
	require.Contains(t, strings.Join(warned(), "\n"), `the cgroup field "own_cgroup" is ignored`)
}
