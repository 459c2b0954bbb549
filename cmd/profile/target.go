package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// target selects the processes to sample. The zero value selects all.
type target struct {
	list      []int // PIDs
	children  bool  // the gadget also samples their descendants
	byGadget  bool  // the gadget's programs select the processes of list
	settled   bool  // list includes the descendants that existed at the start, and no later ones
	comm      string
	container string
}

// commLength is the kernel's maximum length of a thread's name, in bytes.
const commLength = 15

func (t target) check() error {
	if len(t.list) > 0 && t.comm+t.container != "" || t.comm != "" && t.container != "" {
		return errors.New("--pid, --comm and --container cannot be used together: use only one")
	}
	if len(t.comm) > commLength {
		return fmt.Errorf("--comm %q: the kernel keeps the first %d bytes of a name: use %q", t.comm, commLength, t.comm[:commLength])
	}
	return nil
}

// all reports whether the target is all processes.
func (t target) all() bool { return len(t.list) == 0 && t.comm == "" && t.container == "" }

// one returns the PID of the only sampled process, or 0.
func (t target) one() int {
	if len(t.list) == 1 && !t.children {
		return t.list[0]
	}
	return 0
}

// numbers lists the selected PIDs, but no more than most. It counts the others.
func (t target) numbers(most int) string {
	var words []string
	for i, pid := range t.list {
		if i == most {
			return fmt.Sprintf("%s and %d more", strings.Join(words, ","), len(t.list)-most)
		}
		words = append(words, strconv.Itoa(pid))
	}
	return strings.Join(words, ",")
}

// parents returns the parent PID of each process of this machine.
func parents() map[int]int {
	of := map[int]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return of
	}
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			of[pid] = int(procfs.Parent("/proc", uint32(pid)))
		}
	}
	return of
}

// withChildren returns processes and their descendants.
func withChildren(pids []int, parents map[int]int) []int {
	pids = slices.Clone(pids)
	for i := 0; i < len(pids); i++ {
		for _, child := range slices.Sorted(maps.Keys(parents)) {
			if parents[child] == pids[i] && !slices.Contains(pids, child) {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// goNote is the type and name of the ELF note that contains Go's build ID.
const goNote = "\x04\x00\x00\x00Go\x00\x00"

// isGo reports whether a process runs a program built by Go. Linkers put the note with Go's build ID into the file's first 4
// KiB. The file can be hostile, so isGo searches these bytes without parsing. At worst, a remark is wrong. isGo does not
// recognize a program with an empty build ID.
func isGo(pid int) bool {
	f, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 4<<10)
	n, err := f.ReadAt(head, 0)
	return (err == nil || errors.Is(err, io.EOF)) && bytes.Contains(head[:n], []byte(goNote))
}

// String describes the target for users.
func (t target) String() string {
	switch {
	case len(t.list) > 1 && t.children:
		return "processes " + t.numbers(8) + " and their child processes"
	case len(t.list) > 1:
		return "processes " + t.numbers(8)
	case len(t.list) == 1:
		text := "process " + t.numbers(1)
		if name := commOf(t.list[0]); name != "" {
			text += fmt.Sprintf(" (%s)", report.Shown(name, 2*commLength))
		}
		if t.children {
			text += " and its child processes"
		}
		return text
	case t.comm != "":
		return "programs called " + t.comm
	case t.container != "":
		return "container " + t.container
	}
	return "this machine"
}

// fileName describes the target in a file's name.
func (t target) fileName() string {
	name := cmp.Or(t.comm, t.container, "all")
	if len(t.list) > 0 {
		name = strconv.Itoa(t.list[0])
	}
	return notInNames.ReplaceAllString(name, "_")
}

// notInNames matches the characters of a target that a file's name replaces.
var notInNames = regexp.MustCompile(`[^a-zA-Z0-9.-]`)

// maxAlso is the maximum length of the gadgets' parameter --also-pids.
const maxAlso = 63

// also lists all PIDs but the first.
func (t target) also() string {
	rest := target{list: t.list[min(1, len(t.list)):]}
	return rest.numbers(len(rest.list))
}

// igFlags returns the flags of "ig run" that select the target.
func (t target) igFlags() []string {
	switch {
	case len(t.list) > 1 && !t.byGadget: // other gadgets' programs can filter by only one PID
		return []string{"--host", "--filter-expr=proc.pid in [" + t.numbers(len(t.list)) + "]"}
	case len(t.list) > 0:
		flags := []string{"--host", fmt.Sprintf("--pid=%d", t.list[0])}
		if also := t.also(); also != "" {
			flags = append(flags, "--also-pids="+also)
		}
		if t.children {
			flags = append(flags, "--include-children")
		}
		return flags
	case t.comm != "":
		return []string{"--host", "--comm=" + t.comm}
	case t.container != "":
		return []string{"--containername=" + t.container}
	}
	return []string{"--host"}
}

// exists returns an error if there is certainly nothing to sample. A program that does not run can still start later. igFlags
// can name another socket of a container runtime.
func (t target) exists(igFlags []string) error {
	if t.container != "" && !slices.ContainsFunc(igFlags, func(f string) bool { return strings.Contains(f, "-socketpath") }) {
		if why := noRuntime(runtimeSockets); why != "" {
			return fmt.Errorf("--container %s: %s", t.container, why)
		}
	}
	for _, pid := range t.list {
		if err := processExists(pid); err != nil {
			return err
		}
	}
	return nil
}

func processExists(pid int) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no process %d: it has exited, or the PID is from another PID namespace, such as a container's; ps -e lists the processes of this namespace", pid)
	}
	if err != nil {
		return fmt.Errorf("looking for process %d: %w", pid, err)
	}
	for line := range bytes.Lines(status) {
		if group, ok := bytes.CutPrefix(line, []byte("Tgid:")); ok {
			if leader := string(bytes.TrimSpace(group)); leader != strconv.Itoa(pid) {
				return fmt.Errorf("%d is a thread of process %s: use --pid %s", pid, leader, leader)
			}
		}
	}
	return nil
}

// runtimeSockets lists the sockets of container runtimes.
var runtimeSockets = []string{
	"/run/docker.sock", "/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock", "/run/crio/crio.sock", "/run/podman/podman.sock",
}

// noRuntime returns a message if no container runtime listens on this machine, or "".
func noRuntime(sockets []string) string {
	for _, socket := range sockets {
		if _, err := os.Stat(socket); err == nil {
			return ""
		}
	}
	return "no container runtime listens on this machine (Docker, containerd, CRI-O, Podman), and only runtimes know the names of containers: --pid also takes a container's process. For a runtime with another socket, add a flag such as \"-- --containerd-socketpath=/run/other.sock\""
}

// commOf returns the name of a process, or "" if there is no such process.
func commOf(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(name), "\n")
}

// named returns the number of threads with the given name on this machine.
func named(comm string) int {
	files, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/comm")
	if err != nil {
		return 0
	}
	n := 0
	for _, file := range files {
		if name, err := os.ReadFile(file); err == nil && strings.TrimSuffix(string(name), "\n") == comm {
			n++
		}
	}
	return n
}
