package hostproc

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// makeGroup creates a cgroup's folder, and returns the cgroup's ID.
func makeGroup(t *testing.T, mount, path string) uint64 {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(mount, path), 0o755))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(mount, path), &st))
	return st.Ino
}

// TestGroups requires that exited processes have their cgroup's unit. The folders here are not cgroups, so the Resolver walks
// them.
func TestGroups(t *testing.T) {
	root := t.TempDir()
	mount := filepath.Join(root, "sys/fs/cgroup")
	nginx := makeGroup(t, mount, "system.slice/nginx.service")
	child := makeGroup(t, mount, "system.slice/docker.service/child")
	session := makeGroup(t, mount, "user.slice/user-0.slice/session-3.scope")
	scope := makeGroup(t, mount, "system.slice/docker-"+strings.Repeat("ab12", 16)+".scope")
	process(t, root, 10, "/usr/sbin/nginx", "0::/system.slice/other.service\n")
	process(t, root, 11, "/usr/bin/cc1", "0::/x.service\n")
	process(t, root, 12, "/usr/bin/late", "0::/system.slice/late.service\n")
	r := New(root)
	require.Equal(t, unified(""), r.groups.mount, "no cgroup2 below the root")
	r.groups = newGroups(mount)
	require.False(t, r.groups.handles)

	require.Equal(t, Service{"nginx", "nginx", "/usr/sbin/nginx"}, r.Lookup(Process{PID: 10, Cgroup: nginx}), "the row knows better than /proc")
	require.Equal(t, Service{"cc1", "cc1", "/usr/bin/cc1"}, r.Lookup(Process{PID: 11, Cgroup: session}))
	gone := Process{PID: 90, Cgroup: nginx}
	require.Equal(t, Service{Name: "nginx"}, r.Lookup(gone))
	require.Zero(t, testing.AllocsPerRun(10, func() { r.Lookup(gone) }))
	require.Equal(t, Service{Name: "docker"}, r.Lookup(Process{PID: 90, Cgroup: child}))
	require.Zero(t, r.Lookup(Process{PID: 91, Cgroup: session}))
	require.Zero(t, r.Lookup(Process{PID: 92, Cgroup: scope}))
	require.Zero(t, r.Lookup(Process{PID: 93}))
	require.Zero(t, r.Lookup(Process{PID: 0, Cgroup: nginx}))

	// A process that has exited must keep its service.
	require.NoError(t, os.RemoveAll(filepath.Join(root, "proc", "10")))
	for range keep {
		r.Age()
	}
	require.Equal(t, "/usr/sbin/nginx", r.Lookup(Process{PID: 10, Cgroup: nginx}).Path, "what is read then has no path")

	// A new group is known after the next walk. Until then, /proc/PID/cgroup tells.
	late := makeGroup(t, mount, "system.slice/late.service")
	require.Zero(t, r.Lookup(Process{PID: 94, Cgroup: late}))
	require.Equal(t, "late", r.Lookup(Process{PID: 12, Cgroup: late}).Name)
	r.Age()
	require.Equal(t, Service{Name: "late"}, r.Lookup(Process{PID: 95, Cgroup: late}))

	// A removed group stays known. A group that never existed does not cause a walk each time.
	require.NoError(t, os.RemoveAll(filepath.Join(mount, "system.slice")))
	require.Equal(t, Service{Name: "nginx"}, r.Lookup(Process{PID: 96, Cgroup: nginx}))
	require.Zero(t, r.Lookup(Process{PID: 97, Cgroup: 1 << 60}))
	require.True(t, r.groups.missing)
	r.Age()
	require.Zero(t, r.Lookup(Process{PID: 98, Cgroup: 1 << 60}))
	require.False(t, r.groups.missing)

	// An unknown group is searched for again after some time.
	for range keep {
		r.Age()
	}
	require.Zero(t, r.Lookup(Process{PID: 99, Cgroup: 1 << 60}))
	require.True(t, r.groups.missing)
}

