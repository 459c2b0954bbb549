package allocator

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadgets"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

const exampleMetadata = `
operator: {allocator: {enabled: true}, captures: {enabled: true}}
params:
  ebpf:
    also_pids: {key: also-pids, defaultValue: ""}
    include_children: {key: include-children, defaultValue: "false"}
    include_host: {key: include-host, defaultValue: "false"}
    live: {key: live, defaultValue: "false"}
`

func exampleContext(t *testing.T, values api.ParamValues, options ...gadgetcontext.Option) *gadgetcontext.GadgetContext {
	t.Helper()
	gadgetCtx := gadgetcontext.New(t.Context(), "gadget", options...)
	t.Cleanup(gadgetCtx.Cancel)
	require.NoError(t, gadgetCtx.SetMetadata([]byte(exampleMetadata)))
	if values == nil {
		values = api.ParamValues{}
	}
	gadgetCtx.SetVar("otel-profiles/ebpf-params", values)
	return gadgetCtx
}

// containers returns a map of the mount namespaces of the run's containers.
func containers(t *testing.T, namespaces ...uint64) *ebpf.Map {
	t.Helper()
	m := igtest.Map(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: 1024})
	for _, ns := range namespaces {
		require.NoError(t, m.Put(ns, uint32(1)))
	}
	return m
}

func TestNewFilter(t *testing.T) {
	f, err := newFilter(exampleContext(t, api.ParamValues{"pid": "7", "uid": "-1", "gid": "0", "comm": "shop", "include-host": "true", "include-children": "true"}))
	require.NoError(t, err)
	require.Equal(t, filter{pid: 7, uid: anyID, gid: 0, comm: "shop", host: true, children: true}, f)
	f, err = newFilter(exampleContext(t, nil))
	require.NoError(t, err)
	require.Equal(t, filter{uid: anyID, gid: anyID}, f)
	f, err = newFilter(exampleContext(t, api.ParamValues{"pid": "7", "also-pids": "8, 9"}))
	require.NoError(t, err)
	require.Contains(t, f.about(), "--also-pids=8,9")
	for _, values := range []api.ParamValues{
		{"pid": "7", "also-pids": "8,x"}, {"pid": "7", "also-pids": "0"}, {"pid": "7", "also-pids": "8;9"}, {"pid": "7", "also-pids": "8 9"}, {"pid": "7", "also-pids": "8,"},
		{"pid": "7", "also-pids": "4294967295"}, {"also-pids": "8"}, {"pid": "7", "also-pids": strings.Repeat("8,", 40)},
	} {
		_, err = newFilter(exampleContext(t, values))
		require.ErrorContains(t, err, "also-pids", "%v", values)
	}
	for _, key := range []string{"pid", "uid", "gid"} {
		for _, text := range []string{"x", "-2", "4294967296", "1,2"} {
			_, err = newFilter(exampleContext(t, api.ParamValues{key: text}))
			require.EqualError(t, err, fmt.Sprintf("parameter %q: got %q, expected a number", key, text))
		}
	}
	gadgetCtx := exampleContext(t, nil)
	gadgetCtx.SetVar(gadgets.FilterByMntNsName, true)
	_, err = newFilter(gadgetCtx)
	require.ErrorContains(t, err, "finding the selected containers")
	m := containers(t)
	gadgetCtx.SetVar(gadgets.MntNsFilterMapName, m)
	f, err = newFilter(gadgetCtx)
	require.NoError(t, err)
	require.Same(t, m, f.namespaces)
}

// A run that would slow down the whole machine must require a flag.
func TestCheck(t *testing.T) {
	all := filter{uid: anyID, gid: anyID}
	require.ErrorContains(t, all.check(), "the run covers the whole machine")
	require.ErrorContains(t, all.check(), "--everywhere")
	for _, change := range []func(*filter){
		func(f *filter) { f.pid = 1 }, func(f *filter) { f.comm = "x" }, func(f *filter) { f.uid = 0 }, func(f *filter) { f.gid = 0 },
	} {
		f := all
		change(&f)
		require.NoError(t, f.check())
	}
	var some []uint64
	for i := range uint64(mostContainers) {
		some = append(some, i+1)
	}
	f := all
	f.namespaces = containers(t, some...)
	require.NoError(t, f.check())
	f.namespaces = containers(t, append(some, 99)...)
	require.ErrorContains(t, f.check(), "more than 10 containers")
}

