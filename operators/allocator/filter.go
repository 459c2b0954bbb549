package allocator

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadgets"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// mostContainers is the maximum number of containers that a run can watch without ParamEverywhere.
const mostContainers = 10

// filter selects a run's processes. It applies the same rules as the gadget's programs (unwanted in process.h).
type filter struct {
	namespaces *ebpf.Map // mount namespaces of the watched containers; nil: all
	host       bool      // also select processes outside containers
	pid        uint32    // 0: any
	also       []uint32  // further PIDs
	children   bool      // the descendants of the selected processes are selected, too
	uid, gid   uint32    // anyID: any
	comm       string    // a thread's name; "": any

	seen map[uint64]bool // the containers at the last call of grown
}

const anyID = ^uint32(0)

// newFilter reads the gadget's filter parameters.
func newFilter(gadgetCtx operators.GadgetContext) (filter, error) {
	f := filter{uid: anyID, gid: anyID, comm: tune.Flag(gadgetCtx, "comm")}
	var err error
	if f.pid, err = tune.PID(gadgetCtx); err != nil {
		return f, err
	}
	if f.also, err = tune.AlsoPIDs(gadgetCtx); err != nil {
		return f, err
	}
	if f.uid, err = tune.Number(gadgetCtx, "uid", anyID); err != nil {
		return f, err
	}
	if f.gid, err = tune.Number(gadgetCtx, "gid", anyID); err != nil {
		return f, err
	}
	f.host = tune.On(gadgetCtx, "include_host")
	f.children = tune.On(gadgetCtx, "include_children")
	if on, _ := gadgetCtx.GetVar(gadgets.FilterByMntNsName); on == true {
		m, _ := gadgetCtx.GetVar(gadgets.MntNsFilterMapName)
		watched, ok := m.(*ebpf.Map)
		if !ok || watched == nil {
			return f, fmt.Errorf("finding the selected containers: the variable %s has the unexpected type %T", gadgets.MntNsFilterMapName, m)
		}
		f.namespaces = watched
	}
	return f, nil
}

// check returns an error if the run covers so many processes that this is probably a mistake.
func (f *filter) check() error {
	if f.pid != 0 || f.comm != "" || f.uid != anyID || f.gid != anyID {
		return nil
	}
	const remedy = "probes slow down every allocation: choose processes with --pid, --comm, --containername, --podname or --selector, or allow all of them with --" + ParamEverywhere
	if f.namespaces == nil {
		return fmt.Errorf("the run covers the whole machine; %s", remedy)
	}
	var key uint64
	var value uint32
	n := 0
	for it := f.namespaces.Iterate(); it.Next(&key, &value) && n <= mostContainers; {
		n++
	}
	if n > mostContainers {
		return fmt.Errorf("the run covers more than %d containers of this machine; %s", mostContainers, remedy)
	}
	return nil
}

// about describes the selected processes for users.
func (f *filter) about() string {
	var of []string
	if f.pid != 0 {
		of = append(of, fmt.Sprintf("--pid=%d", f.pid))
	}
	if len(f.also) > 0 {
		of = append(of, "--also-pids="+strings.Trim(strings.Join(strings.Fields(fmt.Sprint(f.also)), ","), "[]"))
	}
	if f.comm != "" {
		of = append(of, fmt.Sprintf("--comm=%q", f.comm))
	}
	if f.uid != anyID {
		of = append(of, fmt.Sprintf("--uid=%d", f.uid))
	}
	if f.gid != anyID {
		of = append(of, fmt.Sprintf("--gid=%d", f.gid))
	}
	what := "process"
	if f.namespaces != nil {
		what = "process in the selected containers"
	}
	if len(of) > 0 {
		what += " that matches " + strings.Join(of, " ")
	}
	return what
}

// grown reports whether a container was added since the last call.
func (f *filter) grown() bool {
	if f.namespaces == nil {
		return false
	}
	var key uint64
	var value uint32
	now, grown := map[uint64]bool{}, false
	for it := f.namespaces.Iterate(); it.Next(&key, &value); {
		now[key] = true
		grown = grown || !f.seen[key]
	}
	f.seen = now
	return grown
}

// pass reports whether a process passes the filter. A process that cannot be inspected does not pass.
func (f *filter) pass(pid uint32) bool {
	dir, _ := threadDir(pid)
	if !f.chosen(pid) && (!f.children || !f.descends(pid)) {
		return false
	}
	if f.comm != "" && !f.named(dir) {
		return false
	}
	var st unix.Stat_t
	if f.uid != anyID || f.gid != anyID {
		if unix.Stat(dir, &st) != nil || f.uid != anyID && st.Uid != f.uid || f.gid != anyID && st.Gid != f.gid {
			return false
		}
	}
	if f.namespaces == nil {
		return true
	}
	if unix.Stat(dir+"/ns/mnt", &st) != nil {
		return false
	}
	var value uint32
	if f.namespaces.Lookup(st.Ino, &value) == nil {
		return true
	}
	return f.host && sameNamespace(dir+"/ns/pid", procDir(1)+"/ns/pid")
}

// mostGenerations is the same as in process.h.
const mostGenerations = 16

// chosen reports whether a process passes the filters for PIDs.
func (f *filter) chosen(pid uint32) bool {
	return f.pid == 0 || pid == f.pid || slices.Contains(f.also, pid)
}

// descends reports whether a process is a descendant of a selected one.
func (f *filter) descends(pid uint32) bool {
	for range mostGenerations {
		if pid = procfs.Parent(hostRoot()+"/proc", pid); f.chosen(pid) {
			return true
		}
	}
	return false
}

// mostThreads limits how many threads of a process are checked for a name.
const mostThreads = 1024

// named reports whether a process has a thread whose name is comm. dir is the /proc directory of one of the threads.
func (f *filter) named(dir string) bool {
	is := func(path string) bool {
		comm, err := os.ReadFile(path + "/comm")
		return err == nil && strings.TrimSuffix(string(comm), "\n") == f.comm
	}
	if is(dir) {
		return true
	}
	tasks, err := os.Open(dir + "/task")
	if err != nil {
		return false
	}
	defer tasks.Close()
	names, _ := tasks.Readdirnames(mostThreads)
	return slices.ContainsFunc(names, func(name string) bool { return is(dir + "/task/" + name) })
}

func sameNamespace(a, b string) bool {
	one, _ := os.Readlink(a)
	other, _ := os.Readlink(b)
	return one != "" && one == other
}

// hostRoot returns the directory where the host's root file system is mounted.
func hostRoot() string { return os.Getenv("HOST_ROOT") }

func procDir(pid uint32) string { return fmt.Sprintf("%s/proc/%d", hostRoot(), pid) }

// threadDir returns the /proc directory and the ID of a thread that has not exited.
func threadDir(pid uint32) (string, uint32) { return procfs.Folder(hostRoot()+"/proc", pid) }