// TestGroupsAreBounded makes groups without end.
func TestGroupsAreBounded(t *testing.T) {
	mount := t.TempDir()
	nginx := makeGroup(t, mount, "system.slice/nginx.service")
	for i := range 40 {
		makeGroup(t, mount, "user.slice/"+strings.Repeat(strings.Repeat("x", 200)+"/", i%10+1))
	}
	g := newGroups(mount)
	require.Less(t, len(g.known), 2+6+1, "of long paths")
	for id := range uint64(maxGroups + 10) {
		g.unit(id+1<<50, 0)
	}
	require.LessOrEqual(t, len(g.known), maxGroups)
	g.age(1)
	unit, found := g.unit(nginx, 1)
	require.True(t, found)
	require.Equal(t, "nginx", unit)

	n := 0
	for i := range 600 {
		require.NoError(t, os.WriteFile(filepath.Join(mount, "file"+strings.Repeat("x", i%200)+string(rune('a'+i/200))), nil, 0o600))
	}
	require.LessOrEqual(t, readGroups(mount, 10, func(string, uint64) { n++ }), 10+256)
}

// TestRealGroup finds real cgroups, by ID and by a walk.
func TestRealGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("control groups are for root alone")
	}
	mount := unified("")
	if mount == "" {
		mount = t.TempDir()
		if err := unix.Mount("cgroup2", mount, "cgroup2", 0, ""); err != nil {
			t.Skipf("there is no cgroup2 here: %v", err)
		}
		t.Cleanup(func() { require.NoError(t, unix.Unmount(mount, 0)) })
	}
	slice := filepath.Join(mount, "hostproc-test.slice")
	unit := filepath.Join(slice, "demo-test.service")
	require.NoError(t, os.MkdirAll(unit, 0o755))
	removed := false
	remove := func() {
		if !removed {
			removed = true
			require.NoError(t, os.Remove(unit))
			require.NoError(t, os.Remove(slice))
		}
	}
	t.Cleanup(remove)
	id := makeGroup(t, mount, "hostproc-test.slice/demo-test.service")

	byID := newGroups(mount)
	if byID.handles {
		require.Empty(t, byID.known, "nothing was walked")
	} else {
		t.Log("opening by ID takes CAP_DAC_READ_SEARCH: both walk")
	}
	walked := newGroups(mount)
	walked.handles = false
	walked.walk(0)
	require.EqualValues(t, rootGroup, makeGroup(t, mount, "/"))
	for _, g := range []*groups{byID, walked} {
		name, found := g.unit(id, 0)
		require.True(t, found)
		require.Equal(t, "demo-test", name)
		_, found = g.unit(rootGroup, 0)
		require.False(t, found, "the root says nothing")
	}
	remove()
	name, _ := byID.unit(id, 100)
	require.Equal(t, "demo-test", name, "it is kept")
	_, found := newGroups(mount).unit(id, 0)
	require.False(t, found)
}

// TestGroupOutsideOfTheMount has a container that mounts only its own part of the hierarchy. Groups outside of it are not found,
// so /proc/PID/cgroup tells.
func TestGroupOutsideOfTheMount(t *testing.T) {
	const variable = "HOSTPROC_OUTSIDE"
	if id, err := strconv.ParseUint(os.Getenv(variable), 10, 64); err == nil { // in a mount namespace of its own
		mount := t.TempDir()
		require.NoError(t, unix.Mount("cgroup2", mount, "cgroup2", 0, ""))
		defer func() { require.NoError(t, unix.Unmount(mount, 0)) }()
		_, found := newGroups(mount).unit(id, 0)
		require.False(t, found)
		unit, found := newGroups(mount).unit(makeGroup(t, mount, "inner.service"), 0)
		require.True(t, found)
		require.Equal(t, "inner", unit)
		require.NoError(t, os.Remove(filepath.Join(mount, "inner.service")))
		return
	}
	mount := unified("")
	if mount == "" || os.Geteuid() != 0 {
		t.Skip("no cgroup2 is mounted here, or not for this user")
	}
	pod, unit := filepath.Join(mount, "hostproc-test-pod"), filepath.Join(mount, "hostproc-test.service")
	id := makeGroup(t, mount, "hostproc-test.service")
	makeGroup(t, mount, "hostproc-test-pod")
	defer func() {
		require.NoError(t, os.Remove(pod))
		require.NoError(t, os.Remove(unit))
	}()
	cmd := exec.Command("sh", "-c", `echo 0 >"$1/cgroup.procs" && exec unshare --cgroup --mount "$2" -test.run='^TestGroupOutsideOfTheMount$'`,
		"sh", pod, os.Args[0])
	cmd.Env = append(os.Environ(), variable+"="+strconv.FormatUint(id, 10))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
