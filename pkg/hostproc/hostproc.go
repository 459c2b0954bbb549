// Package hostproc finds the service of a process outside containers: its systemd unit, or else its executable. The unit comes
// from the cgroup's ID, which is resolved once per cgroup, or else from /proc/PID/cgroup. The executable comes from the link
// /proc/PID/exe. Both are read once per process. The package reads neither the memory nor the files of processes.
package hostproc

import (
	"cmp"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/bounded"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

// Service is the service of a process. The zero value means that nothing is known.
type Service struct {
	// Name is the name of the unit, without its suffix, or of the executable. A unit of a user's service manager has a prefix
	// with the user's ID: user@1000/nginx. An executable whose path is not trusted has a suffix: "nginx (user namespace)".
	Name string
	// Executable and Path are the name and the path of the process's executable. They are empty beyond a unit's limit of
	// executables, and for exited processes. They are also empty if the path is not trusted: in a user namespace, or below a
	// root other than the host's.
	Executable, Path string
}

// Process identifies a process. The kernel reuses PIDs, so the executable's inode distinguishes processes; 0 means unknown.
// Cgroup is the cgroup's ID in the unified hierarchy, or 0 if unknown.
type Process struct {
	PID    uint32
	Inode  uint64
	Cgroup uint64
}

// These limit the memory of a Resolver, and what it reads.
const (
	maxProcesses   = 32768
	maxUnits       = 4096
	maxExecutables = 16 // maximum per unit
	maxName        = 128
	maxPath        = 1024
	maxCgroup      = 16 << 10
)

// Resolver remembers the services of processes. It is safe for concurrent use.
type Resolver struct {
	proc   string
	groups *groups
	spaces namespaces

	epoch atomic.Uint32

	mu          sync.RWMutex
	known       map[Process]entry
	executables *bounded.Sets[string] // paths of executables by unit
}

type entry struct {
	service Service
	epoch   uint32 // value of Resolver.epoch at the read
}

// keep is the number of calls of Age after which an entry is read again, because another process can have its PID.
const keep = 6

// Age tells the Resolver that some seconds have passed. If cgroups cannot be opened by ID, it lists them after a request for an
// unknown cgroup. That takes some ten milliseconds per thousand groups.
func (r *Resolver) Age() { r.groups.age(r.epoch.Add(1)) }

// New returns a Resolver for the processes in root/proc and the cgroups in root/sys/fs/cgroup. If root has no cgroups, it uses
// /sys/fs/cgroup, where a daemon's container has the node's cgroups. Outside containers, root is empty or "/".
func New(root string) *Resolver {
	mount := unified(root)
	if mount == "" {
		mount = unified("")
	}
	proc := filepath.Join("/", root, "proc")
	return &Resolver{
		proc: proc, groups: newGroups(mount), spaces: newNamespaces(proc),
		known: map[Process]entry{}, executables: bounded.New[string](maxUnits, maxExecutables),
	}
}

// Lookup returns the service of a process. The first call for a process takes some ten microseconds. Later calls do not
// allocate. If the process has exited, Lookup knows only its unit, from the cgroup's ID.
func (r *Resolver) Lookup(p Process) Service {
	epoch := r.epoch.Load()
	r.mu.RLock()
	old, ok := r.known[p]
	r.mu.RUnlock()
	if ok && epoch-old.epoch < keep {
		return old.service
	}
	s := r.read(p, epoch)
	if s.Path == "" && old.service.Name != "" {
		s = old.service // the process has ended, and these are its last rows
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxProcesses {
		clear(r.known) // running processes are looked up again
	}
	if s.Path != "" && !r.executables.Add(s.Name, s.Path) {
		s = Service{Name: s.Name} // because each executable becomes a resource
	}
	r.known[p] = entry{s, epoch}
	return s
}

func (r *Resolver) read(p Process, epoch uint32) Service {
	if p.PID == 0 {
		return Service{}
	}
	unit, found := r.groups.unit(p.Cgroup, epoch)
	dir := filepath.Join(r.proc, strconv.FormatUint(uint64(p.PID), 10))
	path, err := os.Readlink(filepath.Join(dir, "exe"))
	if err != nil || path == "" {
		return Service{Name: unit} // the process has exited, or is a kernel thread
	}
	path = printable.Cut(strings.TrimSuffix(path, " (deleted)"), maxPath)
	s := Service{Executable: printable.Cut(filepath.Base(path), maxName), Path: path}
	if memory := strings.TrimPrefix(path, "/"); strings.HasPrefix(memory, "memfd:") { // the rest is a name, not a path
		s.Executable = printable.Cut(memory, maxName)
	}
	if !found {
		unit = printable.Cut(Unit(readCgroup(filepath.Join(dir, "cgroup"))), maxName)
	}
	s.Name = cmp.Or(unit, s.Executable)
	if space := r.spaces.foreign(dir); space != "" {
		s = Service{Name: cmp.Or(unit, s.Executable+" ("+space+")")}
	}
	return s
}

// readCgroup returns the path in the unified hierarchy, or else in systemd's own hierarchy.
func readCgroup(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, maxCgroup)
	n, err := f.Read(b)
	if err != nil {
		return ""
	}
	path := ""
	for line := range strings.Lines(string(b[:n])) {
		id, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, p, _ := strings.Cut(rest, ":")
		switch {
		case id == "0" && controllers == "" && p != "/":
			return p
		case controllers == "name=systemd":
			path = p
		}
	}
	return path
}

// Unit returns the name of a cgroup's systemd unit without the suffix, or "" if the unit names no service. Numbered or hashed
// units name no service, for example session-12.scope, run-u31.service, user@1000.service and scopes of containers.
//
// Unit uses the outermost unit, because a service can choose the names of units below its own. A unit of a user's service manager
// gets the prefix user@1000/.
func Unit(cgroup string) string {
	user := ""
	cgroup = strings.TrimSuffix(cgroup, " (deleted)") // so the kernel shows a removed group
	for part := range strings.SplitSeq(cgroup, "/") {
		name, service := strings.CutSuffix(part, ".service")
		if !service {
			var scope bool
			if name, scope = strings.CutSuffix(part, ".scope"); !scope {
				continue
			}
			if strings.ContainsAny(name, "0123456789") {
				return ""
			}
		}
		switch {
		case user == "" && strings.HasPrefix(name, "user@"):
			user = name + "/"
		case strings.HasPrefix(name, "user@"), strings.HasPrefix(name, "run-"), hashed(name):
			return ""
		default:
			return user + unescape(name)
		}
	}
	return ""
}

// hashed reports whether a name contains a part that looks like a hash. This means at least twelve consecutive hexadecimal
// digits, including a decimal digit.
func hashed(name string) bool {
	const digits = "0123456789"
	runs := strings.FieldsFunc(name, func(c rune) bool { return !strings.ContainsRune(digits+"abcdef", c) })
	return slices.ContainsFunc(runs, func(run string) bool { return len(run) >= 12 && strings.ContainsAny(run, digits) })
}

// escape matches systemd's escapes, for example \x2d, for characters that are invalid in unit names.
var escape = regexp.MustCompile(`\\x[0-9a-fA-F]{2}`)

// unescape decodes each escape once.
func unescape(name string) string {
	return escape.ReplaceAllStringFunc(name, func(code string) string {
		c, _ := hex.DecodeString(code[len(`\x`):]) // escape matches only digits
		return string(c)
	})
}