// TestGrown adds a container to the run's map after the container's program has started.
func TestGrown(t *testing.T) {
	f := filter{}
	require.False(t, f.grown(), "a run about the whole machine")
	f.namespaces = containers(t, 7)
	require.True(t, f.grown())
	require.False(t, f.grown())
	require.NoError(t, f.namespaces.Put(uint64(8), uint32(1)))
	require.True(t, f.grown())
	require.NoError(t, f.namespaces.Delete(uint64(7)))
	require.False(t, f.grown())
	require.NoError(t, f.namespaces.Put(uint64(7), uint32(1)))
	require.True(t, f.grown(), "another one with the number of one that is gone")
}

// TestOtherPIDs starts itself in a new PID namespace, as in a daemon without hostPID, and runs PreStart there.
func TestOtherPIDs(t *testing.T) {
	const inside = "ALLOCATOR_TEST_INSIDE"
	if os.Getenv(inside) != "" {
		err := (&instance{}).PreStart(exampleContext(t, api.ParamValues{"pid": "7"}))
		require.ErrorContains(t, err, "needs the host's PID namespace")
		require.ErrorContains(t, err, "hostPID: true")
		return
	}
	if procfs.SharesPIDs() {
		require.NoError(t, (&instance{}).PreStart(exampleContext(t, api.ParamValues{"pid": "7"})))
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestOtherPIDs$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestOtherPIDs")
}

func TestPass(t *testing.T) {
	pid := uint32(os.Getpid())
	var ns syscall.Stat_t
	require.NoError(t, syscall.Stat("/proc/self/ns/mnt", &ns))
	comm, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	here, elsewhere := containers(t, ns.Ino), containers(t, 1)
	level := sameNamespace("/proc/self/ns/pid", "/proc/1/ns/pid")
	for _, tc := range []struct {
		name string
		f    filter
		want bool
	}{
		{"any", filter{uid: anyID, gid: anyID}, true},
		{"this", filter{pid: pid, uid: uid, gid: gid, comm: string(comm[:len(comm)-1]), namespaces: here}, true},
		{"another one", filter{pid: pid + 1, uid: anyID, gid: anyID}, false},
		{"another name", filter{uid: anyID, gid: anyID, comm: "shop"}, false},
		{"another user", filter{uid: uid + 1, gid: anyID}, false},
		{"another group", filter{uid: anyID, gid: gid + 1}, false},
		{"another container", filter{uid: anyID, gid: anyID, namespaces: elsewhere}, false},
		{"the host, too", filter{uid: anyID, gid: anyID, namespaces: elsewhere, host: true}, level},
	} {
		require.Equal(t, tc.want, tc.f.pass(pid), tc.name)
	}
	other := exec.Command("cat") // with another UID and GID
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12, Gid: 34}}
	_, err = other.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	t.Cleanup(func() { _, _ = other.Process.Kill(), other.Wait() })
	for _, tc := range []struct {
		f    filter
		want bool
	}{
		{filter{uid: 12, gid: 34}, true}, {filter{uid: 34, gid: 34}, false}, {filter{uid: 12, gid: 12}, false},
	} {
		require.Equal(t, tc.want, tc.f.pass(uint32(other.Process.Pid)), "%+v", tc.f)
	}
	f := filter{uid: anyID, gid: anyID, namespaces: here}
	require.False(t, f.pass(1<<30), "one that is gone")
	self := uint32(os.Getpid())
	f = filter{pid: uint32(os.Getppid()), uid: anyID, gid: anyID}
	require.False(t, f.pass(self))
	f.children = true
	require.True(t, f.pass(self))
	require.False(t, f.pass(1))
	f = filter{pid: 1 << 30, also: []uint32{5, uint32(os.Getppid())}, uid: anyID, gid: anyID}
	require.False(t, f.pass(self))
	require.True(t, f.pass(uint32(os.Getppid())))
	f.children = true
	require.True(t, f.pass(self))
	require.Contains(t, running(), pid)
}

// As in the gadget's programs, any thread can have the selected name.
func TestPassThread(t *testing.T) {
	c := newChild(t)
	f := filter{uid: anyID, gid: anyID, comm: "shop-worker"}
	require.False(t, f.pass(c.pid()))
	const named = "import threading, time; done = threading.Event(); " +
		"threading.Thread(target=lambda: (ctypes.CDLL(None).prctl(15, b'shop-worker'), done.set(), time.sleep(600)), daemon=True).start(); done.wait()"
	c.run(named)
	require.True(t, f.pass(c.pid()))
}
